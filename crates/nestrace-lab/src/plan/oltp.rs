//! sysbench's OLTP on MariaDB: the shell with which a guest serves and loads a database.
//!
//! The lab fills databases on the host and gives them to guests on a disk, with the programs; a run copies
//! one onto the file system under test.

use super::sysbench::{self, PROGRAM};
use super::workload::{FOLDER, Scale};

/// One of sysbench's tests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oltp {
    /// Its script without `oltp_` and `.lua`: `read_write`.
    pub test: String,
    /// Connections.
    pub threads: u32,
    /// Rows of each of its tables.
    pub rows: u64,
}

/// Id of the disk with programs and databases.
pub const DATABASE_DISK: &str = "lab-database";
/// Where a guest has that disk.
const PLACE: &str = "/opt/database";
/// Tables of a database.
pub const TABLES: u64 = 4;
/// Bytes of a row in InnoDB's pages, its secondary index included: 4 + 4 + 120 + 60, and pages that are not full.
const ROW_BYTES: u64 = 240;
/// Bytes that a database has besides its rows: system and undo table spaces, the log.
pub const OWN_BYTES: u64 = 96 << 20;
/// What MariaDB takes by itself: connections, and statements that they prepared.
const USUAL_CONNECTIONS: u32 = 151;
const USUAL_STATEMENTS: u32 = 16_382;
/// After its time sysbench waits for each transaction that has begun; seldom, one never ends (once in some two hundred
/// runs of 60 connections), and then this long.
const OVERTIME_S: u32 = 60;
/// Statements that sysbench prepares for a connection: some ten for each table.
const STATEMENTS: u32 = 16 * TABLES as u32;
const SOCKET: &str = "/run/lab-database.sock";
const PID: &str = "/run/lab-database.pid";
/// What the server says, in a guest.
pub const LOG: &str = "/run/lab-database.log";

/// Options of the server that shape its files: the same where a database is filled and where it is used.
pub const FILE_OPTIONS: [&str; 4] = [
    "--no-defaults",
    "--user=root",
    "--innodb-log-file-size=16M",
    "--performance-schema=OFF",
];

/// Rows of a table, so that the database is as large as the scale says.
#[must_use]
pub fn rows(scale: &Scale) -> u64 {
    (scale.data_bytes / TABLES / ROW_BYTES).max(100)
}

/// Folder of a database on its disk.
#[must_use]
pub fn folder(rows: u64) -> String {
    format!("data-{rows}")
}

/// sysbench's options for a database, but those that say what to do.
#[must_use]
pub fn client_options(socket: &str, rows: u64) -> String {
    format!(
        "--db-driver=mysql --mysql-socket={socket} --mysql-user=root --mysql-db=sbtest \
         --tables={TABLES} --table-size={rows}"
    )
}

impl Oltp {
    /// Shell that puts the database onto the file system under test and starts its server there. Its cache holds
    /// a quarter of the rows, and goes past the guest's.
    #[must_use]
    pub fn prepare_script(&self, scale: &Scale) -> String {
        // One is left for who looks what is wrong.
        let connections = (self.threads + 1).max(USUAL_CONNECTIONS);
        let statements = self.threads * STATEMENTS;
        let pool = (scale.data_bytes / 4).max(8 << 20);
        let data = folder(self.rows);
        format!(
            "load ext4\n\
             mkdir -p {PLACE}\n\
             grep -q ' {PLACE} ' /proc/mounts || mount -t ext4 -o ro,noload /dev/$(disk {DATABASE_DISK}) {PLACE}\n\
             cp -a {PLACE}/{data} {FOLDER}/data\n\
             rm -f {SOCKET} {PID}\n\
             LD_LIBRARY_PATH={PLACE}/lib setsid {PLACE}/bin/mariadbd {} --datadir={FOLDER}/data \
             --socket={SOCKET} --pid-file={PID} --skip-networking --skip-grant-tables --tmpdir=/run \
             --lc-messages-dir={PLACE}/share --character-sets-dir={PLACE}/share/charsets \
             --innodb-flush-method=O_DIRECT --innodb-buffer-pool-size={pool} \
             --max-connections={connections} --max-prepared-stmt-count={} > {LOG} 2>&1 < /dev/null &\n\
             tries=0\n\
             until [ -S {SOCKET} ]; do\n\
             tries=$((tries + 1))\n\
             [ $tries -lt 600 ] && {{ [ $tries -lt 20 ] || pidof mariadbd > /dev/null; }} || {{ tail -n 20 {LOG} >&2; exit 1; }}\n\
             sleep 0.1\n\
             done",
            FILE_OPTIONS.join(" "),
            statements.max(USUAL_STATEMENTS)
        )
    }

    /// Shell that loads the server: `warm_up` seconds that do not count, then `seconds` that do.
    #[must_use]
    pub fn measure_script(&self, warm_up: u32, seconds: u32) -> String {
        sysbench::measure(environment(), warm_up, seconds, |seconds| {
            let script = format!("{PLACE}/lua/oltp_{}.lua", self.test);
            let options = format!(
                "--threads={} --time={seconds} --forced-shutdown={OVERTIME_S} --histogram=on run",
                self.threads
            );
            self.command(&script, &options)
        })
    }

    /// Shell that has sysbench run a command of another script, which finds sysbench's own ones, on the server.
    #[must_use]
    pub fn script(&self, script: &str, command: &str) -> String {
        format!("{}\n{}", environment(), self.command(script, command))
    }

    fn command(&self, script: &str, options: &str) -> String {
        let server = client_options(SOCKET, self.rows);
        format!("{PLACE}/bin/{PROGRAM} {script} {server} {options}")
    }
}

/// What sysbench needs to start in a guest.
fn environment() -> String {
    format!("export LD_LIBRARY_PATH={PLACE}/lib LUA_PATH='{PLACE}/lua/?.lua'")
}

/// Shell that ends a server, if there is one, so that its file system can be unmounted.
#[must_use]
pub fn stop_script() -> String {
    format!(
        "if [ -s {PID} ]; then\n\
         pid=$(cat {PID})\n\
         kill $pid 2> /dev/null\n\
         tries=0\n\
         while [ -d /proc/$pid ] && [ $tries -lt 600 ]; do tries=$((tries + 1)); sleep 0.1; done\n\
         rm -f {PID}\n\
         fi"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_that_is_loaded_has_the_files_of_the_one_that_filled_them() {
        let scale = Scale {
            seconds: 3,
            warm_up_seconds: 1,
            data_bytes: 96 << 20,
            most_seconds: None,
        };
        let oltp = Oltp {
            test: String::from("read_write"),
            threads: 12,
            rows: rows(&scale),
        };
        assert!(oltp.rows * TABLES * ROW_BYTES <= scale.data_bytes);
        let prepare = oltp.prepare_script(&scale);
        assert!(FILE_OPTIONS.iter().all(|option| prepare.contains(option)));
        assert!(prepare.contains("--innodb-buffer-pool-size=25165824"));
        let measure = oltp.measure_script(1, 3);
        let runs: Vec<&str> = measure.lines().skip(1).collect();
        assert_eq!(runs.len(), 2);
        assert!(runs[0].contains("--time=1 ") && runs[1].contains("--time=3 "));
        assert!(runs[1].contains("oltp_read_write.lua"));
        assert!(runs[1].contains("--forced-shutdown=60 "));
        assert_eq!(oltp.measure_script(0, 3).lines().count(), 2);
    }

    #[test]
    fn the_server_takes_as_many_connections_as_there_are() {
        let scale = Scale {
            seconds: 3,
            warm_up_seconds: 1,
            data_bytes: 96 << 20,
            most_seconds: None,
        };
        for (threads, options) in [
            (1, "--max-connections=151 --max-prepared-stmt-count=16382 "),
            (
                512,
                "--max-connections=513 --max-prepared-stmt-count=32768 ",
            ),
        ] {
            let oltp = Oltp {
                test: String::from("read_write"),
                threads,
                rows: rows(&scale),
            };
            let prepare = oltp.prepare_script(&scale);
            assert!(prepare.contains(options), "{prepare}");
            let client = format!(" --threads={threads} ");
            assert!(oltp.measure_script(1, 3).contains(&client));
        }
    }
}

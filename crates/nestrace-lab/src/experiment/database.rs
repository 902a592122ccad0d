//! Databases that are filled here, once, for guests: a disk with them, MariaDB's server and sysbench.

use std::collections::BTreeSet;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::child_process::ends_with_us;
use crate::external_tool::{Tool, ToolError, find_program, last_lines};
use crate::guest::DiskSpec;
use crate::initramfs;
use crate::interrupt::{self, Interrupted};
use crate::plan::oltp::{self, DATABASE_DISK, FILE_OPTIONS, OWN_BYTES};
use crate::plan::{Plan, sysbench};
use crate::stack::DiskStack;

/// Programs of the disk and of its making, and the packages that have them.
pub(super) const PROGRAMS: [(&str, &str); 4] = [
    (SERVER, "mariadb-server-core"),
    ("mariadb-install-db", "mariadb-server-core"),
    ("my_print_defaults", "mariadb-client-core"),
    (CLIENT, "sysbench"),
];
const SERVER: &str = "mariadbd";
const CLIENT: &str = sysbench::PROGRAM;
/// Messages and character sets of the server.
const SHARE: &str = "/usr/share/mysql";
/// sysbench's tests.
const TESTS: &str = "/usr/share/sysbench";
const START_PATIENCE: Duration = Duration::from_secs(60);

/// The disk could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatabaseError {
    /// A program is not on this machine.
    #[error("find the program {0} for the database of a guest")]
    NoProgram(&'static str),
    /// A file.
    #[error("write {path}")]
    File {
        /// Which.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// A program failed.
    #[error("fill a database")]
    Tool(#[from] ToolError),
    /// The server ended, or does not answer.
    #[error("start {SERVER}: {0}")]
    Server(String),
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Whether a plan needs one.
pub(super) fn is_wanted(plan: &Plan) -> bool {
    plan.cells.iter().any(|cell| cell.workload.oltp().is_some())
}

/// The disk, made where it is not there yet; it stays as long as the work folder.
pub(super) fn disk(plan: &Plan, work: &Path) -> Result<Option<DiskSpec>, DatabaseError> {
    let cells = plan.cells.iter();
    let sizes = cells.filter_map(|cell| Some(cell.workload.oltp()?.rows));
    let sizes: BTreeSet<u64> = sizes.collect();
    if sizes.is_empty() {
        return Ok(None);
    }
    let image = work.join("database.raw");
    if !image.exists() {
        let folder = work.join("database");
        gather(&folder)?;
        for &rows in &sizes {
            fill(&folder.join(oltp::folder(rows)), rows)?;
        }
        pack(&folder, &image)?;
        std::fs::remove_dir_all(&folder).map_err(|source| failed(&folder, source))?;
    }
    let mut disk = DiskSpec::new(DATABASE_DISK, image, DiskStack::RAW_CACHED);
    disk.read_only = true;
    Ok(Some(disk))
}

fn failed(path: &Path, source: io::Error) -> DatabaseError {
    DatabaseError::File {
        path: path.to_owned(),
        source,
    }
}

/// Programs with their libraries, messages and tests.
fn gather(folder: &Path) -> Result<(), DatabaseError> {
    let _ = std::fs::remove_dir_all(folder);
    for part in ["bin", "lib", "share", "lua"] {
        let place = folder.join(part);
        std::fs::create_dir_all(&place).map_err(|source| failed(&place, source))?;
    }
    let copy = |from: &Path, part: &str| -> Result<(), DatabaseError> {
        let name = from.file_name().unwrap_or_default();
        let place = folder.join(part).join(name);
        let copied = std::fs::copy(from, &place);
        copied.map(|_| ()).map_err(|source| failed(&place, source))
    };
    for program in [SERVER, CLIENT] {
        let path = find_program(program).ok_or(DatabaseError::NoProgram(program))?;
        copy(&path, "bin")?;
        for library in initramfs::libraries_of_any(&path) {
            copy(&library, "lib")?;
        }
    }
    let tests = Path::new(TESTS);
    let entries = tests.read_dir().map_err(|source| failed(tests, source))?;
    for entry in entries.flatten() {
        if entry.file_name().to_string_lossy().starts_with("oltp_") {
            copy(&entry.path(), "lua")?;
        }
    }
    Tool::new("cp")
        .arg("-r")
        .args(["english", "charsets"].map(|part| Path::new(SHARE).join(part)))
        .arg(folder.join("share"))
        .run()?;
    Ok(())
}

/// Makes a database with sysbench's tables.
fn fill(data: &Path, rows: u64) -> Result<(), DatabaseError> {
    Tool::new("mariadb-install-db")
        .args(FILE_OPTIONS)
        .arg(format!("--datadir={}", data.display()))
        .args(["--auth-root-authentication-method=normal", "--skip-test-db"])
        .run()?;
    // A folder is a database.
    let tables = data.join("sbtest");
    std::fs::create_dir_all(&tables).map_err(|source| failed(&tables, source))?;
    let server = Server::start(data)?;
    let options = oltp::client_options(&server.socket().display().to_string(), rows);
    Tool::new(CLIENT)
        .arg("oltp_read_write")
        .args(options.split(' '))
        .args(["--threads=2", "prepare"])
        .run()?;
    server.stop()
}

/// A file system with what is in `folder`.
fn pack(folder: &Path, image: &Path) -> Result<(), DatabaseError> {
    let listing = Tool::new("du")
        .args(["-s", "-B1M", "--apparent-size"])
        .arg(folder)
        .run()?;
    let mib: u64 = listing
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    let unfinished = image.with_extension("new");
    Tool::new("mke2fs")
        .args(["-q", "-F", "-t", "ext4", "-d"])
        .arg(folder)
        .arg(&unfinished)
        .arg(format!("{}M", mib + mib / 8 + (OWN_BYTES >> 20)))
        .run()?;
    std::fs::rename(&unfinished, image).map_err(|source| failed(image, source))
}

/// A server on this machine; dropping it kills it.
#[derive(Debug)]
struct Server {
    child: Child,
    /// Of socket and log: a socket's path is short.
    folder: tempfile::TempDir,
}

impl Server {
    fn start(data: &Path) -> Result<Self, DatabaseError> {
        let folder = tempfile::Builder::new()
            .prefix("nestrace-database-")
            .tempdir()
            .map_err(|source| failed(&std::env::temp_dir(), source))?;
        let log_path = folder.path().join("log");
        let log = std::fs::File::create(&log_path).map_err(|source| failed(&log_path, source))?;
        let program = find_program(SERVER).ok_or(DatabaseError::NoProgram(SERVER))?;
        let mut command = Command::new(program);
        command
            .args(FILE_OPTIONS)
            .arg(format!("--datadir={}", data.display()))
            .arg(format!("--socket={}", folder.path().join("sock").display()))
            .arg(format!(
                "--pid-file={}",
                folder.path().join("pid").display()
            ))
            .args(["--skip-networking", "--skip-grant-tables"])
            // Nobody needs it back after a crash.
            .arg("--innodb-flush-log-at-trx-commit=0")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .process_group(0);
        ends_with_us(&mut command, Signal::SIGKILL);
        let child = command
            .spawn()
            .map_err(|error| DatabaseError::Server(error.to_string()))?;
        let mut server = Self { child, folder };
        let begin = Instant::now();
        while !server.socket().exists() {
            interrupt::check()?;
            let ended = matches!(server.child.try_wait(), Ok(Some(_)));
            if ended || begin.elapsed() > START_PATIENCE {
                return Err(DatabaseError::Server(server.said()));
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    fn said(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("log"));
        last_lines(&log.unwrap_or_default(), 6)
    }

    /// Ends it in order: what it leaves needs no recovery.
    fn stop(mut self) -> Result<(), DatabaseError> {
        let _ = kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM);
        let begin = Instant::now();
        while begin.elapsed() < START_PATIENCE {
            if let Ok(Some(status)) = self.child.try_wait() {
                return if status.success() {
                    Ok(())
                } else {
                    Err(DatabaseError::Server(self.said()))
                };
            }
            thread::sleep(Duration::from_millis(50));
        }
        Err(DatabaseError::Server(String::from("it does not end")))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

//! MariaDB in the guest, as the lab starts and loads it.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nestrace_lab::plan::oltp::Oltp;
use nestrace_lab::plan::workload::{self, Scale};
use nestrace_rig::guest::Guest;

/// Where the recorded file system is mounted.
pub const FOLDER: &str = workload::FOLDER;
/// How long the load lasts.
const SECONDS: u32 = 6;
/// A translated guest takes ten times as long for all.
const PATIENCE: Duration = Duration::from_secs(120);
/// The counts are as they were: the server has nothing to do.
const QUIET: Duration = Duration::from_millis(500);

/// sysbench's script that prints how often InnoDB synced its files.
const STATUS: &str = r#"
require("oltp_common")
sysbench.cmdline.commands.status = {function ()
  local connection = sysbench.sql.driver():connect()
  local found = connection:query("SHOW GLOBAL STATUS LIKE 'Innodb_data_fsyncs'")
  print("syncs " .. found:fetch_row()[2])
end}
"#;
const STATUS_PLACE: &str = "/tmp/status.lua";

/// A running server.
pub struct Server<'g> {
    guest: &'g Guest,
    oltp: Oltp,
}

impl<'g> Server<'g> {
    /// Copies the database to the recorded file system and starts its server there.
    pub fn start(guest: &'g Guest, rows: u64) -> anyhow::Result<Self> {
        let oltp = Oltp {
            test: String::from("read_write"),
            threads: 4,
            rows,
        };
        let scale = Scale {
            seconds: SECONDS,
            warm_up_seconds: 0,
            // The server caches a quarter of it.
            data_bytes: 32 << 20,
            most_seconds: None,
        };
        guest.run_ok(&oltp.prepare_script(&scale), PATIENCE)?;
        let status = tempfile::NamedTempFile::new().context("make a file for a script")?;
        fs::write(status.path(), STATUS).context("write a script")?;
        guest.put_file(status.path(), STATUS_PLACE)?;
        Ok(Self { guest, oltp })
    }

    /// Transactions of several connections for a while.
    pub fn load(&self) -> anyhow::Result<()> {
        let script = self.oltp.measure_script(0, SECONDS);
        self.guest.run_ok(&script, PATIENCE)?;
        Ok(())
    }

    /// How often InnoDB has synced its files, by its own count, once that does not grow any more.
    pub fn syncs(&self) -> anyhow::Result<u64> {
        let deadline = Instant::now() + PATIENCE;
        let mut last = self.syncs_now()?;
        loop {
            thread::sleep(QUIET);
            let now = self.syncs_now()?;
            if now == last {
                return Ok(now);
            }
            ensure!(Instant::now() < deadline, "see the server come to rest");
            last = now;
        }
    }

    fn syncs_now(&self) -> anyhow::Result<u64> {
        let script = self.oltp.script(STATUS_PLACE, "status");
        let said = self.guest.run_ok(&script, PATIENCE)?.stdout;
        let count = said.lines().find_map(|line| line.strip_prefix("syncs "));
        let count = count.and_then(|count| count.trim().parse().ok());
        count.with_context(|| format!("read the server's count of syncs: {said}"))
    }
}

//! A server on this machine that fills a database.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nestrace_rig::child_process::ends_with_us;
use nestrace_rig::external_tool::{find_program, last_lines};
use nestrace_rig::interrupt;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{DatabaseError, SERVER, failed};
use crate::plan::oltp::FILE_OPTIONS;

const START_PATIENCE: Duration = Duration::from_secs(60);

/// Dropping it kills it.
#[derive(Debug)]
pub(super) struct Server {
    child: Child,
    /// Of socket and log: a socket's path is short.
    folder: tempfile::TempDir,
}

impl Server {
    pub(super) fn start(data: &Path) -> Result<Self, DatabaseError> {
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
            // It need not survive a crash.
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

    pub(super) fn socket(&self) -> PathBuf {
        self.folder.path().join("sock")
    }

    fn said(&self) -> String {
        let log = std::fs::read_to_string(self.folder.path().join("log"));
        last_lines(&log.unwrap_or_default(), 6)
    }

    /// Ends it in order: what it leaves needs no recovery.
    pub(super) fn stop(mut self) -> Result<(), DatabaseError> {
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

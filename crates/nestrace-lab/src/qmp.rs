//! A small QMP client: connect, ask, disconnect.
//!
//! QMP serves one client at a time, so a guest of the rig has two sockets: one stays free for
//! nestrace, the other is ours, and even that one is held only while asking.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

/// QMP did not answer as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// The socket failed.
    #[error("talk to QMP at {path}")]
    Io {
        /// The socket.
        path: PathBuf,
        /// What the kernel said.
        source: io::Error,
    },
    /// QEMU closed the connection or sent something that is not JSON.
    #[error("read QMP's answer to {command}")]
    Answer {
        /// The command.
        command: String,
    },
    /// QEMU refused the command.
    #[error("have QEMU do {command}: {message}")]
    Refused {
        /// The command.
        command: String,
        /// QEMU's words.
        message: String,
    },
}

/// An open QMP connection; dropping it closes it.
#[derive(Debug)]
pub struct Qmp {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Qmp {
    /// Connects and negotiates.
    ///
    /// # Errors
    /// No socket, another client holds it for over 5 s, or QEMU does not speak QMP.
    pub fn connect(path: &Path) -> Result<Self, QmpError> {
        let failed = |source| QmpError::Io {
            path: path.to_owned(),
            source,
        };
        let stream = UnixStream::connect(path).map_err(failed)?;
        stream
            .set_read_timeout(Some(Duration::from_secs(5)))
            .map_err(failed)?;
        let mut qmp = Self {
            path: path.to_owned(),
            stream: BufReader::new(stream),
        };
        qmp.message("greeting")?;
        qmp.execute("qmp_capabilities", Value::Null)?;
        Ok(qmp)
    }

    /// Runs a command and gives its `return` value.
    ///
    /// # Errors
    /// The socket failed or QEMU refused.
    pub fn execute(&mut self, command: &str, arguments: Value) -> Result<Value, QmpError> {
        let mut request = json!({ "execute": command });
        if !arguments.is_null() {
            request["arguments"] = arguments;
        }
        let failed = |source| QmpError::Io {
            path: self.path.clone(),
            source,
        };
        writeln!(self.stream.get_mut(), "{request}").map_err(failed)?;
        loop {
            let mut answer = self.message(command)?;
            if let Some(value) = answer.get_mut("return") {
                return Ok(value.take());
            }
            if let Some(error) = answer.get("error") {
                let message = error["desc"].as_str().unwrap_or_default().to_owned();
                return Err(QmpError::Refused {
                    command: command.to_owned(),
                    message,
                });
            }
            // Everything else is an event.
        }
    }

    fn message(&mut self, command: &str) -> Result<Value, QmpError> {
        let mut line = String::new();
        let failed = |source| QmpError::Io {
            path: self.path.clone(),
            source,
        };
        self.stream.read_line(&mut line).map_err(failed)?;
        serde_json::from_str(&line).map_err(|_| QmpError::Answer {
            command: command.to_owned(),
        })
    }
}

/// QEMU's own count of one disk's requests since it started.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskStats {
    /// Reads, those that were merged into others included.
    pub reads: u64,
    /// Writes, merged ones included.
    pub writes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards (unmaps).
    pub discards: u64,
    /// How many reads, writes and discards were merged into another request.
    pub merged: u64,
    /// Failed requests of every kind.
    pub failed: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
}

impl DiskStats {
    /// Counts since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            reads: self.reads - earlier.reads,
            writes: self.writes - earlier.writes,
            flushes: self.flushes - earlier.flushes,
            discards: self.discards - earlier.discards,
            merged: self.merged - earlier.merged,
            failed: self.failed - earlier.failed,
            read_bytes: self.read_bytes - earlier.read_bytes,
            write_bytes: self.write_bytes - earlier.write_bytes,
        }
    }
}

/// `query-blockstats` for the drive `id`, from QMP's answer.
#[must_use]
pub fn disk_stats(blockstats: &Value, id: &str) -> Option<DiskStats> {
    let drives = blockstats.as_array()?;
    let is_ours = |drive: &&Value| {
        let qdev = drive["qdev"].as_str().unwrap_or_default();
        drive["device"] == id || qdev.split('/').any(|part| part == id)
    };
    let stats = &drives.iter().find(is_ours)?["stats"];
    let sum = |keys: &[&str]| {
        keys.iter()
            .map(|key| stats[*key].as_u64().unwrap_or(0))
            .sum()
    };
    Some(DiskStats {
        reads: sum(&["rd_operations"]),
        writes: sum(&["wr_operations"]),
        flushes: sum(&["flush_operations"]),
        discards: sum(&["unmap_operations"]),
        merged: sum(&["rd_merged", "wr_merged", "unmap_merged"]),
        failed: sum(&[
            "failed_rd_operations",
            "failed_wr_operations",
            "failed_flush_operations",
            "failed_unmap_operations",
        ]),
        read_bytes: sum(&["rd_bytes"]),
        write_bytes: sum(&["wr_bytes"]),
    })
}

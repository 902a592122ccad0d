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
    /// `query-blockstats` knows no such disk.
    #[error("find the disk {disk} in QMP's answer")]
    NoDisk {
        /// The disk.
        disk: String,
    },
    /// `query-blockstats` has no such count.
    #[error("find the count {key} of the disk {disk} in QMP's answer")]
    NoCount {
        /// The disk.
        disk: String,
        /// QEMU's name of the count.
        key: &'static str,
    },
}

/// QEMU takes a client at once, unless it has another one.
const GREETING: Duration = Duration::from_secs(5);
/// A snapshot of a guest's memory is written before the answer comes.
const ANSWER: Duration = Duration::from_secs(60);

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
        stream.set_read_timeout(Some(GREETING)).map_err(failed)?;
        let mut qmp = Self {
            path: path.to_owned(),
            stream: BufReader::new(stream),
        };
        qmp.message("greeting")?;
        qmp.execute("qmp_capabilities", Value::Null)?;
        let stream = qmp.stream.get_mut();
        stream.set_read_timeout(Some(ANSWER)).map_err(failed)?;
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
    /// How many of the reads were merged into another request.
    pub reads_merged: u64,
    /// How many of the writes were.
    pub writes_merged: u64,
    /// How many of the discards were.
    pub discards_merged: u64,
    /// Failed requests of every kind.
    pub failed: u64,
    /// Requests of every kind that were refused before they began.
    pub invalid: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub write_bytes: u64,
    /// Bytes discarded.
    pub discard_bytes: u64,
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
            reads_merged: self.reads_merged - earlier.reads_merged,
            writes_merged: self.writes_merged - earlier.writes_merged,
            discards_merged: self.discards_merged - earlier.discards_merged,
            failed: self.failed - earlier.failed,
            invalid: self.invalid - earlier.invalid,
            read_bytes: self.read_bytes - earlier.read_bytes,
            write_bytes: self.write_bytes - earlier.write_bytes,
            discard_bytes: self.discard_bytes - earlier.discard_bytes,
        }
    }
}

/// `query-blockstats` for the drive `id`, from QMP's answer.
///
/// Every QEMU since 4.2 sends all of these counts, so none of them may be missing.
///
/// # Errors
/// There is no such drive, or one of its counts is missing.
pub fn disk_stats(blockstats: &Value, id: &str) -> Result<DiskStats, QmpError> {
    let is_ours = |drive: &&Value| {
        let qdev = drive["qdev"].as_str().unwrap_or_default();
        drive["device"] == id || qdev.split('/').any(|part| part == id)
    };
    let drives = blockstats.as_array();
    let drive = drives.and_then(|drives| drives.iter().find(is_ours));
    let stats = &drive.ok_or_else(|| QmpError::NoDisk {
        disk: id.to_owned(),
    })?["stats"];
    let count = |key: &'static str| {
        stats[key].as_u64().ok_or_else(|| QmpError::NoCount {
            disk: id.to_owned(),
            key,
        })
    };
    Ok(DiskStats {
        reads: count("rd_operations")?,
        writes: count("wr_operations")?,
        flushes: count("flush_operations")?,
        discards: count("unmap_operations")?,
        reads_merged: count("rd_merged")?,
        writes_merged: count("wr_merged")?,
        discards_merged: count("unmap_merged")?,
        failed: count("failed_rd_operations")?
            + count("failed_wr_operations")?
            + count("failed_flush_operations")?
            + count("failed_unmap_operations")?,
        invalid: count("invalid_rd_operations")?
            + count("invalid_wr_operations")?
            + count("invalid_flush_operations")?
            + count("invalid_unmap_operations")?,
        read_bytes: count("rd_bytes")?,
        write_bytes: count("wr_bytes")?,
        discard_bytes: count("unmap_bytes")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each count has a value of its own, so that none can stand in for another.
    fn answer() -> Value {
        json!([{
            "device": "",
            "qdev": "/machine/peripheral/disk-a/virtio-backend",
            "stats": {
                "rd_operations": 1, "wr_operations": 2, "flush_operations": 3, "unmap_operations": 4,
                "rd_merged": 5, "wr_merged": 6, "unmap_merged": 7,
                "failed_rd_operations": 10, "failed_wr_operations": 20,
                "failed_flush_operations": 40, "failed_unmap_operations": 80,
                "invalid_rd_operations": 100, "invalid_wr_operations": 200,
                "invalid_flush_operations": 400, "invalid_unmap_operations": 800,
                "rd_bytes": 8, "wr_bytes": 9, "unmap_bytes": 11
            }
        }])
    }

    #[test]
    fn every_count_is_its_own() {
        let expected = DiskStats {
            reads: 1,
            writes: 2,
            flushes: 3,
            discards: 4,
            reads_merged: 5,
            writes_merged: 6,
            discards_merged: 7,
            failed: 150,
            invalid: 1500,
            read_bytes: 8,
            write_bytes: 9,
            discard_bytes: 11,
        };
        assert_eq!(disk_stats(&answer(), "disk-a").unwrap(), expected);
        assert_eq!(expected.since(&expected), DiskStats::default());
    }

    #[test]
    fn what_is_missing_is_an_error() {
        let keys: Vec<String> = answer()[0]["stats"]
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect();
        for missing in keys {
            let mut answer = answer();
            answer[0]["stats"].as_object_mut().unwrap().remove(&missing);
            match disk_stats(&answer, "disk-a") {
                Err(QmpError::NoCount { key, .. }) => assert_eq!(key, missing),
                other => panic!("{missing}: {other:?}"),
            }
        }
        let other = disk_stats(&answer(), "disk");
        assert!(matches!(other, Err(QmpError::NoDisk { .. })), "{other:?}");
    }
}

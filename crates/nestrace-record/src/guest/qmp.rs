//! Asking QEMU itself, over QMP: connect, ask, leave, all within a second.
//!
//! QMP serves one client at a time. Another one waits, without an error, until the first has gone;
//! so a greeting that does not come soon means that somebody else (libvirt) holds the monitor, and
//! the command line has to do. What comes back is bounded in time and size, because a QEMU that
//! serves a hostile guest is itself not to be trusted.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::BTreeSet;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Value, json};

use super::command_line::AGENT_PORT;
use super::socket;
pub use answers::{
    BlockCounts, BlockDevice, BlockInfo, BlockStats, CacheInfo, ImageInfo, IoThread, Iotune, Vcpu,
};
use answers::{Chardev, FdSet, Property, StatsRow};
pub use facts::Facts;

mod answers;
pub(crate) mod disk_row;
mod facts;
pub mod now;
pub mod set;

/// How long a greeting may take before the monitor counts as busy.
pub const GREETING: Duration = Duration::from_millis(300);
/// How long a whole conversation may take.
pub const CONVERSATION: Duration = Duration::from_millis(900);
/// How many serial ports are asked for their name; a guest has a handful.
const MAX_PORTS: usize = 16;
/// How many bytes QEMU may send in one conversation. A guest with 200 disks sends about 1 MiB.
const MAX_BYTES: usize = 8 << 20;
/// How many values QEMU may send in one message: each takes up to a hundred times as many bytes as it is sent in. A guest
/// with 200 disks sends 20,000.
const MAX_VALUES: usize = 1 << 17;

/// Why QMP gave no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QmpError {
    /// No process listens there, or this user may not connect.
    #[error("connect to {path}")]
    Connect {
        /// The socket.
        path: String,
        /// What the system says.
        source: io::Error,
    },
    /// Another client holds the monitor, or QEMU's main loop is stopped.
    #[error("get a greeting from {path} within {} ms: another client has the monitor, or QEMU is busy", GREETING.as_millis())]
    Busy {
        /// The socket.
        path: String,
    },
    /// The answer came too late.
    #[error("get an answer to {command} in time")]
    Timeout {
        /// The command that was asked.
        command: String,
    },
    /// The connection broke.
    #[error("talk to QEMU during {command}")]
    Broken {
        /// The command that was asked.
        command: String,
        /// What the system says.
        source: io::Error,
    },
    /// More than `MAX_BYTES`, or more than `MAX_VALUES`.
    #[error("read the answer to {command}: it is larger than {} MiB, or has more than {MAX_VALUES} values", MAX_BYTES >> 20)]
    TooLarge {
        /// The command that was asked.
        command: String,
    },
    /// It is not QMP that is spoken there.
    #[error("understand the answer to {command}")]
    NotQmp {
        /// The command that was asked, or `greeting`.
        command: String,
        /// Where the answer is not what it should be, if that is known.
        source: Option<serde_json::Error>,
    },
    /// QEMU refused the command.
    #[error("run {command}: {description}")]
    Refused {
        /// The command that was asked.
        command: String,
        /// What QEMU says.
        description: String,
    },
}

/// A connection that has been greeted. Dropping it frees the monitor.
#[derive(Debug)]
pub struct Qmp {
    stream: UnixStream,
    buffer: Vec<u8>,
    received: usize,
    deadline: Instant,
    version: String,
}

impl Qmp {
    /// Connects to the socket `path` of the process `pid` and negotiates. The connection works
    /// until [`CONVERSATION`] has passed.
    ///
    /// # Errors
    ///
    /// [`QmpError::Busy`] where no greeting comes within [`GREETING`].
    pub fn connect(pid: u32, path: &str) -> Result<Self, QmpError> {
        let begin = Instant::now();
        let busy = || QmpError::Busy {
            path: path.to_owned(),
        };
        let stream =
            socket::connect(pid, path, begin + GREETING).map_err(|source| match source.kind() {
                io::ErrorKind::TimedOut => busy(),
                _ => QmpError::Connect {
                    path: path.to_owned(),
                    source,
                },
            })?;
        Self::over(stream, path, begin)
    }

    /// Negotiates over a connection to the socket `path` that was begun at this time.
    ///
    /// # Errors
    ///
    /// As [`Self::connect`].
    pub fn over(stream: UnixStream, path: &str, begin: Instant) -> Result<Self, QmpError> {
        let busy = || QmpError::Busy {
            path: path.to_owned(),
        };
        let mut qmp = Self {
            stream,
            buffer: Vec::new(),
            received: 0,
            deadline: begin + GREETING,
            version: String::new(),
        };
        let greeting = qmp.message("greeting").map_err(|e| match e {
            QmpError::Timeout { .. } => busy(),
            other => other,
        })?;
        let hello = greeting.get("QMP").ok_or(QmpError::NotQmp {
            command: "greeting".to_owned(),
            source: None,
        })?;
        qmp.version = version_text(hello.get("version").unwrap_or(&Value::Null));
        qmp.deadline = begin + CONVERSATION;
        qmp.execute("qmp_capabilities", &Value::Null)?;
        Ok(qmp)
    }

    /// `7.2.22`, as the greeting has it.
    #[must_use]
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Runs one command and returns what it returns.
    ///
    /// # Errors
    ///
    /// [`QmpError::Refused`] with QEMU's own words, or why no answer came.
    pub fn execute(&mut self, command: &str, arguments: &Value) -> Result<Value, QmpError> {
        let request = if arguments.is_null() {
            json!({ "execute": command })
        } else {
            json!({ "execute": command, "arguments": arguments })
        };
        self.arm(command)?;
        self.stream
            .write_all(format!("{request}\n").as_bytes())
            .map_err(|source| broken(command, source))?;
        loop {
            let mut message = self.message(command)?;
            if let Some(error) = message.get("error") {
                let description = error
                    .get("desc")
                    .and_then(Value::as_str)
                    .unwrap_or("no reason given");
                return Err(QmpError::Refused {
                    command: command.to_owned(),
                    description: description.chars().take(500).collect(),
                });
            }
            // Events come in between.
            if let Some(answer) = message.get_mut("return") {
                return Ok(answer.take());
            }
        }
    }

    /// Runs one command and reads the answer into `T`.
    fn ask<T: for<'de> Deserialize<'de>>(
        &mut self,
        command: &str,
        arguments: &Value,
    ) -> Result<T, QmpError> {
        let answer = self.execute(command, arguments)?;
        serde_json::from_value(answer).map_err(|source| QmpError::NotQmp {
            command: command.to_owned(),
            source: Some(source),
        })
    }

    /// `query-blockstats`: QEMU's own count of what the guest asked for.
    ///
    /// # Errors
    ///
    /// As [`Qmp::execute`].
    pub fn block_stats(&mut self) -> Result<Vec<BlockStats>, QmpError> {
        let rows: Vec<StatsRow> = self.ask("query-blockstats", &Value::Null)?;
        Ok(rows
            .into_iter()
            .map(|row| BlockStats {
                device: row.device.filter(|d| !d.is_empty()),
                qdev: row.qdev,
                node: row.node_name,
                counts: row.stats,
            })
            .collect())
    }

    /// A text property of a device with an id; `None` where it has none, or no answer came.
    fn property(&mut self, id: &str, name: &str) -> Option<String> {
        let question = json!({ "path": format!("/machine/peripheral/{id}"), "property": name });
        match self.execute("qom-get", &question) {
            Ok(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// A numeric property of a device with an id.
    fn number(&mut self, id: &str, name: &str) -> Option<u32> {
        let question = json!({ "path": format!("/machine/peripheral/{id}"), "property": name });
        let answer = self.execute("qom-get", &question).ok()?;
        u32::try_from(answer.as_u64()?).ok()
    }

    /// The driver of the controller that a SCSI device is plugged into.
    fn controller_of(&mut self, id: &str, drivers: &[(String, String)]) -> Option<String> {
        let (_, driver) = drivers.iter().find(|(of, _)| of == id)?;
        if !driver.starts_with("scsi-") {
            return None;
        }
        // `/machine/peripheral/s0/virtio-backend/s0.0`.
        let bus = self.property(id, "parent_bus")?;
        let device: Vec<&str> = bus.split('/').take(4).collect();
        let question = json!({ "path": device.join("/"), "property": "type" });
        match self.execute("qom-get", &question) {
            Ok(Value::String(driver)) => Some(driver),
            _ => None,
        }
    }

    /// The socket behind the port that is named as the agent's, among devices with an id.
    fn agent_socket(&mut self) -> Option<String> {
        let all: Vec<Property> = self
            .ask("qom-list", &json!({ "path": "/machine/peripheral" }))
            .ok()?;
        let ports = all.iter().filter(|p| p.kind == "child<virtserialport>");
        let ports: Vec<&str> = ports.map(|p| p.name.as_str()).take(MAX_PORTS).collect();
        let port = ports
            .into_iter()
            .find(|id| self.property(id, "name").as_deref() == Some(AGENT_PORT))?;
        let chardev = self.property(port, "chardev")?;
        let chardevs: Vec<Chardev> = self.ask("query-chardev", &Value::Null).ok()?;
        let found = chardevs.into_iter().find(|c| c.label == chardev)?;
        found.socket().map(str::to_owned)
    }

    /// The next line of JSON.
    fn message(&mut self, command: &str) -> Result<Value, QmpError> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                if line.iter().all(u8::is_ascii_whitespace) {
                    continue;
                }
                let is_value = |byte: &&u8| matches!(**byte, b',' | b'{' | b'[');
                if line.iter().filter(is_value).count() > MAX_VALUES {
                    return Err(QmpError::TooLarge {
                        command: command.to_owned(),
                    });
                }
                match serde_json::from_slice(&line) {
                    Ok(message) => return Ok(message),
                    // `-qmp-pretty` spreads a message over lines: go on until it is whole. Lines that never make one
                    // would be read again for each that comes.
                    Err(e) if e.is_eof() => {
                        self.arm(command)?;
                        self.whole_message(line, command)?;
                    }
                    Err(e) => {
                        return Err(QmpError::NotQmp {
                            command: command.to_owned(),
                            source: Some(e),
                        });
                    }
                }
                continue;
            }
            self.receive(command)?;
        }
    }

    /// Collects a message that was spread over lines and puts it back as one line.
    fn whole_message(&mut self, first: Vec<u8>, command: &str) -> Result<(), QmpError> {
        let mut text = first;
        loop {
            while let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                // QEMU closes a pretty message with a brace in the first column.
                let closes = line.first() == Some(&b'}');
                text.extend_from_slice(&line);
                if closes {
                    let joined: Vec<u8> = text
                        .iter()
                        .map(|b| if matches!(b, b'\n' | b'\r') { b' ' } else { *b })
                        .collect();
                    self.buffer.splice(0..0, joined.into_iter().chain([b'\n']));
                    return Ok(());
                }
            }
            self.receive(command)?;
        }
    }

    fn receive(&mut self, command: &str) -> Result<(), QmpError> {
        self.arm(command)?;
        let mut chunk = [0; 16 << 10];
        let n = match self.stream.read(&mut chunk) {
            Ok(0) => return Err(broken(command, io::ErrorKind::UnexpectedEof.into())),
            Ok(n) => n,
            Err(e)
                if matches!(
                    e.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                ) =>
            {
                return Err(QmpError::Timeout {
                    command: command.to_owned(),
                });
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(e) => return Err(broken(command, e)),
        };
        self.received += n;
        if self.received > MAX_BYTES {
            return Err(QmpError::TooLarge {
                command: command.to_owned(),
            });
        }
        self.buffer
            .extend_from_slice(chunk.get(..n).unwrap_or_default());
        Ok(())
    }

    /// Gives the next system call what is left of the time.
    fn arm(&self, command: &str) -> Result<(), QmpError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(QmpError::Timeout {
                command: command.to_owned(),
            });
        }
        self.stream
            .set_read_timeout(Some(left))
            .map_err(|e| broken(command, e))?;
        self.stream
            .set_write_timeout(Some(left))
            .map_err(|e| broken(command, e))
    }
}

fn broken(command: &str, source: io::Error) -> QmpError {
    match source.kind() {
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => QmpError::Timeout {
            command: command.to_owned(),
        },
        _ => QmpError::Broken {
            command: command.to_owned(),
            source,
        },
    }
}

fn version_text(version: &Value) -> String {
    let part = |name: &str| {
        version
            .get("qemu")
            .and_then(|q| q.get(name))
            .and_then(Value::as_u64)
    };
    match (part("major"), part("minor"), part("micro")) {
        (Some(major), Some(minor), Some(micro)) => format!("{major}.{minor}.{micro}"),
        _ => String::new(),
    }
}

/// Asks everything, once, and leaves.
///
/// # Errors
///
/// As [`Qmp::connect`] and [`Qmp::execute`]; only `query-block` is indispensable.
pub fn ask(pid: u32, path: &str) -> Result<Facts, QmpError> {
    let mut qmp = Qmp::connect(pid, path)?;
    let text = |answer: Result<Value, QmpError>, key: &str| {
        answer
            .ok()
            .and_then(|a| a.get(key).and_then(Value::as_str).map(str::to_owned))
    };
    let nothing = Value::Null;
    let mut facts = Facts {
        blocks: qmp.ask("query-block", &nothing)?,
        version: qmp.version.clone(),
        name: text(qmp.execute("query-name", &nothing), "name"),
        uuid: text(qmp.execute("query-uuid", &nothing), "UUID")
            .filter(|u| u.chars().any(|c| !matches!(c, '0' | '-'))),
        kvm: qmp
            .execute("query-kvm", &nothing)
            .ok()
            .and_then(|a| a.get("enabled").and_then(Value::as_bool)),
        ..Facts::default()
    };
    facts.nodes = match qmp.ask("query-named-block-nodes", &json!({ "flat": true })) {
        Ok(nodes) => nodes,
        // `flat` came with 5.0.
        Err(QmpError::Refused { .. }) => qmp
            .ask("query-named-block-nodes", &nothing)
            .unwrap_or_default(),
        Err(_) => Vec::new(),
    };
    facts.stats = qmp.block_stats().unwrap_or_default();
    facts.iothreads = qmp.ask("query-iothreads", &nothing).unwrap_or_default();
    facts.vcpus = qmp.ask("query-cpus-fast", &nothing).unwrap_or_default();
    for id in facts.blocks.iter().filter_map(BlockInfo::qdev_id) {
        let question = json!({ "path": format!("/machine/peripheral/{id}"), "property": "type" });
        match qmp.execute("qom-get", &question) {
            Ok(Value::String(driver)) => facts.drivers.push((id.to_owned(), driver)),
            Ok(_) | Err(QmpError::Refused { .. }) => {}
            Err(_) => break,
        }
        if let Some(controller) = qmp.controller_of(id, &facts.drivers) {
            facts.controllers.push((id.to_owned(), controller));
        }
        if let Some(queues) = qmp.number(id, "num-queues") {
            facts.queues.push((id.to_owned(), queues));
        }
        if let Some(serial) = qmp.property(id, "serial").filter(|s| !s.is_empty()) {
            facts.serials.push((id.to_owned(), serial));
        }
    }
    let sets: Vec<FdSet> = qmp.ask("query-fdsets", &nothing).unwrap_or_default();
    facts.fd_sets = sets.iter().filter_map(FdSet::names).collect();
    facts.agent = qmp.agent_socket();
    facts.set = set::ask_about(&mut qmp, facts.blocks.iter(), &BTreeSet::new());
    Ok(facts)
}

/// Asks only for [`BlockStats`].
///
/// # Errors
///
/// As [`Qmp::connect`] and [`Qmp::execute`].
pub fn block_stats(pid: u32, path: &str) -> Result<Vec<BlockStats>, QmpError> {
    Qmp::connect(pid, path)?.block_stats()
}

#[cfg(test)]
mod tests;

//! Who else is connected to an agent's channel. A channel serves one client: others wait until it leaves.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::guest::socket;

/// How long a table of sockets is right.
const FRESH: Duration = Duration::from_millis(300);

/// Connections of all sockets, by network namespace: that of most guests is the same.
#[derive(Default)]
pub struct Neighbours(Mutex<BTreeMap<OsString, Table>>);

struct Table {
    read: Instant,
    connections: BTreeMap<String, usize>,
}

impl Neighbours {
    /// How many are connected to this socket of a process, or wait for it.
    pub fn connections(&self, pid: u32, path: &str) -> usize {
        let namespace = fs::read_link(format!("/proc/{pid}/ns/net")).unwrap_or_default();
        let mut tables = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|_, table| table.read.elapsed() < FRESH);
        let table = tables
            .entry(namespace.into_os_string())
            .or_insert_with(|| Table {
                read: Instant::now(),
                connections: socket::connections(pid),
            });
        table.connections.get(path).copied().unwrap_or(0)
    }
}

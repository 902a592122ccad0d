//! Where a recorder comes from, and how bytes go to it without waiting.

pub mod outbox;
mod port;
mod vsock;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use crate::signals::Signals;

use port::PortListener;
use vsock::VsockListener;

/// Waits for recorders.
pub enum Listener {
    Port(PortListener),
    Vsock(VsockListener),
}

impl Listener {
    /// The virtio-serial port, or this character device.
    pub fn port(path: Option<PathBuf>) -> Self {
        Self::Port(PortListener::new(path))
    }

    /// A vsock port of this guest. `allow_local`: not only for the host.
    pub fn vsock(port: u32, allow_local: bool) -> anyhow::Result<Self> {
        Ok(Self::Vsock(VsockListener::bind(port, allow_local)?))
    }

    /// Waits until somebody is at the other end; `None` after a signal.
    pub fn next_connection(&mut self, signals: &mut Signals) -> anyhow::Result<Option<Connection>> {
        match self {
            Self::Port(listener) => listener.next_connection(signals),
            Self::Vsock(listener) => listener.next_connection(signals),
        }
    }
}

/// An open port or socket; neither reading nor writing waits.
pub struct Connection {
    file: File,
}

/// What a read or a write that did not wait came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// So many bytes.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// The other side is gone.
    Gone,
}

impl Connection {
    fn new(file: File) -> Self {
        Self { file }
    }

    /// For a poll.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Reads what is there.
    pub fn read(&self, to: &mut [u8]) -> Moved {
        moved((&self.file).read(to))
    }

    /// Writes what has room.
    pub fn write(&self, bytes: &[u8]) -> Moved {
        moved((&self.file).write(bytes))
    }
}

/// A virtio-serial port without a host reads as its end, and fails with EPIPE or ENODEV.
fn moved(result: io::Result<usize>) -> Moved {
    match result {
        Ok(0) => Moved::Gone,
        Ok(n) => Moved::Bytes(n),
        Err(error) => match error.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Moved::Nothing,
            _ => Moved::Gone,
        },
    }
}

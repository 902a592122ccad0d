//! Ctrl-C, SIGTERM and SIGHUP.

use std::io;

use tokio::signal::unix::{SignalKind, signal};

/// Signals that end a recording or live figures in order.
pub struct Stop {
    interrupt: tokio::signal::unix::Signal,
    terminate: tokio::signal::unix::Signal,
    hangup: tokio::signal::unix::Signal,
}

impl Stop {
    /// Takes them over: they do not kill the program any more.
    ///
    /// # Errors
    /// The system's.
    pub fn listen() -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
        })
    }

    /// Waits for one; gives its word for a manifest.
    pub async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.interrupt.recv() => "interrupted",
            _ = self.terminate.recv() => "terminated",
            _ = self.hangup.recv() => "hangup",
        }
    }
}

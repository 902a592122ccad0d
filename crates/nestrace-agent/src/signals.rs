//! SIGTERM, SIGINT and SIGHUP as something to poll for.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

/// The signals that end the agent.
pub struct Signals {
    fd: SignalFd,
    arrived: bool,
}

impl Signals {
    /// Blocks the signals and reads them from a descriptor from now on.
    pub fn catch() -> anyhow::Result<Self> {
        let mut set = SigSet::empty();
        for signal in [Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP] {
            set.add(signal);
        }
        set.thread_block().context("block signals")?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let fd = SignalFd::with_flags(&set, flags).context("read signals")?;
        Ok(Self { fd, arrived: false })
    }

    /// Whether one came.
    pub fn arrived(&mut self) -> bool {
        self.arrived |= matches!(self.fd.read_signal(), Ok(Some(_)));
        self.arrived
    }

    /// For a poll of one's own.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    /// Sleeps for this time, or until a signal comes; whether one came.
    pub fn sleep(&mut self, time: Duration) -> bool {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, poll_timeout(time));
        self.arrived()
    }
}

/// Rounded up, so that no thread wakes before the time.
pub fn poll_timeout(time: Duration) -> PollTimeout {
    let milliseconds = time.as_micros().div_ceil(1000);
    PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
}

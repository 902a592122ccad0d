//! Where an agent is spoken to: a UNIX socket of QEMU's, or vsock.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::str::FromStr;
use std::time::{Duration, Instant};

use nestrace_trace::manifest::Guest;
use nestrace_trace::printable;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, VsockAddr, connect, getsockopt, socket as new_socket,
    sockopt,
};

use crate::guest::socket;

/// Default port of an agent. Any number would do; this one spells `ns`.
pub const DEFAULT_VSOCK_PORT: u32 = 0x6e73;

/// `--agent`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Choice {
    /// Whatever channel the guest has.
    #[default]
    Auto,
    /// None; the host alone is recorded.
    Off,
    /// This one.
    At(Address),
}

/// The host's end of a channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A socket of the process `pid`, by its path in that process' mount namespace (`@NAME` for an
    /// abstract one).
    Unix {
        /// QEMU, or this process for a path that the user gave.
        pid: u32,
        /// The path.
        path: String,
    },
    /// A guest's vsock.
    Vsock {
        /// Address of the guest; 1 is this machine itself.
        cid: u32,
        /// Where the agent listens.
        port: u32,
    },
}

impl FromStr for Choice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "give auto, off, unix:PATH or vsock:CID:PORT".to_owned();
        match text.split_once(':') {
            None if text == "auto" => Ok(Self::Auto),
            None if text == "off" => Ok(Self::Off),
            Some(("unix", path)) if path.starts_with(['/', '@']) => Ok(Self::At(Address::Unix {
                pid: std::process::id(),
                path: path.to_owned(),
            })),
            Some(("unix", _)) => Err("give the whole path of the socket: unix:/run/…".to_owned()),
            Some(("vsock", place)) => {
                let (cid, port) = place.split_once(':').ok_or_else(wrong)?;
                Ok(Self::At(Address::Vsock {
                    cid: cid.parse().map_err(|_| wrong())?,
                    port: port.parse().map_err(|_| wrong())?,
                }))
            }
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix { path, .. } => f.write_str(&printable(path)),
            Self::Vsock { cid, port } => write!(f, "vsock:{cid}:{port}"),
        }
    }
}

impl Choice {
    /// The channel of a guest; `None` where it has none or none is wanted.
    #[must_use]
    pub fn address(&self, guest: &Guest) -> Option<Address> {
        match self {
            Self::Off => None,
            Self::At(address) => Some(address.clone()),
            Self::Auto => match (&guest.agent, guest.vsock_cid) {
                (Some(path), _) => Some(Address::Unix {
                    pid: guest.pid,
                    path: path.clone(),
                }),
                (None, Some(cid)) => Some(Address::Vsock {
                    cid,
                    port: DEFAULT_VSOCK_PORT,
                }),
                (None, None) => None,
            },
        }
    }
}

impl Address {
    /// Connects within `limit`. The descriptor does not block.
    ///
    /// # Errors
    /// What the system says.
    pub fn connect(&self, limit: Duration) -> io::Result<File> {
        let deadline = Instant::now() + limit;
        match self {
            Self::Unix { pid, path } => {
                // A QEMU whose guest was paused when the recorder before left does not let the port go
                // (7.2: `host on, throttle on` for good, and nothing comes through) until the next one
                // leaves. So somebody comes and leaves first.
                drop(socket::connect(*pid, path, deadline)?);
                let stream = socket::connect(*pid, path, deadline)?;
                stream.set_nonblocking(true)?;
                Ok(File::from(OwnedFd::from(stream)))
            }
            Self::Vsock { cid, port } => vsock(*cid, *port, deadline),
        }
    }
}

fn vsock(cid: u32, port: u32, deadline: Instant) -> io::Result<File> {
    let fd = new_socket(
        AddressFamily::Vsock,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    match connect(fd.as_raw_fd(), &VsockAddr::new(cid, port)) {
        Ok(()) => return Ok(File::from(fd)),
        Err(Errno::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let left = deadline.saturating_duration_since(Instant::now());
    let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
    let mut waiting = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut waiting, timeout)? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    match getsockopt(&fd, sockopt::SocketError)? {
        0 => Ok(File::from(fd)),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_or_refused() {
        for (text, expected) in [
            ("auto", "Ok(Auto)"),
            ("off", "Ok(Off)"),
            ("vsock:3:9", "Ok(At(Vsock { cid: 3, port: 9 }))"),
            (
                "vsock:3",
                "Err(\"give auto, off, unix:PATH or vsock:CID:PORT\")",
            ),
            (
                "vsock:x:9",
                "Err(\"give auto, off, unix:PATH or vsock:CID:PORT\")",
            ),
            (
                "unix:rel",
                "Err(\"give the whole path of the socket: unix:/run/…\")",
            ),
            ("on", "Err(\"give auto, off, unix:PATH or vsock:CID:PORT\")"),
        ] {
            assert_eq!(format!("{:?}", text.parse::<Choice>()), expected, "{text}");
        }
        let unix: Choice = "unix:/a:b".parse().unwrap();
        assert!(matches!(unix, Choice::At(Address::Unix { path, .. }) if path == "/a:b"));
    }

    #[test]
    fn a_guests_own_channel_comes_first() {
        let mut guest = Guest {
            pid: 7,
            vsock_cid: Some(3),
            ..Guest::default()
        };
        let shown = |guest: &Guest| Choice::Auto.address(guest).map(|a| a.to_string());
        assert_eq!(shown(&guest), Some(format!("vsock:3:{DEFAULT_VSOCK_PORT}")));
        guest.agent = Some("/s".to_owned());
        assert_eq!(shown(&guest).as_deref(), Some("/s"));
        assert_eq!(Choice::Off.address(&guest), None);
    }
}

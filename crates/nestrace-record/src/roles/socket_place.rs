//! A socket that a helper connects to: its folder is opened while there are privileges, and held.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, VsockAddr, connect, getsockopt, socket, sockopt,
};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

use crate::agent_address::Address;
use crate::topology::namespace;

/// How long a vsock may take to connect; it is tried again.
const VSOCK: Duration = Duration::from_millis(200);

/// Where a socket is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum SocketPlace {
    /// A socket of this name in the folder; of `peer` only, where that is known.
    Unix { name: String, peer: Option<u32> },
    /// The folder could not be opened.
    Nowhere { why: String },
    /// A name without a folder.
    Abstract { name: String, peer: Option<u32> },
    /// A guest's vsock.
    Vsock { cid: u32, port: u32 },
}

impl SocketPlace {
    /// That of an address, and its folder.
    pub(super) fn of(address: &Address) -> (Self, Option<File>) {
        match address {
            Address::Vsock { cid, port } => {
                let (cid, port) = (*cid, *port);
                (Self::Vsock { cid, port }, None)
            }
            Address::Unix { pid, path } => {
                // What a user typed may be anybody's.
                let peer = (*pid != std::process::id()).then_some(*pid);
                if let Some(name) = path.strip_prefix('@') {
                    let name = name.to_owned();
                    return (Self::Abstract { name, peer }, None);
                }
                let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
                let folder = if folder.is_empty() { "/" } else { folder };
                let name = name.to_owned();
                match folder_of(peer, Path::new(folder)) {
                    Ok(folder) => (Self::Unix { name, peer }, Some(folder)),
                    Err(error) => {
                        let why = error.to_string();
                        (Self::Nowhere { why }, None)
                    }
                }
            }
        }
    }

    /// Connects, `again` once more after a first connection has been closed.
    pub(super) fn connect(&self, folder: Option<&OwnedFd>, again: bool) -> io::Result<OwnedFd> {
        let unix = |address: &UnixAddr, peer: Option<u32>| {
            if again {
                drop(unix(address, peer)?);
            }
            unix(address, peer)
        };
        match (self, folder) {
            (Self::Unix { name, peer }, Some(folder)) => {
                let flags = OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
                // Of a folder that a user typed a link is followed, as a first connection does.
                let flags = match peer {
                    Some(_) => flags,
                    None => flags.difference(OFlag::O_NOFOLLOW),
                };
                let socket = File::from(openat(folder, name.as_str(), flags, Mode::empty())?);
                if !socket.metadata()?.file_type().is_socket() {
                    return Err(io::Error::other(
                        "it is not a socket (links are not followed)",
                    ));
                }
                let short = format!("/proc/self/fd/{}", socket.as_raw_fd());
                unix(&UnixAddr::new(short.as_str())?, *peer)
            }
            (Self::Unix { .. }, None) => Err(io::ErrorKind::NotFound.into()),
            (Self::Abstract { name, peer }, _) => {
                unix(&UnixAddr::new_abstract(name.as_bytes())?, *peer)
            }
            (Self::Vsock { cid, port }, _) => vsock(*cid, *port),
            (Self::Nowhere { why }, _) => Err(io::Error::other(why.clone())),
        }
    }
}

fn folder_of(peer: Option<u32>, folder: &Path) -> io::Result<File> {
    match peer {
        Some(pid) => namespace::open_in_root(pid, folder, OFlag::O_PATH | OFlag::O_DIRECTORY),
        None => std::fs::OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
            .open(folder),
    }
}

fn unix(address: &UnixAddr, peer: Option<u32>) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(fd.as_raw_fd(), address)?;
    let found = getsockopt(&fd, sockopt::PeerCredentials)?.pid();
    match peer {
        Some(peer) if i64::from(found) != i64::from(peer) => Err(io::Error::other(format!(
            "process {found} listens there, not process {peer}"
        ))),
        _ => Ok(fd),
    }
}

fn vsock(cid: u32, port: u32) -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let fd = socket(AddressFamily::Vsock, SockType::Stream, flags, None)?;
    match connect(fd.as_raw_fd(), &VsockAddr::new(cid, port)) {
        Ok(()) => return Ok(fd),
        Err(Errno::EINPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let timeout = PollTimeout::try_from(VSOCK).unwrap_or(PollTimeout::ZERO);
    let mut waiting = [PollFd::new(fd.as_fd(), PollFlags::POLLOUT)];
    if poll(&mut waiting, timeout)? == 0 {
        return Err(io::ErrorKind::TimedOut.into());
    }
    match getsockopt(&fd, sockopt::SocketError)? {
        0 => Ok(fd),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

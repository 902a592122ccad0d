//! vsock: the agent listens, the recorder on the host connects.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, VsockAddr, accept4, bind, getpeername, listen,
    socket,
};

use super::Connection;
use crate::signals::Signals;

/// Address of the host, as every guest sees it.
const HOST: u32 = libc::VMADDR_CID_HOST;

/// A listening socket.
pub struct VsockListener {
    socket: OwnedFd,
    allow_local: bool,
}

impl VsockListener {
    pub fn bind(port: u32, allow_local: bool) -> anyhow::Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let socket = socket(AddressFamily::Vsock, SockType::Stream, flags, None)
            .context("open a vsock socket (is the guest's vsock device there?)")?;
        let address = VsockAddr::new(libc::VMADDR_CID_ANY, port);
        bind(socket.as_raw_fd(), &address).with_context(|| format!("take vsock port {port}"))?;
        listen(&socket, Backlog::new(1).context("listen")?).context("listen")?;
        eprintln!("nestrace-agent: listening on vsock port {port}");
        Ok(Self {
            socket,
            allow_local,
        })
    }

    pub fn next_connection(&mut self, signals: &mut Signals) -> anyhow::Result<Option<Connection>> {
        loop {
            if signals.arrived() {
                return Ok(None);
            }
            let mut fds = [
                PollFd::new(self.socket.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            ];
            let _ = poll(&mut fds, PollTimeout::NONE);
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let accepted = match accept4(self.socket.as_raw_fd(), flags) {
                // SAFETY: accept4 has just returned this descriptor; it has no other owner.
                Ok(fd) => unsafe { OwnedFd::from_raw_fd(fd) },
                Err(Errno::EAGAIN | Errno::EINTR | Errno::ECONNABORTED) => continue,
                Err(error) => return Err(error).context("accept a connection"),
            };
            if self.is_welcome(&accepted) {
                return Ok(Some(Connection::new(File::from(accepted))));
            }
        }
    }

    /// Any process of the guest could connect over the loopback and read all I/O.
    fn is_welcome(&self, socket: &OwnedFd) -> bool {
        let peer = getpeername::<VsockAddr>(socket.as_raw_fd()).map(|address| address.cid());
        match peer {
            Ok(HOST) => true,
            Ok(_) if self.allow_local => true,
            Ok(cid) => {
                eprintln!(
                    "nestrace-agent: refused a connection from CID {cid}, which is not the host; \
                     --allow-local takes it"
                );
                false
            }
            Err(_) => false,
        }
    }
}

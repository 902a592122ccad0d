//! The virtio-serial port.
//!
//! It can be plugged in after the agent was started, and while its host's end is closed it reads as
//! at its end (`POLLHUP`), so a plain poll would return at once. An edge-triggered epoll sleeps until the
//! host connects: the driver wakes waiters then (`VIRTIO_CONSOLE_PORT_OPEN`).

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use nestrace_wire::PORT_NAME;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::Connection;
use crate::signals::Signals;

const PORTS: &str = "/sys/class/virtio-ports";
/// How often a port that is not there is looked for.
const LOOK: Duration = Duration::from_secs(1);
/// How often a port with a closed other end is looked at, should a wake-up be missed.
const LOOK_AT_HOST: u16 = 1000;

/// Opens the port and waits for its host's end. The port stays open from one recorder to the next: what
/// the next one sends at once would be thrown away while it is closed.
pub struct PortListener {
    wanted: Option<PathBuf>,
    file: Option<File>,
    said: Option<String>,
}

impl PortListener {
    pub fn new(wanted: Option<PathBuf>) -> Self {
        Self {
            wanted,
            file: None,
            said: None,
        }
    }

    pub fn next_connection(&mut self, signals: &mut Signals) -> anyhow::Result<Option<Connection>> {
        loop {
            if signals.arrived() {
                return Ok(None);
            }
            if self.file.is_none() {
                match self.open() {
                    Ok(file) => self.file = Some(file),
                    Err(reason) => self.say(reason),
                }
            }
            if let Some(file) = &self.file {
                match wait_for_host(file, signals)? {
                    Host::Connected => {
                        let file = file.try_clone().context("hold the port")?;
                        return Ok(Some(Connection::new(file)));
                    }
                    Host::Signal => return Ok(None),
                    Host::PortGone => self.file = None,
                }
            }
            if signals.sleep(LOOK) {
                return Ok(None);
            }
        }
    }

    fn open(&mut self) -> Result<File, String> {
        let path = match &self.wanted {
            Some(path) => path.clone(),
            None => find(Path::new(PORTS), Path::new("/dev"))
                .ok_or_else(|| format!("waiting for a virtio-serial port named {PORT_NAME}"))?,
        };
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY)
            .open(&path);
        match file {
            Ok(file) => {
                self.say(format!("serving {}", path.display()));
                Ok(file)
            }
            Err(error) => Err(format!("waiting for {}: {error}", path.display())),
        }
    }

    /// Each thing once in a row.
    fn say(&mut self, what: String) {
        if self.said.as_ref() != Some(&what) {
            eprintln!("nestrace-agent: {what}");
            self.said = Some(what);
        }
    }
}

enum Host {
    Connected,
    PortGone,
    Signal,
}

fn wait_for_host(file: &File, signals: &mut Signals) -> anyhow::Result<Host> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC).context("wait for the port")?;
    let edge = EpollFlags::EPOLLIN | EpollFlags::EPOLLET;
    // A plain file or a terminal given by --port may refuse epoll; it has no other end to wait for.
    if epoll.add(file, EpollEvent::new(edge, 0)).is_err() {
        return Ok(Host::Connected);
    }
    epoll
        .add(signals.as_fd(), EpollEvent::new(EpollFlags::EPOLLIN, 1))
        .context("wait for signals")?;
    loop {
        let mut fds = [PollFd::new(file.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).context("look at the port")?;
        let seen = fds[0].revents().unwrap_or(PollFlags::empty());
        if !seen.contains(PollFlags::POLLHUP) {
            return Ok(Host::Connected);
        }
        if seen.contains(PollFlags::POLLERR) || is_unplugged(file) {
            return Ok(Host::PortGone);
        }
        let mut events = [EpollEvent::empty(); 2];
        match epoll.wait(&mut events, EpollTimeout::from(LOOK_AT_HOST)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => return Err(error).context("wait for the port"),
        }
        if signals.arrived() {
            return Ok(Host::Signal);
        }
    }
}

/// Reading a port without a host gives the end of the file; one that was unplugged, an error. Nothing is
/// read: the host may have come by now, and its first byte would be missing.
fn is_unplugged(mut file: &File) -> bool {
    match io::Read::read(&mut file, &mut []) {
        Ok(_) => false,
        Err(error) => error.raw_os_error() == Some(libc::ENODEV),
    }
}

/// The device node of the port with the agent's name. sysfs has it without udev's help.
fn find(ports: &Path, dev: &Path) -> Option<PathBuf> {
    let mut folders: Vec<PathBuf> = fs::read_dir(ports)
        .ok()?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    folders.sort();
    let port = folders.iter().find(|folder| {
        fs::read_to_string(folder.join("name")).is_ok_and(|name| name.trim() == PORT_NAME)
    })?;
    Some(dev.join(port.file_name()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_found_by_its_name() {
        let root = tempfile::tempdir().unwrap();
        let ports = root.path().join("virtio-ports");
        for (port, name) in [
            ("vport1p1", "org.qemu.guest_agent.0\n"),
            ("vport2p3", "org.nestrace.agent.0\n"),
        ] {
            fs::create_dir_all(ports.join(port)).unwrap();
            fs::write(ports.join(port).join("name"), name).unwrap();
        }
        // A console has no name.
        fs::create_dir_all(ports.join("vport0p0")).unwrap();
        assert_eq!(
            find(&ports, Path::new("/dev")),
            Some("/dev/vport2p3".into())
        );
        assert_eq!(find(Path::new("/nonexistent"), Path::new("/dev")), None);
    }
}

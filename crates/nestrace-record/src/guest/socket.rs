//! QEMU's UNIX sockets: which path a descriptor listens on, and connecting to a socket that may lie
//! in another mount namespace, without ever waiting longer than told.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_socket, socket,
};

use super::command_line::Endpoint;
use super::process::{OpenFiles, Process};
use crate::topology::namespace;

/// A row of `/proc/PID/net/unix`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Row {
    inode: u64,
    listens: bool,
    path: String,
}

/// `__SO_ACCEPTCON` in the column `Flags`.
const LISTENS: u64 = 0x1_0000;

fn parse_net_unix(text: &str) -> Vec<Row> {
    text.lines()
        .skip(1)
        .filter_map(|line| {
            // Num RefCount Protocol Flags Type St Inode Path; only the path may hold spaces.
            let mut rest = line.trim_start();
            let mut fields = Vec::with_capacity(7);
            for _ in 0..7 {
                let (field, tail) = rest.split_once(' ').unwrap_or((rest, ""));
                fields.push(field);
                rest = tail.trim_start();
            }
            let flags = u64::from_str_radix(fields.get(3)?, 16).ok()?;
            Some(Row {
                inode: fields.get(6)?.parse().ok()?,
                listens: flags & LISTENS != 0,
                path: rest.to_owned(),
            })
        })
        .collect()
}

/// The path of an endpoint of QEMU's, absolute, in QEMU's mount namespace (`@NAME` for an abstract
/// socket). A descriptor's path is that of the listening socket behind it.
#[must_use]
pub fn path_of(endpoint: &Endpoint, process: &Process, open: &OpenFiles) -> Option<String> {
    match endpoint {
        Endpoint::Path(path) if path.starts_with('@') => Some(path.clone()),
        Endpoint::Path(path) => Some(process.absolute(path)),
        Endpoint::Fd(fd) => {
            let inode = open.sockets.get(fd)?;
            let row = table(process)
                .into_iter()
                .find(|r| r.inode == *inode && r.listens)?;
            (!row.path.is_empty()).then(|| process.absolute(&row.path))
        }
    }
}

/// The socket that the process listens on and whose file name contains `name`: libvirt names the
/// sockets of its channels so, and hands them over as descriptors.
#[must_use]
pub fn listening(process: &Process, open: &OpenFiles, name: &str) -> Option<String> {
    let is_ours = |row: &Row| row.listens && open.sockets.values().any(|i| *i == row.inode);
    let named = |row: &Row| {
        let file = row.path.rsplit('/').next().unwrap_or_default();
        file.contains(name)
    };
    let row = table(process)
        .into_iter()
        .find(|row| is_ours(row) && named(row))?;
    Some(match row.path.strip_prefix('@') {
        Some(_) => row.path,
        None => process.absolute(&row.path),
    })
}

fn table(process: &Process) -> Vec<Row> {
    let table = fs::read(process.proc_path("net/unix")).unwrap_or_default();
    parse_net_unix(&String::from_utf8_lossy(&table))
}

/// Connects to a UNIX socket of the process `pid`, by its path in that process' mount namespace.
/// Abstract names (`@NAME`) are looked up in the caller's network namespace.
///
/// # Errors
///
/// What the system says; `TimedOut` where the server's queue stays full until the deadline.
pub fn connect(pid: u32, path: &str, deadline: Instant) -> io::Result<UnixStream> {
    let (address, _directory) = address(pid, path)?;
    let fd: OwnedFd = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    loop {
        match connect_socket(fd.as_raw_fd(), &address) {
            Ok(()) => break,
            // The server's backlog is full: it serves somebody else.
            Err(Errno::EAGAIN | Errno::EINTR) if Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(10))
            }
            Err(Errno::EAGAIN) => return Err(io::ErrorKind::TimedOut.into()),
            Err(e) => return Err(e.into()),
        }
    }
    let stream = UnixStream::from(fd);
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The address, and the directory that must stay open while it is used: going through a descriptor
/// of the directory keeps the address short (108 bytes) and within QEMU's root.
fn address(pid: u32, path: &str) -> io::Result<(UnixAddr, Option<File>)> {
    if let Some(name) = path.strip_prefix('@') {
        return Ok((UnixAddr::new_abstract(name.as_bytes())?, None));
    }
    let (parent, name) = path.rsplit_once('/').ok_or(io::ErrorKind::InvalidInput)?;
    let parent = if parent.is_empty() { "/" } else { parent };
    let directory =
        namespace::open_in_root(pid, Path::new(parent), OFlag::O_PATH | OFlag::O_DIRECTORY)?;
    let short = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    Ok((UnixAddr::new(short.as_str())?, Some(directory)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn the_table_of_unix_sockets() {
        let text = "Num       RefCount Protocol Flags    Type St Inode Path\n\
                    ffff: 00000002 00000000 00010000 0001 01 1234 /run/with space\n\
                    ffff: 00000003 00000000 00000000 0001 03  99\n\
                    broken\n";
        let rows = parse_net_unix(text);
        assert_eq!(
            rows[0],
            Row {
                inode: 1234,
                listens: true,
                path: "/run/with space".into()
            }
        );
        assert_eq!(
            rows[1],
            Row {
                inode: 99,
                listens: false,
                path: String::new()
            }
        );
        assert_eq!(rows.len(), 2);
    }

    #[test]
    fn a_full_queue_is_given_up_in_time() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).expect("bind");
        nix::sys::socket::listen(
            &listener,
            nix::sys::socket::Backlog::new(0).expect("backlog"),
        )
        .expect("listen");
        let path = path.to_str().expect("UTF-8");
        let begin = Instant::now();
        let deadline = begin + Duration::from_millis(200);
        let mut held = Vec::new();
        let error = loop {
            match connect(std::process::id(), path, deadline) {
                Ok(stream) => held.push(stream),
                Err(e) => break e,
            }
            assert!(held.len() < 64, "the queue never filled");
        };
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!(Instant::now() >= deadline);
        // Many times the deadline: the machine may be busy.
        assert!(begin.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn long_paths_connect() {
        let directory = tempfile::tempdir().expect("a directory");
        let deep = directory.path().join("d".repeat(120));
        fs::create_dir(&deep).expect("mkdir");
        let handle = File::open(&deep).expect("open");
        let _listener =
            UnixListener::bind(format!("/proc/self/fd/{}/s", handle.as_raw_fd())).expect("bind");
        let path = deep.join("s");
        connect(
            std::process::id(),
            path.to_str().expect("UTF-8"),
            Instant::now() + Duration::from_secs(1),
        )
        .expect("connects");
    }
}

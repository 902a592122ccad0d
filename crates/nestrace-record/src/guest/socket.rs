//! QEMU's UNIX sockets: which path a descriptor listens on, and connecting to a socket that may lie
//! in another mount namespace, without ever waiting longer than allowed.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use nestrace_probes::proc_file;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_socket, getsockopt, socket,
    sockopt,
};

use super::command_line::Endpoint;
use super::process::{self, Process};
use crate::topology::namespace;
use crate::topology::open_files::{self, OpenFiles};

/// A row of `/proc/PID/net/unix`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The socket.
    pub inode: u64,
    /// It waits for connections.
    pub listens: bool,
    /// Where it was bound, as the process wrote it; `@NAME` for an abstract one.
    pub path: String,
}

/// `__SO_ACCEPTCON` in the column `Flags`.
const LISTENS: u64 = 0x1_0000;

/// The rows of `/proc/PID/net/unix`. Lines that are not understood are left out.
#[must_use]
pub fn parse_net_unix(text: &str) -> Vec<Row> {
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

/// How many are connected to each socket in the network namespace of the process `pid`, or wait for it, by the path that it
/// was bound to.
#[must_use]
pub fn connections(pid: u32) -> BTreeMap<String, usize> {
    let process = Process {
        pid,
        ..Process::default()
    };
    let mut found = BTreeMap::new();
    // A connection's end at the server has the path of the socket that listens.
    for row in table(&process) {
        if !row.listens && !row.path.is_empty() {
            *found.entry(row.path).or_default() += 1;
        }
    }
    found
}

fn table(process: &Process) -> Vec<Row> {
    let table = proc_file::read(process.proc_path("net/unix"), proc_file::MAX_NET_UNIX);
    table.map_or_else(|_| Vec::new(), |table| parse_net_unix(&table.text()))
}

/// Connects to a UNIX socket of the process `pid`, by its path in that process' mount namespace.
/// Abstract names (`@NAME`) are looked up in the caller's network namespace.
///
/// The last part of the path has to be the socket itself, and the process has to listen on it: whoever can write into its
/// folder diverts nothing. Of the caller's own process any path is taken: that is what a user typed.
///
/// # Errors
///
/// What the system says; `TimedOut` where the server's queue stays full until the deadline; `PermissionDenied` where
/// another process listens there.
pub fn connect(pid: u32, path: &str, deadline: Instant) -> io::Result<UnixStream> {
    loop {
        let attempt = match CONNECTOR.get() {
            Some(connector) => connector(pid, path),
            None => connect_at_once(pid, path),
        };
        match attempt {
            // The server's backlog is full: it serves somebody else.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() >= deadline {
                    return Err(io::ErrorKind::TimedOut.into());
                }
                thread::sleep(Duration::from_millis(10));
            }
            done => return done,
        }
    }
}

/// Connects to a socket at once, or fails.
pub type Connector = Box<dyn Fn(u32, &str) -> io::Result<UnixStream> + Send + Sync>;

/// Who connects for this process, where it may not itself.
static CONNECTOR: OnceLock<Connector> = OnceLock::new();

/// From now on this connects, for good.
pub fn connect_by(connector: Connector) {
    // There is one at most.
    let _ = CONNECTOR.set(connector);
}

/// [`connect`] without waiting.
///
/// # Errors
/// As [`connect`]; `WouldBlock` where the server's queue is full.
pub fn connect_at_once(pid: u32, path: &str) -> io::Result<UnixStream> {
    let is_own = pid == std::process::id();
    let (address, _socket) = if is_own {
        address(path)?
    } else {
        address_of(pid, path)?
    };
    let fd: OwnedFd = socket(
        AddressFamily::Unix,
        SockType::Stream,
        SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK,
        None,
    )?;
    loop {
        match connect_socket(fd.as_raw_fd(), &address) {
            Ok(()) => break,
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let stream = UnixStream::from(fd);
    if !is_own {
        check_peer(&stream, pid, path)?;
    }
    stream.set_nonblocking(false)?;
    Ok(stream)
}

/// The address of a socket of another process, and the descriptor that must stay open while it is used: going through it
/// keeps the address short (108 bytes), within the process' root, and on the inode that was looked at.
fn address_of(pid: u32, path: &str) -> io::Result<(UnixAddr, Option<File>)> {
    if let Some(name) = path.strip_prefix('@') {
        return Ok((UnixAddr::new_abstract(name.as_bytes())?, None));
    }
    let socket = namespace::open_in_root(pid, Path::new(path), OFlag::O_PATH | OFlag::O_NOFOLLOW)?;
    if !socket.metadata()?.file_type().is_socket() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "it is not a socket (links are not followed)",
        ));
    }
    let short = format!("/proc/self/fd/{}", socket.as_raw_fd());
    Ok((UnixAddr::new(short.as_str())?, Some(socket)))
}

/// The address of a path that a user typed.
fn address(path: &str) -> io::Result<(UnixAddr, Option<File>)> {
    if let Some(name) = path.strip_prefix('@') {
        return Ok((UnixAddr::new_abstract(name.as_bytes())?, None));
    }
    let (parent, name) = path.rsplit_once('/').ok_or(io::ErrorKind::InvalidInput)?;
    let parent = if parent.is_empty() { "/" } else { parent };
    let directory = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(parent)?;
    let short = format!("/proc/self/fd/{}/{name}", directory.as_raw_fd());
    Ok((UnixAddr::new(short.as_str())?, Some(directory)))
}

/// The process has to be the one that listens, or to have been given the socket by one that is no other guest's: libvirt
/// makes QEMU's sockets and hands them over.
fn check_peer(stream: &UnixStream, pid: u32, path: &str) -> io::Result<()> {
    let peer = getsockopt(stream, sockopt::PeerCredentials)?;
    let peer_pid = u32::try_from(peer.pid()).unwrap_or(0);
    if peer_pid == pid {
        return Ok(());
    }
    let is_trusted = peer.uid() == 0 || Some(peer.uid()) == process::user_of(pid);
    if is_trusted && !process::has_qemu_name(peer_pid) && has_been_given(pid, path) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!("process {peer_pid} listens there, not process {pid}"),
    ))
}

/// Whether the process holds a listening socket that was bound to a path with this file name.
fn has_been_given(pid: u32, path: &str) -> bool {
    let process = Process {
        pid,
        ..Process::default()
    };
    let Ok(open) = open_files::open_files(pid) else {
        return false;
    };
    let file_name = |path: &str| path.rsplit('/').next().unwrap_or_default().to_owned();
    table(&process).iter().any(|row| {
        row.listens
            && file_name(&row.path) == file_name(path)
            && open.sockets.values().any(|inode| *inode == row.inode)
    })
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
        std::fs::create_dir(&deep).expect("mkdir");
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

    #[test]
    fn who_waits_counts_as_connected() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).expect("bind");
        let n = || {
            let all = connections(std::process::id());
            all.get(path.to_str().expect("UTF-8")).copied().unwrap_or(0)
        };
        assert_eq!(n(), 0);
        let first = UnixStream::connect(&path).expect("connects");
        let accepted = listener.accept().expect("somebody is there");
        assert_eq!(n(), 1);
        let second = UnixStream::connect(&path).expect("connects");
        assert_eq!(n(), 2);
        drop((first, accepted));
        assert_eq!(n(), 1);
        drop(second);
    }

    /// A process that listens on `socket` in `folder`, by a Python of its own.
    fn listener(folder: &Path) -> (std::process::Child, std::path::PathBuf) {
        let path = folder.join("socket");
        let script = "import os,socket,sys\ns=socket.socket(socket.AF_UNIX)\np=sys.argv[1]\ns.bind(p+'~')\n\
                      s.listen(5)\nos.rename(p+'~',p)\nwhile True:\n  c=s.accept()[0]\n";
        let child = std::process::Command::new("python3")
            .args(["-c", script])
            .arg(&path)
            .spawn()
            .expect("python3 runs");
        let deadline = Instant::now() + Duration::from_secs(20);
        while !path.exists() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(20));
        }
        (child, path)
    }

    #[test]
    fn neither_a_link_nor_the_socket_of_another_process_is_connected_to() {
        let (ours, theirs) = (
            tempfile::tempdir().expect("a"),
            tempfile::tempdir().expect("b"),
        );
        let (mut guest, socket) = listener(ours.path());
        let (mut other, others) = listener(theirs.path());
        let link = ours.path().join("link");
        std::os::unix::fs::symlink(&others, &link).expect("a link");
        let try_one = |path: &Path| {
            let deadline = Instant::now() + Duration::from_secs(5);
            let connected = connect(guest.id(), path.to_str().expect("UTF-8"), deadline);
            connected.map(drop).map_err(|error| error.to_string())
        };
        let results = [&socket, &link, &others].map(|path| try_one(path));
        let expected = [
            Ok(()),
            Err("it is not a socket (links are not followed)".to_owned()),
            Err(format!(
                "process {} listens there, not process {}",
                other.id(),
                guest.id()
            )),
        ];
        for child in [&mut guest, &mut other] {
            child.kill().expect("it runs");
            child.wait().expect("it ends");
        }
        assert_eq!(results, expected);
    }
}

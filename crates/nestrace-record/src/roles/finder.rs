//! The finder: looks at processes, programs, monitors and images, which are made by whoever owns them, and says what it found.
//!
//! It runs under a user id of its own. It may read every process and file (`CAP_SYS_PTRACE`, `CAP_DAC_READ_SEARCH`) and write
//! none; the monitors' sockets are connected by the process that started it, which lets it connect to what QEMUs and
//! processes of ordinary users listen on only. What it says is bounded in size and time, and typed.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use caps::Capability;
use nestrace_probes::block_device;
use nestrace_stuck::facts::Facts;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::resource::{Resource, setrlimit};
use nix::unistd::{Uid, pipe2};
use serde::{Deserialize, Serialize};

use super::Helper;
use super::channel::{Channel, Received};
use crate::guest::{DiscoverError, Discovery, Selection, discover, process, select, socket};
use crate::qemu_binary::{QemuBinary, find_qemu};
use crate::sandbox::system_calls::Role;
use crate::sandbox::{Sandbox, User};
use crate::stuck::{asleep, sample};

/// What it found has at most so many bytes: 1,000 guests with ten disks have 5 MiB.
const MAX_FOUND: u64 = 64 << 20;
/// How long it may take: a look has its own limits, which are far below.
const LIMIT: Duration = Duration::from_secs(30);
/// Memory that it may write to, its threads' stacks included.
const MAX_DATA: u64 = 1 << 30;
const MAX_PROCESSOR_SECONDS: u64 = 30;
const MAX_THREADS: u64 = 1024;

/// What the finder is asked for. What it found goes into the pipe that comes beside it.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    task: Task,
    /// It is this user from now on.
    user: Option<u32>,
}

#[derive(Debug, Serialize, Deserialize)]
enum Task {
    /// Guests, and what their programs' tables say, if that is wanted too.
    Guests {
        selection: Selection,
        with_programs: bool,
    },
    /// Each QEMU's program.
    Programs,
    /// What guests have in flight, looked at twice.
    InFlight {
        selection: Selection,
        interval: Duration,
    },
}

/// A socket that the finder wants to be connected to.
#[derive(Debug, Serialize, Deserialize)]
struct Connect {
    pid: u32,
    path: String,
}

/// Why there is no connection; the connection comes beside `None`.
type Refusal = Option<(Option<i32>, String)>;

/// What it found.
#[derive(Debug, Serialize, Deserialize)]
enum Found {
    All(Box<Discovery>),
    Programs(Vec<QemuBinary>),
    InFlight(Box<Facts>),
    UnknownGuest {
        wanted: String,
        running: Vec<String>,
    },
    AmbiguousGuest {
        wanted: String,
        pids: Vec<u32>,
    },
    Failed(String),
}

/// [`discover`] in a process of its own, which reads the programs' tables too where they are wanted; this one asks device
/// mapper.
///
/// # Errors
/// As [`discover`]; [`DiscoverError::Finder`] where that process fails.
pub fn discover_apart(
    selection: &Selection,
    with_programs: bool,
) -> Result<Discovery, DiscoverError> {
    let task = Task::Guests {
        selection: selection.clone(),
        with_programs,
    };
    match find(task).map_err(DiscoverError::Finder)? {
        Found::All(mut found) => {
            // Device mapper says it to `CAP_SYS_ADMIN` alone, which the finder lacks.
            let devices = &mut found.topology.devices;
            devices.iter_mut().for_each(block_device::ask_mapper);
            Ok(*found)
        }
        other => Err(other.error()),
    }
}

/// What the chosen guests have in flight: two samples `interval` apart, by a process of its own, with what only this one may
/// read ([`asleep`]).
///
/// # Errors
/// As [`discover`]; [`DiscoverError::Finder`] where that process fails.
pub fn in_flight_apart(selection: &Selection, interval: Duration) -> Result<Facts, DiscoverError> {
    let task = Task::InFlight {
        selection: selection.clone(),
        interval,
    };
    match find(task).map_err(DiscoverError::Finder)? {
        Found::InFlight(mut facts) => {
            asleep::add(&mut facts);
            Ok(*facts)
        }
        other => Err(other.error()),
    }
}

impl Found {
    /// Where it is no result.
    fn error(self) -> DiscoverError {
        match self {
            Self::All(_) | Self::Programs(_) | Self::InFlight(_) => {
                DiscoverError::Finder(io::ErrorKind::InvalidData.into())
            }
            Self::UnknownGuest { wanted, running } => {
                DiscoverError::UnknownGuest { wanted, running }
            }
            Self::AmbiguousGuest { wanted, pids } => DiscoverError::AmbiguousGuest { wanted, pids },
            Self::Failed(why) => DiscoverError::Proc(io::Error::other(why)),
        }
    }
}

impl From<DiscoverError> for Found {
    fn from(error: DiscoverError) -> Self {
        match error {
            DiscoverError::UnknownGuest { wanted, running } => {
                Self::UnknownGuest { wanted, running }
            }
            DiscoverError::AmbiguousGuest { wanted, pids } => Self::AmbiguousGuest { wanted, pids },
            DiscoverError::Proc(error) | DiscoverError::Finder(error) => {
                Self::Failed(error.to_string())
            }
        }
    }
}

/// [`find_qemu`] in a process of its own.
///
/// # Errors
/// What the system says, or that process.
pub fn find_qemu_apart() -> io::Result<Vec<QemuBinary>> {
    match find(Task::Programs)? {
        Found::Programs(programs) => Ok(programs),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}

fn find(task: Task) -> io::Result<Found> {
    let chosen = match &task {
        Task::Guests {
            selection: Selection::Named(names),
            ..
        }
        | Task::InFlight {
            selection: Selection::Named(names),
            ..
        } => names
            .iter()
            .filter_map(|name| select::pid_of(name))
            .collect(),
        _ => Vec::new(),
    };
    let user = match Uid::effective().is_root() {
        true => Some(User::of_its_own()?.uid),
        false => None,
    };
    let (found, into) = pipe2(OFlag::O_CLOEXEC)?;
    let (channel, mut child) = Helper::Finder.start_as_child()?;
    let order = Order { task, user };
    channel.send(&order, &[into.as_fd()])?;
    drop(into);
    let bytes = serve(&channel, &File::from(found), &chosen);
    // A look that hangs is no reason to wait for it.
    let _ = child.kill();
    let _ = child.wait();
    Ok(serde_json::from_slice(&bytes?)?)
}

/// Connects for the finder until it has said all that it found.
fn serve(channel: &Channel, found: &File, chosen: &[u32]) -> io::Result<Vec<u8>> {
    let deadline = Instant::now() + LIMIT;
    let mut bytes = Vec::new();
    let mut part = vec![0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
        let mut waiting = [
            PollFd::new(channel.as_fd(), PollFlags::POLLIN),
            PollFd::new(found.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut waiting, timeout) {
            Ok(0) => return Err(io::ErrorKind::TimedOut.into()),
            Ok(_) => {}
            // A signal: the deadline stays.
            Err(Errno::EINTR) => continue,
            Err(error) => return Err(error.into()),
        }
        let [asked, has_found] = waiting.map(|fd| fd.any().unwrap_or(false));
        if has_found {
            let mut reader = found;
            match reader.read(&mut part)? {
                0 => return Ok(bytes),
                n => bytes.extend_from_slice(part.get(..n).unwrap_or_default()),
            }
            if bytes.len() as u64 > MAX_FOUND {
                return Err(io::Error::other("it found too much"));
            }
        } else if asked {
            let Some((Connect { pid, path }, _)): Option<Received<Connect>> = channel.receive()?
            else {
                // Gone without a word: the pipe says so too.
                return Err(io::Error::other("it ended without a result"));
            };
            answer(channel, connected(pid, &path, chosen))?;
        }
    }
}

fn answer(channel: &Channel, connected: io::Result<UnixStream>) -> io::Result<()> {
    match connected {
        Ok(stream) => channel.send(&Refusal::None, &[stream.as_fd()]),
        Err(error) => channel.send(&Some((error.raw_os_error(), error.to_string())), &[]),
    }
}

/// A finder that was taken over must not reach what else listens on this machine: services of root, but for QEMUs.
fn connected(pid: u32, path: &str, chosen: &[u32]) -> io::Result<UnixStream> {
    let is_root = process::user_of(pid).is_none_or(|user| user == 0);
    if is_root && !chosen.contains(&pid) && !process::has_qemu_name(pid) {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    socket::connect_at_once(pid, path)
}

/// The finder's life.
pub(super) fn run(channel: Channel) -> io::Result<()> {
    let Some((Order { task, user }, with)) = channel.receive()? else {
        return Ok(());
    };
    let into = with.into_iter().next();
    let mut into = File::from(into.ok_or(io::ErrorKind::InvalidData)?);
    // libc may need more for this than is allowed below.
    select::learn_trusted_users();
    limit(user.is_some())?;
    let user = user.map(User::of_id);
    // The last: reading an image's header is no access to it (`O_NOATIME`).
    let kept = [
        Capability::CAP_SYS_PTRACE,
        Capability::CAP_DAC_READ_SEARCH,
        Capability::CAP_FOWNER,
    ];
    Sandbox::new(Role::Finder, user, &kept)
        .and_then(|sandbox| sandbox.enter_last())
        .map_err(io::Error::other)?;
    let connector = Mutex::new(channel);
    socket::connect_by(Box::new(move |pid, path| {
        let channel = connector.lock().unwrap_or_else(PoisonError::into_inner);
        let path = path.to_owned();
        channel.send(&Connect { pid, path }, &[])?;
        let (refusal, with): Received<Refusal> = channel.answer(LIMIT)?;
        let stream = with.into_iter().next();
        match (refusal, stream) {
            (None, Some(stream)) => Ok(UnixStream::from(stream)),
            (Some((Some(error), _)), _) => Err(io::Error::from_raw_os_error(error)),
            (Some((None, why)), _) => Err(io::Error::new(io::ErrorKind::PermissionDenied, why)),
            (None, None) => Err(io::ErrorKind::InvalidData.into()),
        }
    }));
    let found = match task {
        Task::Programs => Found::Programs(find_qemu()),
        Task::Guests {
            selection,
            with_programs,
        } => found(&selection, with_programs),
        Task::InFlight {
            selection,
            interval,
        } => match sample(&selection, interval) {
            Ok(facts) => Found::InFlight(Box::new(facts)),
            Err(error) => error.into(),
        },
    };
    into.write_all(&serde_json::to_vec(&found)?)
}

fn found(selection: &Selection, with_programs: bool) -> Found {
    match discover(selection) {
        Ok(mut found) => {
            if with_programs {
                found.parse_programs();
            }
            Found::All(Box::new(found))
        }
        Err(error) => error.into(),
    }
}

/// `is_alone`: its user has no other process.
fn limit(is_alone: bool) -> io::Result<()> {
    for (resource, limit) in [
        (Resource::RLIMIT_DATA, MAX_DATA),
        (Resource::RLIMIT_CPU, MAX_PROCESSOR_SECONDS),
        // No file is written, not even one of a crash.
        (Resource::RLIMIT_FSIZE, 0),
        (Resource::RLIMIT_CORE, 0),
    ] {
        setrlimit(resource, limit, limit)?;
    }
    if is_alone {
        setrlimit(Resource::RLIMIT_NPROC, MAX_THREADS, MAX_THREADS)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_service_of_root_that_is_no_qemu_is_not_connected_to() {
        if !Uid::effective().is_root() {
            eprintln!("skipped: a service of root's is needed");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("service");
        let _service = UnixListener::bind(&path).unwrap();
        let path = path.to_str().unwrap();
        let own = std::process::id();
        let refused = connected(own, path, &[]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        // The one that the user named is connected to.
        connected(own, path, &[own]).unwrap();
    }
}

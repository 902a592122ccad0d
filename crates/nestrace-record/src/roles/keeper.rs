//! The keeper: what has to be root after the recorder is not any more, and no more than that.
//!
//! It gets everything that it works with while the recorder is root: the folders of the agents' sockets, the bundle's
//! folder. Afterwards a recorder that was taken over can ask it only for that. It reads nothing that others wrote.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use caps::Capability;
use nestrace_output::held_dir::HeldDir;
use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, VsockAddr, connect, getsockopt, socket, sockopt,
};
use nix::sys::stat::Mode;
use serde::{Deserialize, Serialize};

use super::Helper;
use super::channel::{Channel, Received};
use crate::agent_address::Address;
use crate::sandbox::system_calls::Role;
use crate::sandbox::{Sandbox, User};
use crate::topology::namespace;

/// How long it may take to answer: it waits for a vsock, and for nothing else.
const ANSWER: Duration = Duration::from_secs(2);
/// How long a vsock may take to connect. Whoever asks comes again.
const VSOCK: Duration = Duration::from_millis(200);

/// What the recorder says.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// At first: the folder of the bundle, which comes beside it, is this user's until it is given back.
    Bundle { lent_to: Option<u32> },
    /// At first: where an agent is connected to; beside it the folder of its socket.
    Agent(AgentPlace),
    /// All was said: give up what is not needed for it.
    Begin,
    /// Connect to the agent with this number.
    Connect(usize),
    /// The recording is closed.
    GiveBack,
}

/// Where an agent is connected to.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum AgentPlace {
    /// A socket of this name in the folder; of `peer` only, where that is known.
    Unix { name: String, peer: Option<u32> },
    /// The folder could not be opened.
    Nowhere { why: String },
    /// A name without a folder.
    Abstract { name: String, peer: Option<u32> },
    /// A guest's vsock.
    Vsock { cid: u32, port: u32 },
}

/// What the keeper says; a connection comes beside it.
type Answer = Result<(), String>;

/// The recorder's view of its keeper.
#[derive(Debug)]
pub struct Keeper(Mutex<Channel>);

impl Keeper {
    /// Starts it; it waits for [`Self::begin`].
    ///
    /// # Errors
    /// What the system says.
    pub fn start() -> io::Result<Self> {
        Ok(Self(Mutex::new(Helper::Keeper.start()?)))
    }

    /// Says what it will be asked for: agents by their place in `agents`, and to give the bundle back to root where it is
    /// lent to a user id of its own.
    ///
    /// # Errors
    /// What the system says, or the keeper.
    pub fn begin(
        &self,
        bundle: &HeldDir,
        user: Option<User>,
        agents: &[Address],
    ) -> io::Result<()> {
        let lent_to = user.filter(|user| !user.is_real).map(|user| user.uid);
        let channel = self.lock();
        channel.send(&Order::Bundle { lent_to }, &[bundle.as_fd()])?;
        for address in agents {
            let (place, folder) = place_of(address);
            let folder: Vec<BorrowedFd<'_>> = folder.iter().map(AsFd::as_fd).collect();
            channel.send(&Order::Agent(place), &folder)?;
        }
        ask(&channel, &Order::Begin, &[]).map(drop)
    }

    /// Connects to the agent with this number.
    ///
    /// # Errors
    /// What the system said.
    pub fn connect(&self, index: usize) -> io::Result<File> {
        let with = ask(&self.lock(), &Order::Connect(index), &[])?;
        let connection = with.into_iter().next();
        connection
            .map(File::from)
            .ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The bundle is closed and belongs to whom it should belong.
    ///
    /// # Errors
    /// What the system said.
    pub fn give_back(&self) -> io::Result<()> {
        ask(&self.lock(), &Order::GiveBack, &[]).map(drop)
    }

    fn lock(&self) -> MutexGuard<'_, Channel> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn ask(channel: &Channel, order: &Order, with: &[BorrowedFd<'_>]) -> io::Result<Vec<OwnedFd>> {
    channel.send(order, with)?;
    let (answer, with): Received<Answer> = channel.answer(ANSWER)?;
    answer.map_err(io::Error::other)?;
    Ok(with)
}

/// What the keeper has to know of an address, found out while there are privileges.
fn place_of(address: &Address) -> (AgentPlace, Option<File>) {
    match address {
        Address::Vsock { cid, port } => {
            let (cid, port) = (*cid, *port);
            (AgentPlace::Vsock { cid, port }, None)
        }
        Address::Unix { pid, path } => {
            // What a user typed may be anybody's.
            let peer = (*pid != std::process::id()).then_some(*pid);
            if let Some(name) = path.strip_prefix('@') {
                let name = name.to_owned();
                return (AgentPlace::Abstract { name, peer }, None);
            }
            let (folder, name) = path.rsplit_once('/').unwrap_or(("", path));
            let folder = if folder.is_empty() { "/" } else { folder };
            let name = name.to_owned();
            match folder_of(peer, Path::new(folder)) {
                Ok(folder) => (AgentPlace::Unix { name, peer }, Some(folder)),
                Err(error) => {
                    let why = error.to_string();
                    (AgentPlace::Nowhere { why }, None)
                }
            }
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

/// What the keeper has.
#[derive(Default)]
struct State {
    bundle: Option<OwnedFd>,
    lent_to: Option<u32>,
    agents: Vec<(AgentPlace, Option<OwnedFd>)>,
    has_begun: bool,
}

/// The keeper's life.
pub(super) fn run(channel: &Channel) -> io::Result<()> {
    let mut state = State::default();
    let ended = loop {
        match channel.receive::<Order>() {
            Ok(Some((order, with))) => {
                let needs_answer = !matches!(order, Order::Bundle { .. } | Order::Agent(_));
                let done = state.obey(order, with.into_iter().next());
                let connection = done.as_ref().ok().and_then(Option::as_ref);
                let connection: Vec<BorrowedFd<'_>> =
                    connection.map(AsFd::as_fd).into_iter().collect();
                let answer: Answer = match &done {
                    Ok(_) => Ok(()),
                    Err(error) => Err(error.to_string()),
                };
                if needs_answer && let Err(error) = channel.send(&answer, &connection) {
                    break Err(error);
                }
            }
            Ok(None) => break Ok(()),
            Err(error) => break Err(error),
        }
    };
    // Also where the recorder was killed.
    let given = state.give_back();
    ended.and(given)
}

impl State {
    /// The connection, where one was asked for.
    fn obey(&mut self, order: Order, with: Option<OwnedFd>) -> io::Result<Option<OwnedFd>> {
        let too_late = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        match order {
            Order::Bundle { .. } | Order::Agent(_) | Order::Begin if self.has_begun => too_late(),
            Order::Bundle { lent_to } => {
                self.lent_to = lent_to;
                self.bundle = with;
                Ok(None)
            }
            Order::Agent(place) => {
                self.agents.push((place, with));
                Ok(None)
            }
            Order::Begin => {
                self.has_begun = true;
                // Folders of other users are looked into, and files given away.
                let kept = [Capability::CAP_CHOWN, Capability::CAP_DAC_READ_SEARCH];
                let sandbox = Sandbox::new(Role::Keeper, None, &kept).map_err(io::Error::other)?;
                sandbox.enter_last().map_err(io::Error::other)?;
                Ok(None)
            }
            Order::Connect(index) => {
                let (place, folder) = self.agents.get(index).ok_or(io::ErrorKind::NotFound)?;
                connect_to(place, folder.as_ref()).map(Some)
            }
            Order::GiveBack => self.give_back().map(|()| None),
        }
    }

    fn give_back(&mut self) -> io::Result<()> {
        let (Some(user), Some(bundle)) = (self.lent_to.take(), &self.bundle) else {
            return Ok(());
        };
        HeldDir::from(File::from(bundle.try_clone()?)).take_back(user)
    }
}

fn connect_to(place: &AgentPlace, folder: Option<&OwnedFd>) -> io::Result<OwnedFd> {
    match (place, folder) {
        (AgentPlace::Unix { name, peer }, Some(folder)) => {
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
            twice(&UnixAddr::new(short.as_str())?, *peer)
        }
        (AgentPlace::Unix { .. }, None) => Err(io::ErrorKind::NotFound.into()),
        (AgentPlace::Abstract { name, peer }, _) => {
            twice(&UnixAddr::new_abstract(name.as_bytes())?, *peer)
        }
        (AgentPlace::Vsock { cid, port }, _) => vsock(*cid, *port),
        (AgentPlace::Nowhere { why }, _) => Err(io::Error::other(why.clone())),
    }
}

/// A port of QEMU 7.2 may stay throttled until the next client leaves (see [`Address::connect`]).
fn twice(address: &UnixAddr, peer: Option<u32>) -> io::Result<OwnedFd> {
    drop(unix(address, peer)?);
    unix(address, peer)
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

//! The keeper: what has to be root after the recorder is not any more, and no more than that.
//!
//! It gets everything that it works with while the recorder is root: the folders of the agents' sockets, the bundle's
//! folder. Afterwards a recorder that was taken over can ask it only for that. It reads nothing that others wrote.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use caps::Capability;
use nestrace_output::held_dir::HeldDir;
use serde::{Deserialize, Serialize};

use super::Helper;
use super::channel::{Channel, Received};
use super::socket_place::SocketPlace;
use crate::agent_address::Address;
use crate::sandbox::system_calls::Role;
use crate::sandbox::{Sandbox, User};

/// How long it may take to answer: it waits for a vsock, and for nothing else.
const ANSWER: Duration = Duration::from_secs(2);
/// A port of QEMU 7.2 may stay throttled until the next client leaves (see [`Address::connect`]).
const AGAIN: bool = true;

/// What the recorder says.
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    /// At first: the folder of the bundle, which comes beside it, is this user's until it is given back.
    Bundle { lent_to: Option<u32> },
    /// At first: where an agent is connected to; beside it the folder of its socket.
    Agent(SocketPlace),
    /// All was said: give up what is not needed for it.
    Begin,
    /// Connect to the agent with this number.
    Connect(usize),
    /// The recording into the bundle with this number is closed.
    GiveBack(usize),
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
        bundles: &[Arc<HeldDir>],
        user: Option<User>,
        agents: &[Address],
    ) -> io::Result<()> {
        let lent_to = user.filter(|user| !user.is_real).map(|user| user.uid);
        let channel = self.lock();
        for bundle in bundles {
            channel.send(&Order::Bundle { lent_to }, &[bundle.as_fd()])?;
        }
        for address in agents {
            let (place, folder) = SocketPlace::of(address);
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

    /// The bundle with this number is closed and belongs to whom it should belong.
    ///
    /// # Errors
    /// What the system said.
    pub fn give_back(&self, number: usize) -> io::Result<()> {
        ask(&self.lock(), &Order::GiveBack(number), &[]).map(drop)
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

/// What the keeper has.
#[derive(Default)]
struct State {
    /// Each with the user that it is lent to.
    bundles: Vec<(Option<OwnedFd>, Option<u32>)>,
    agents: Vec<(SocketPlace, Option<OwnedFd>)>,
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
    let given = (0..state.bundles.len()).map(|number| state.give_back(number));
    ended.and(given.fold(Ok(()), Result::and))
}

impl State {
    /// The connection, where one was asked for.
    fn obey(&mut self, order: Order, with: Option<OwnedFd>) -> io::Result<Option<OwnedFd>> {
        let too_late = || Err(io::Error::from(io::ErrorKind::PermissionDenied));
        match order {
            Order::Bundle { .. } | Order::Agent(_) | Order::Begin if self.has_begun => too_late(),
            Order::Bundle { lent_to } => {
                self.bundles.push((with, lent_to));
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
                place.connect(folder.as_ref(), AGAIN).map(Some)
            }
            Order::GiveBack(number) => self.give_back(number).map(|()| None),
        }
    }

    fn give_back(&mut self, number: usize) -> io::Result<()> {
        let Some((Some(bundle), lent_to)) = self.bundles.get_mut(number) else {
            return Ok(());
        };
        let Some(user) = lent_to.take() else {
            return Ok(());
        };
        HeldDir::from(File::from(bundle.try_clone()?)).take_back(user)
    }
}

//! The agents of all guests: a thread for each, and what the recorder sees of them.

use nestrace_output::{address_secret::new_shift, held_dir::HeldDir};
use nestrace_wire::files::Names;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use super::account::{Account, State};
use super::session::Session;
use crate::agent_address::Address;
use crate::flight::rings::Rings;
use crate::roles::keeper::Keeper;

/// A guest and the channel to its agent.
#[derive(Clone, Debug)]
pub struct Place {
    /// Name of the guest in the manifest.
    pub guest: String,
    /// Where its agent is spoken to.
    pub address: Address,
}

/// What is asked of every agent.
#[derive(Clone, Debug)]
pub struct Asked {
    /// `full`, `io` or `light`.
    pub detail: String,
    /// Whether names of files are wanted.
    pub paths: bool,
    /// Where a flight recorder keeps the streams; `None`: they are written into the bundle.
    pub rings: Option<Arc<Rings>>,
    /// Whether it is wanted when threads have a processor.
    pub cpu: bool,
}

/// The agents of all guests that have a channel.
#[derive(Default)]
pub struct Agents {
    pub(super) sessions: Vec<Handle>,
    /// Sessions whose threads have not been started, in the order of their handles.
    waiting: Vec<Session>,
}

pub(super) struct Handle {
    pub(super) shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

/// What the recorder and a session's thread both see.
#[derive(Default)]
pub(super) struct Shared {
    account: Mutex<Account>,
    /// The recorder wants the session to end.
    pub(super) stop: AtomicBool,
    /// The session is over and its stream closed.
    pub(super) done: AtomicBool,
    /// Bytes that the guest's streams may have.
    pub(super) limit_bytes: AtomicU64,
    /// Since when the host's side is live; 0 if it is not yet.
    pub(super) host_live_ns: AtomicU64,
}

impl Agents {
    /// Connects to every place and asks for a recording. The streams go into `dir`; those of
    /// each guest may have `limit_bytes` until [`Self::set_limit`] says otherwise.
    /// Call it while there are privileges: sockets of QEMU's belong to other users. Nothing is read before [`Self::listen`].
    /// `keeper`, which knows the same places in the same order, connects when a channel was lost; without one the
    /// sessions do it themselves.
    ///
    /// # Errors
    /// Where the system gives no random bytes.
    pub fn connect(
        places: &[Place],
        dir: &Arc<HeldDir>,
        asked: &Asked,
        limit_bytes: u64,
        keeper: Option<&Arc<Keeper>>,
    ) -> io::Result<Self> {
        let mut agents = Self::default();
        for (index, place) in places.iter().enumerate() {
            let shared = Arc::new(Shared {
                account: Mutex::new(Account::new(&place.guest)),
                limit_bytes: AtomicU64::new(limit_bytes),
                ..Shared::default()
            });
            let names = asked.paths.then(|| Names::of_one_of(places.len()));
            let shift = new_shift()?;
            let numbered = (place, u32::try_from(index).unwrap_or(u32::MAX));
            let mut session = Session::new(numbered, dir, asked, names, Arc::clone(&shared), shift);
            session.served_by(keeper.map(|keeper| (Arc::clone(keeper), index)));
            agents.waiting.push(session);
            agents.sessions.push(Handle {
                shared,
                thread: None,
            });
        }
        Ok(agents)
    }

    /// Starts a thread for each agent, which has the privileges that the caller has now, and reads what it sends.
    ///
    /// # Errors
    /// Where the system gives no thread.
    pub fn listen(&mut self) -> io::Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        for (handle, session) in self.sessions.iter_mut().zip(waiting) {
            let thread = thread::Builder::new()
                .name("nestrace-agent".to_owned())
                .spawn(move || session.run())?;
            handle.thread = Some(thread);
        }
        Ok(())
    }

    /// Every guest's account, with what has happened since the last call.
    #[must_use]
    pub fn accounts(&self) -> Vec<Account> {
        let take = |handle: &Handle| {
            let mut account = handle.shared.lock();
            let taken = account.clone();
            account.notices.clear();
            account.news.clear();
            taken
        };
        self.sessions.iter().map(take).collect()
    }

    /// Whether every agent that was reached is live.
    #[must_use]
    pub fn all_live(&self) -> bool {
        let is_settled = |handle: &Handle| {
            let state = handle.shared.lock().state;
            !matches!(state, State::NoAnswer | State::Attaching)
        };
        self.sessions.iter().all(is_settled)
    }

    /// How many bytes the streams of each guest may have.
    pub fn set_limit(&self, bytes_of: impl Fn(u64) -> u64) {
        for handle in &self.sessions {
            let now = handle.shared.lock().bytes;
            handle
                .shared
                .limit_bytes
                .store(bytes_of(now), Ordering::Relaxed);
        }
    }

    /// The host's side is live from this time of its clock on: what is missing of a guest since is a gap.
    pub fn host_is_live(&self, since_ns: u64) {
        for handle in &self.sessions {
            let live_ns = &handle.shared.host_live_ns;
            live_ns.store(since_ns, Ordering::Relaxed);
        }
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Asks every agent to end. [`Self::all_ended`] says when they have; it takes three and a half seconds at most.
    pub fn stop(&self) {
        for handle in &self.sessions {
            handle.shared.stop.store(true, Ordering::Relaxed);
        }
    }

    /// Whether every session is over and its stream closed.
    #[must_use]
    pub fn all_ended(&self) -> bool {
        self.sessions
            .iter()
            .all(|handle| handle.shared.done.load(Ordering::Acquire))
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        self.stop();
        for handle in &mut self.sessions {
            // A thread that hangs in a write to a dead file system must not keep the recorder.
            if handle.shared.done.load(Ordering::Acquire)
                && let Some(thread) = handle.thread.take()
            {
                let _ = thread.join();
            }
        }
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, Account> {
        // An account is a value; a thread that panicked has left its last one.
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

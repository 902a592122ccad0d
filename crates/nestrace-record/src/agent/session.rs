//! Talking with one agent, in a thread of its own.

mod ending;
mod files;

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use nestrace_trace::address::Shift;
use nestrace_wire::HostMessage;
use nestrace_wire::files::Names;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::account::State;
use super::agents::{Asked, Place, Shared};
use super::ingest::Ingest;
use crate::agent_address::Address;
use crate::roles::keeper::Keeper;
use files::Files;
use nestrace_output::held_dir::HeldDir;
use nestrace_probes::clock;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_millis(300);
/// How long to wait before a channel that was lost is tried again.
const RECONNECT_NS: u64 = 1_000_000_000;
/// Questions for the guest's clock: so many fast ones at first, then one now and then.
const QUICK_PINGS: u32 = 20;
const QUICK_PING_NS: u64 = 10_000_000;
const PING_NS: u64 = 250_000_000;
/// Questions that may wait in an unread port.
const MAX_OPEN_PINGS: usize = 16;
/// An agent that is not heard for so long is silent: paused, stuck, gone, or started again.
const SILENT_NS: u64 = 2_000_000_000;
/// The same for one that attaches its probes: it may have to load them first, which takes a slow guest
/// its time, and has no word for anybody meanwhile.
const SILENT_ATTACHING_NS: u64 = 60_000_000_000;
/// How often the question for a recording is repeated: an agent that was started anew finds it, and
/// one that is in the session passes over it.
const ASK_AGAIN_NS: u64 = 3_000_000_000;
/// How often a session may begin anew after bytes that could not be understood, or a jump of the guest's clock.
const MAX_NEW_SESSIONS: u32 = 16;
/// How long an agent may take to end. It may look for names of files for 1.5 s of this.
const END_NS: u64 = 3_500_000_000;
/// The same for one that has been silent anyway.
const SILENT_END_NS: u64 = 200_000_000;
/// How often the streams are written and the account is handed on.
const FLUSH_NS: u64 = 250_000_000;
/// How long to wait for the port at most: the recorder may want to stop.
const LONGEST_WAIT_NS: u64 = 20_000_000;
/// Bytes that are read at once.
const CHUNK: usize = 64 << 10;

pub(super) struct Session {
    ingest: Ingest<Files>,
    shared: Arc<Shared>,
    address: Address,
    /// Who connects when there are no privileges any more, and the place's number there.
    keeper: Option<(Arc<Keeper>, usize)>,
    detail: String,
    cpu: bool,
    port: Option<File>,
    out: Vec<u8>,
    pings: u32,
    next_ping_ns: u64,
    next_flush_ns: u64,
    next_connect_ns: u64,
    /// When a silent agent was last asked.
    asked_ns: u64,
    silent: Option<Silence>,
    stop_ns: Option<u64>,
    /// Since when the guest's recording is missing because it is not listened to any more.
    given_up_ns: Option<u64>,
    new_sessions: u32,
    connect_error: Option<String>,
}

/// An agent that is silent.
#[derive(Clone, Copy)]
struct Silence {
    /// Since when its recording is missing.
    since_ns: u64,
    /// When it was heard last.
    heard_ns: u64,
    /// Where it stood then.
    state: State,
}

/// That a session's loop ends.
type Over = ();

impl Session {
    pub(super) fn new(
        (place, number_of_guest): (&Place, u32),
        dir: &Arc<HeldDir>,
        asked: &Asked,
        names: Option<Names>,
        shared: Arc<Shared>,
        shift: Shift,
    ) -> Self {
        let files = Files::new(dir, &shared, (asked.rings.clone(), number_of_guest));
        // Another recorder's number is distinguished by time and process.
        let number = clock::monotonic_ns() ^ (u64::from(std::process::id()) << 44);
        let mut session = Self {
            ingest: Ingest::new(&place.guest, files, number)
                .shifted(shift)
                .with_names(names),
            shared,
            address: place.address.clone(),
            keeper: None,
            detail: asked.detail.clone(),
            cpu: asked.cpu,
            port: None,
            out: Vec::new(),
            pings: 0,
            next_ping_ns: 0,
            next_flush_ns: 0,
            next_connect_ns: 0,
            asked_ns: 0,
            silent: None,
            stop_ns: None,
            given_up_ns: None,
            new_sessions: 0,
            connect_error: None,
        };
        session.connect(clock::monotonic_ns());
        session.publish();
        session
    }

    /// From now on; so far this connects itself.
    pub(super) fn served_by(&mut self, keeper: Option<(Arc<Keeper>, usize)>) {
        self.keeper = keeper;
    }

    pub(super) fn run(mut self) {
        while self.step().is_ok() {}
        let now_ns = clock::monotonic_ns();
        self.ingest.close(now_ns);
        self.note_end(now_ns);
        self.ingest.hand_over_names();
        self.publish();
        self.shared.done.store(true, Ordering::Release);
    }

    /// One round: what is due, then what the port has.
    fn step(&mut self) -> Result<(), Over> {
        let now_ns = clock::monotonic_ns();
        self.stop(now_ns)?;
        let host_live_ns = self.shared.host_live_ns.load(Ordering::Relaxed);
        self.ingest.host_is_live(host_live_ns);
        let may_connect = self.stop_ns.is_none() && self.given_up_ns.is_none();
        if self.port.is_none() && now_ns >= self.next_connect_ns && may_connect {
            self.connect(now_ns);
        }
        self.watch_silence(now_ns);
        self.ping(now_ns);
        if now_ns >= self.next_flush_ns {
            self.next_flush_ns = now_ns + FLUSH_NS;
            self.ingest.flush(now_ns);
            self.publish();
        }
        self.wait(now_ns);
        self.send();
        self.receive();
        Ok(())
    }

    /// Asks the agent to end when the recorder wants to; says when it is over.
    fn stop(&mut self, now_ns: u64) -> Result<(), Over> {
        let account = &self.ingest.account;
        let Some(since_ns) = self.stop_ns else {
            if self.shared.stop.load(Ordering::Relaxed) {
                self.stop_ns = Some(now_ns);
                HostMessage::Stop.encode_to(&mut self.out);
            }
            return Ok(());
        };
        let patience_ns = patience_ns(account.state, self.port.is_some());
        let in_time = now_ns.saturating_sub(since_ns) < patience_ns;
        if in_time { Ok(()) } else { Err(()) }
    }

    fn connect(&mut self, now_ns: u64) {
        self.next_connect_ns = now_ns + RECONNECT_NS;
        let connected = match &self.keeper {
            Some((keeper, index)) => keeper.connect(*index),
            None => self.address.connect(CONNECT),
        };
        match connected {
            Ok(port) => {
                self.port = Some(port);
                self.out.clear();
                self.connect_error = None;
                if self.ingest.account.state == State::NotConnected {
                    self.ingest.account.state = State::NoAnswer;
                }
                self.ask(now_ns, true);
            }
            Err(error) => self.connect_error = Some(error.to_string()),
        }
    }

    /// Asks for a recording.
    fn ask(&mut self, now_ns: u64, anew: bool) {
        self.asked_ns = now_ns;
        let start = self.ingest.start(&self.detail, self.cpu, anew);
        start.encode_to(&mut self.out);
    }

    /// Notes when nothing is heard any more, and when something is again.
    fn watch_silence(&mut self, now_ns: u64) {
        let heard_ns = self.ingest.heard_ns();
        let missing_since_ns = self.ingest.missing_since_ns();
        let account = &mut self.ingest.account;
        let may_be_silent_ns = match account.state {
            State::Attaching => SILENT_ATTACHING_NS,
            _ => SILENT_NS,
        };
        let quiet = now_ns.saturating_sub(heard_ns) > may_be_silent_ns;
        match account.state {
            state @ (State::Live | State::Attaching) if quiet || self.port.is_none() => {
                self.silent = Some(Silence {
                    since_ns: missing_since_ns,
                    heard_ns,
                    state,
                });
                account.state = State::Silent;
                account.note(now_ns, "agent_silent", "its agent is silent");
                self.asked_ns = 0;
            }
            // A new connection is none: whoever is there begins a session of its own, or is not heard.
            State::Silent if !quiet => {
                if let Some(silence) = self.silent.take_if(|s| heard_ns > s.heard_ns) {
                    if silence.state == State::Live {
                        account.gap(silence.since_ns, heard_ns, "the agent was silent");
                    }
                    account.note(now_ns, "agent_back", "its agent sends again");
                    account.state = silence.state;
                }
            }
            _ => {}
        }
        let due = now_ns.saturating_sub(self.asked_ns) > ASK_AGAIN_NS;
        // A question that still waits here is asked once only.
        if due && self.out.is_empty() && self.port.is_some() && self.stop_ns.is_none() {
            self.ask(now_ns, false);
        }
    }

    /// Whether there is an agent that answers.
    fn talks(&self) -> bool {
        let state = self.ingest.account.state;
        self.port.is_some() && matches!(state, State::Attaching | State::Live | State::Silent)
    }

    fn ping(&mut self, now_ns: u64) {
        let room = self.out.is_empty() && self.ingest.n_open_pings() < MAX_OPEN_PINGS;
        if !self.talks() || now_ns < self.next_ping_ns {
            return;
        }
        self.pings = self.pings.saturating_add(1);
        let pause = if self.pings < QUICK_PINGS {
            QUICK_PING_NS
        } else {
            PING_NS
        };
        self.next_ping_ns = now_ns + pause;
        if room {
            let ping = self.ingest.ping(clock::monotonic_ns());
            ping.encode_to(&mut self.out);
            self.send();
        }
    }

    /// Waits until the port has something, or something is due.
    fn wait(&self, now_ns: u64) {
        let throttled_ns = self.ingest.wait_ns(now_ns);
        let until_ping_ns = self.next_ping_ns.saturating_sub(now_ns).max(1_000_000);
        let longest = if self.talks() {
            LONGEST_WAIT_NS.min(until_ping_ns)
        } else {
            LONGEST_WAIT_NS
        };
        let Some(port) = &self.port else {
            thread::sleep(Duration::from_nanos(longest));
            return;
        };
        if throttled_ns > 0 {
            thread::sleep(Duration::from_nanos(longest.min(throttled_ns)));
            return;
        }
        let mut events = PollFlags::POLLIN;
        events.set(PollFlags::POLLOUT, !self.out.is_empty());
        let mut waiting = [PollFd::new(port.as_fd(), events)];
        let timeout =
            PollTimeout::try_from(Duration::from_nanos(longest)).unwrap_or(PollTimeout::ZERO);
        // A signal or a lack of memory: the next round tries again.
        let _ = poll(&mut waiting, timeout);
    }

    /// Sends what waits, as far as the port takes it.
    fn send(&mut self) {
        let Some(port) = &mut self.port else { return };
        while !self.out.is_empty() {
            match port.write(&self.out) {
                Ok(n) => {
                    self.out.drain(..n.min(self.out.len()));
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    return;
                }
                Err(error) => {
                    self.lose_port(&error.to_string());
                    return;
                }
            }
        }
    }

    fn receive(&mut self) {
        let mut chunk = [0; CHUNK];
        let now_ns = clock::monotonic_ns();
        let Some(port) = self
            .port
            .as_mut()
            .filter(|_| self.ingest.wait_ns(now_ns) == 0)
        else {
            return;
        };
        let n = match port.read(&mut chunk) {
            Ok(0) => {
                self.lose_port("the channel was closed");
                return;
            }
            Ok(n) => n,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) =>
            {
                return;
            }
            Err(error) => {
                self.lose_port(&error.to_string());
                return;
            }
        };
        // After the read, so that a round trip is never taken for shorter than it was.
        let now_ns = clock::monotonic_ns();
        let before = self.ingest.account.state;
        let fed = self.ingest.feed(chunk.get(..n).unwrap_or_default(), now_ns);
        if let Err(error) = fed {
            self.give_up(&error, now_ns);
        } else if self.ingest.clock_jumped() && self.stop_ns.is_none() && !self.begin_anew(now_ns) {
            self.ingest.account.note_once(
                now_ns,
                "agent_refused",
                "its clock jumps too often: from here on, events that do not fit it are refused",
            );
        }
        self.announce(before);
    }

    /// Asks for another session; whether there may be one more.
    fn begin_anew(&mut self, now_ns: u64) -> bool {
        let may = self.new_sessions < MAX_NEW_SESSIONS;
        if may {
            self.new_sessions += 1;
            self.ask(now_ns, true);
        }
        may
    }

    /// Says on the terminal, and at once to the recorder, what has changed.
    fn announce(&mut self, before: State) {
        let account = &mut self.ingest.account;
        if account.state == before {
            return;
        }
        if account.state == State::Live {
            self.silent = None;
            let text = account.side().map(|side| {
                format!(
                    "live ({}, agent {}): {}",
                    side.backend, side.agent_version, side.backend_reason
                )
            });
            account.tell(&text.unwrap_or_default());
        }
        self.publish();
    }

    fn lose_port(&mut self, why: &str) {
        self.port = None;
        self.out.clear();
        self.connect_error = Some(why.to_owned());
        let account = &mut self.ingest.account;
        if account.state == State::NoAnswer {
            account.state = State::NotConnected;
        }
    }

    /// Hands the account on.
    fn publish(&mut self) {
        let account = &mut self.ingest.account;
        let mut shared = self.shared.lock();
        let mut notices = std::mem::take(&mut shared.notices);
        let mut news = std::mem::take(&mut shared.news);
        notices.append(&mut account.notices);
        news.append(&mut account.news);
        *shared = account.clone();
        (shared.notices, shared.news) = (notices, news);
    }
}

/// How long the last words of an agent in this state are waited for.
fn patience_ns(state: State, is_connected: bool) -> u64 {
    match (state, is_connected) {
        (State::Live | State::Attaching, true) => END_NS,
        (State::Silent, true) => SILENT_END_NS,
        // The question for a recording must not be found by an agent that comes later.
        (State::NoAnswer, true) => SILENT_END_NS / 4,
        _ => 0,
    }
}

#[cfg(test)]
mod tests;

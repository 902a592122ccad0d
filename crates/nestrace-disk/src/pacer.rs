//! Completes requests when the model says so, and measures how late it was.
//!
//! The disk's time is that since the start. A request has the time at which it was read from the kernel. The way from
//! the loop device to here and back takes time too, which is no part of the model: the program that started this one
//! measures it, and completions go out so much earlier. So does what sending a reply takes, which is learned here.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::Context;
use fuser::{Errno, ReplyData, ReplyEmpty, ReplyWrite};
use nestrace_modelled_disk::disk::Disk;
use nestrace_modelled_disk::lateness::{Lateness, Report};
use nestrace_modelled_disk::request::{Completion, DiskNs, Operation, Request};
use nestrace_modelled_disk::troubles::{Answer, Command, TroubleKind, Troubles, Way};

/// The largest request: what the kernel sends at most unless `fs.fuse.max_pages_limit` is raised.
pub const MAX_REQUEST_BYTES: u32 = 1 << 20;

/// What to send when a request is done.
#[derive(Debug)]
pub enum Reply {
    /// Data that was read.
    Data(ReplyData, Vec<u8>),
    /// So many bytes were written.
    Written(ReplyWrite, u32),
    /// Nothing.
    Empty(ReplyEmpty),
}

impl Reply {
    /// Bytes that go to the kernel with it.
    fn bytes(&self) -> u64 {
        match self {
            Self::Data(_, data) => data.len() as u64,
            Self::Written(..) | Self::Empty(_) => 0,
        }
    }

    fn send(self, failed: bool) {
        match (self, failed) {
            (Self::Data(reply, _), true) => reply.error(Errno::EIO),
            (Self::Data(reply, data), false) => reply.data(&data),
            (Self::Written(reply, _), true) => reply.error(Errno::EIO),
            (Self::Written(reply, n), false) => reply.written(n),
            (Self::Empty(reply), true) => reply.error(Errno::EIO),
            (Self::Empty(reply), false) => reply.ok(),
        }
    }
}

/// A disk in real time.
#[derive(Debug)]
pub struct Pacer {
    begun: Instant,
    state: Mutex<State>,
    /// Something is due earlier than what the thread waits for: it sleeps,
    wake: Condvar,
    /// or it waits awake.
    is_changed: AtomicBool,
}

#[derive(Debug)]
struct State {
    disk: Disk,
    troubles: Troubles,
    lateness: Lateness,
    is_modelled: bool,
    way: Way,
    sending: SendCost,
    unpaced: Unpaced,
    next_id: u64,
    pending: HashMap<u64, Pending>,
    /// Decided by the model: the time to start sending, and that to have sent.
    sent_at: BinaryHeap<Reverse<(DiskNs, DiskNs, u64)>>,
    /// Done by the model, and delayed on command until then.
    delayed: BinaryHeap<Reverse<Completion>>,
    /// Done by the model, and withheld on command.
    withheld: Vec<u64>,
    /// When the thread wakes next.
    wakes_at: DiskNs,
    has_ended: bool,
}

/// What sending a reply takes, as it was seen.
#[derive(Clone, Copy, Debug, Default)]
struct SendCost {
    ns: f64,
    ns_per_byte: f64,
}

impl SendCost {
    /// Nanoseconds for a reply with so much data.
    fn of(&self, bytes: u64) -> u64 {
        (self.ns + self.ns_per_byte * bytes as f64) as u64
    }

    /// Learns from a reply. One that had to wait for a processor teaches little.
    fn learn(&mut self, bytes: u64, ns: u64) {
        const WEIGHT: f64 = 0.05;
        const MAX_NS: f64 = 1e6;
        const SMALL: u64 = 16 << 10;
        const LARGE: u64 = 128 << 10;
        let ns = (ns as f64).min(MAX_NS);
        if bytes <= SMALL {
            self.ns += WEIGHT * (ns - self.ns);
        } else if bytes >= LARGE {
            let per_byte = (ns - self.ns).max(0.0) / bytes as f64;
            self.ns_per_byte += WEIGHT * (per_byte - self.ns_per_byte);
        }
    }
}

/// Requests that were answered at once.
#[derive(Clone, Copy, Debug, Default)]
struct Unpaced {
    n: u64,
    sum_ns: u64,
}

#[derive(Debug)]
struct Pending {
    bytes: u64,
    reply: Reply,
    trouble: Option<TroubleKind>,
}

/// A reply that is due.
#[derive(Debug)]
struct Due {
    reply: Reply,
    failed: bool,
    /// The model's time for it, less the way; none where it was delayed or withheld.
    at: Option<DiskNs>,
}

impl Pacer {
    /// A disk that is switched on now.
    pub fn new(disk: Disk) -> Self {
        Self {
            begun: Instant::now(),
            state: Mutex::new(State {
                disk,
                troubles: Troubles::default(),
                lateness: Lateness::default(),
                is_modelled: true,
                way: Way::default(),
                sending: SendCost::default(),
                unpaced: Unpaced::default(),
                next_id: 0,
                pending: HashMap::new(),
                sent_at: BinaryHeap::new(),
                delayed: BinaryHeap::new(),
                withheld: Vec::new(),
                wakes_at: DiskNs::MAX,
                has_ended: false,
            }),
            wake: Condvar::new(),
            is_changed: AtomicBool::new(false),
        }
    }

    /// The disk's time.
    pub fn now(&self) -> DiskNs {
        DiskNs(u64::try_from(self.begun.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// Has the thread look at the state again.
    fn rouse(&self) {
        self.is_changed.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each change of the state is whole before anything in it can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a request's trouble is; it counts as one of those that a rule has left.
    pub fn trouble(
        &self,
        operation: Operation,
        offset_bytes: u64,
        length_bytes: u64,
    ) -> Option<TroubleKind> {
        self.state().troubles.of(&Request {
            id: 0,
            operation,
            offset_bytes,
            length_bytes,
        })
    }

    /// Takes a request in that arrived at `now`.
    pub fn submit(
        &self,
        now: DiskNs,
        operation: Operation,
        (offset_bytes, length_bytes): (u64, u64),
        trouble: Option<TroubleKind>,
        reply: Reply,
    ) {
        let mut state = self.state();
        if !state.is_modelled && trouble.is_none() {
            drop(state);
            reply.send(false);
            let mut state = self.state();
            state.unpaced.n += 1;
            state.unpaced.sum_ns += self.now().since(now);
            return;
        }
        let id = state.next_id;
        state.next_id += 1;
        let pending = Pending {
            bytes: length_bytes,
            reply,
            trouble,
        };
        state.pending.insert(id, pending);
        if state.is_modelled {
            let request = Request {
                id,
                operation,
                offset_bytes,
                length_bytes,
            };
            state.disk.submit(now, request);
            state.disk.decide(now);
        } else {
            state.complete(Completion { at: now, id });
        }
        if state.next_wake() < state.wakes_at {
            self.rouse();
        }
    }

    /// Follows a command.
    pub fn follow(&self, command: Command) -> Answer {
        let mut state = self.state();
        match command {
            Command::Report { reset } => {
                let report = Report {
                    in_flight: state.pending.len() as u64,
                    way_ns: state.way.ns,
                    unpaced_ns: state.unpaced.sum_ns as f64 / state.unpaced.n.max(1) as f64,
                    ..state.lateness.report()
                };
                if reset {
                    state.lateness = Lateness::default();
                    state.unpaced = Unpaced::default();
                }
                return Answer::Report(report);
            }
            Command::Pace { modelled } => state.is_modelled = modelled,
            Command::Way(way) => state.way = way,
            Command::Trouble(trouble) => {
                if !state.troubles.add(trouble) {
                    return Answer::Refused(String::from("there are too many troubles"));
                }
            }
            Command::Heal => {
                state.troubles.heal();
                let at = self.now();
                for id in std::mem::take(&mut state.withheld) {
                    state.delayed.push(Reverse(Completion { at, id }));
                }
            }
        }
        self.rouse();
        Answer::Done
    }

    /// Fails what is in flight, and everything that comes.
    pub fn end(&self) {
        let mut state = self.state();
        state.has_ended = true;
        // A reply that is dropped fails.
        state.pending.clear();
        self.rouse();
    }

    /// Sends replies when they are due, until the end.
    fn run(&self) {
        /// A thread that sleeps longer wakes so much earlier, and waits for the rest awake: a timer may be late.
        const AWAKE_NS: u64 = 60_000;
        const LONG_NS: u64 = 300_000;
        let mut due = Vec::new();
        let mut state = self.state();
        while !state.has_ended {
            state.take_due(self.now(), &mut due);
            if !due.is_empty() {
                state.wakes_at = DiskNs(0);
                drop(state);
                let sent = self.send(&mut due);
                state = self.state();
                for sent in sent {
                    state.sending.learn(sent.bytes, sent.took_ns);
                    if let Some(late_ns) = sent.late_ns {
                        state.lateness.count(late_ns);
                    }
                }
                continue;
            }
            state.wakes_at = state.next_wake();
            let wait_ns = state.wakes_at.since(self.now());
            if wait_ns > LONG_NS {
                let wait = Duration::from_nanos((wait_ns - AWAKE_NS).min(3_600_000_000_000));
                let waited = self.wake.wait_timeout(state, wait);
                (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            } else if wait_ns > AWAKE_NS {
                let wait = Duration::from_nanos(wait_ns);
                let waited = self.wake.wait_timeout(state, wait);
                (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
            } else {
                let wakes_at = state.wakes_at;
                // Requests come in meanwhile.
                drop(state);
                while self.now() < wakes_at && !self.is_changed.swap(false, Ordering::AcqRel) {
                    std::hint::spin_loop();
                }
                state = self.state();
            }
        }
    }

    /// What sending took, and how late each was.
    fn send(&self, due: &mut Vec<Due>) -> Vec<Sent> {
        let mut all = Vec::with_capacity(due.len());
        for Due { reply, failed, at } in due.drain(..) {
            let bytes = reply.bytes();
            let begun = self.now();
            reply.send(failed);
            let now = self.now();
            all.push(Sent {
                bytes,
                took_ns: now.since(begun),
                late_ns: at.map(|at| now.since(at)),
            });
        }
        all
    }
}

/// A reply that was sent.
#[derive(Debug)]
struct Sent {
    bytes: u64,
    took_ns: u64,
    late_ns: Option<u64>,
}

impl State {
    /// When something is due next.
    fn next_wake(&self) -> DiskNs {
        let completion = self.disk.next_completion().map(|at| self.looked_for_at(at));
        let sent_at = self.sent_at.peek().map(|first| first.0.0);
        let delayed = self.delayed.peek().map(|first| first.0.at);
        let all = [self.disk.next_decision(), completion, sent_at, delayed];
        all.into_iter().flatten().min().unwrap_or(DiskNs::MAX)
    }

    /// The time before a completion at which the largest reply would have to be sent.
    fn looked_for_at(&self, at: DiskNs) -> DiskNs {
        DiskNs(at.0.saturating_sub(self.earliest_ns()))
    }

    fn earliest_ns(&self) -> u64 {
        let bytes = u64::from(MAX_REQUEST_BYTES);
        self.way.of(bytes) + self.sending.of(bytes)
    }

    fn take_due(&mut self, now: DiskNs, due: &mut Vec<Due>) {
        self.disk.decide(now);
        let mut done = Vec::new();
        self.disk
            .take_completions(now.plus(self.earliest_ns()), &mut done);
        for completion in done {
            self.complete(completion);
        }
        while self.sent_at.peek().is_some_and(|first| first.0.0 <= now) {
            let first = self.sent_at.pop();
            let at = first.map(|first| first.0.1);
            let pending = first.and_then(|first| self.pending.remove(&first.0.2));
            due.extend(pending.map(|pending| pending.due(at)));
        }
        while self.delayed.peek().is_some_and(|first| first.0.at <= now) {
            let ended = self.delayed.pop();
            let pending = ended.and_then(|ended| self.pending.remove(&ended.0.id));
            due.extend(pending.map(|pending| pending.due(None)));
        }
    }

    /// The model has completed a request: it is sent in time, unless a trouble holds it back.
    fn complete(&mut self, completion: Completion) {
        let Completion { at, id } = completion;
        let Some(pending) = self.pending.get(&id) else {
            return;
        };
        match pending.trouble {
            Some(TroubleKind::DelayMs(ms)) => {
                let at = at.plus(ms.saturating_mul(1_000_000));
                self.delayed.push(Reverse(Completion { at, id }));
            }
            Some(TroubleKind::Withhold) => self.withheld.push(id),
            _ if !self.is_modelled => self.delayed.push(Reverse(completion)),
            _ => {
                let sent = at.0.saturating_sub(self.way.of(pending.bytes));
                let begins = sent.saturating_sub(self.sending.of(pending.reply.bytes()));
                let times = (DiskNs(begins), DiskNs(sent), id);
                self.sent_at.push(Reverse(times));
            }
        }
    }
}

impl Pending {
    fn due(self, at: Option<DiskNs>) -> Due {
        Due {
            failed: fails(self.trouble),
            reply: self.reply,
            at,
        }
    }
}

fn fails(trouble: Option<TroubleKind>) -> bool {
    matches!(trouble, Some(TroubleKind::Fail | TroubleKind::Tear))
}

/// Starts the thread that sends replies.
pub fn start(pacer: Arc<Pacer>) -> anyhow::Result<JoinHandle<()>> {
    let thread = thread::Builder::new().name(String::from("pacer"));
    thread.spawn(move || pacer.run()).context("start a thread")
}

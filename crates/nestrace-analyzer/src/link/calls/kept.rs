//! The whole trees of single calls that somebody asked for.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use crate::link::chains::StoryChoice;
use crate::model::call::Call;
use crate::model::span::{BioClock, Span};

/// Each holds a tree.
const MAX_KEPT: usize = 100_000;
/// Calls that wait until the clock is known.
const MAX_EARLY: usize = 1 << 16;

/// A call with its tree on the guest's clock.
#[derive(Debug)]
pub(crate) struct KeptCall {
    pub call: Call,
    pub program: u32,
    /// Process that its thread is of; 0 where that is not known.
    pub pid: u32,
    pub tree: Span,
    /// It waited for no bio and was not throttled.
    pub without_io: bool,
    /// Bios that it waited for, its commits' among them.
    pub bios: u64,
    /// All of its I/O was followed.
    pub linked: bool,
    /// Guest's clock minus the host's at each bio of the tree, in the tree's order.
    pub clocks: Vec<BioClock>,
}

impl KeptCall {
    fn key(&self) -> (u64, Reverse<u64>) {
        let latency_ns = self.call.end_ns.saturating_sub(self.call.start_ns);
        (latency_ns, Reverse(self.call.serial))
    }
}

impl PartialEq for KeptCall {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}
impl Eq for KeptCall {}
impl PartialOrd for KeptCall {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for KeptCall {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

/// The calls so far that are kept: never more than were asked for.
#[derive(Debug, Default)]
pub(super) struct KeptCalls {
    asked: Option<StoryChoice>,
    kept: BinaryHeap<Reverse<KeptCall>>,
    /// They are taken one by one, nearly in the order in which they become known.
    one_by_one: bool,
    /// The clock has decided on their bios.
    ready: VecDeque<KeptCall>,
    /// They waited for no bio: the clock may not know yet when they were.
    early: VecDeque<KeptCall>,
}

impl KeptCalls {
    pub(super) fn new(asked: Option<StoryChoice>) -> Self {
        Self {
            asked,
            ..Self::default()
        }
    }

    /// Whether any was asked for.
    pub(super) const fn any(&self) -> bool {
        self.asked.is_some()
    }

    /// From now on calls are taken with [`Self::next_ready`]. The slowest ones are known at the end only: these are kept
    /// as before.
    pub(super) fn one_by_one(&mut self) {
        self.one_by_one = !matches!(self.asked, Some(StoryChoice::Slowest(_)) | None);
    }

    /// The next call. One that waited for no bio has to fulfil `may_go` first, unless too many wait.
    pub(super) fn next_ready(&mut self, may_go: impl FnOnce(&Call) -> bool) -> Option<KeptCall> {
        if let Some(call) = self.ready.pop_front() {
            return Some(call);
        }
        let first = self.early.front()?;
        let goes = self.early.len() > MAX_EARLY || may_go(&first.call);
        goes.then(|| self.early.pop_front()).flatten()
    }

    /// Whether a call of this number that took so long is kept, as things are.
    pub(super) fn wants(&self, call: &Call) -> bool {
        match self.asked {
            Some(StoryChoice::Io(number)) => number == call.serial,
            Some(StoryChoice::Slowest(most)) => {
                let most = most.min(MAX_KEPT);
                let least = self.kept.peek().filter(|_| self.kept.len() >= most);
                let latency_ns = call.end_ns.saturating_sub(call.start_ns);
                most > 0 && least.is_none_or(|Reverse(least)| least.key().0 < latency_ns)
            }
            Some(StoryChoice::All) => self.one_by_one || self.kept.len() < MAX_KEPT,
            None => false,
        }
    }

    pub(super) fn keep(&mut self, call: KeptCall) {
        if self.one_by_one {
            let queue = match call.bios {
                0 => &mut self.early,
                _ => &mut self.ready,
            };
            return queue.push_back(call);
        }
        self.kept.push(Reverse(call));
        if let Some(StoryChoice::Slowest(most)) = self.asked
            && self.kept.len() > most.min(MAX_KEPT)
        {
            self.kept.pop();
        }
    }

    /// The slowest first.
    pub(super) fn take(&mut self) -> Vec<KeptCall> {
        let mut kept: Vec<KeptCall> = self.kept.drain().map(|Reverse(call)| call).collect();
        kept.sort_by_key(|call| Reverse(call.key()));
        kept
    }
}

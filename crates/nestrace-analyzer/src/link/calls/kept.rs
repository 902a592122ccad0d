//! The whole trees of single calls that somebody asked for.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::link::chains::StoryChoice;
use crate::model::call::Call;
use crate::model::span::{BioClock, Span};

/// Each holds a tree.
const MOST_KEPT: usize = 100_000;

/// A call with its tree on the guest's clock.
#[derive(Debug)]
pub(crate) struct KeptCall {
    pub call: Call,
    pub program: u32,
    pub tree: Span,
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

    /// Whether a call of this number that took so long is kept, as things are.
    pub(super) fn wants(&self, call: &Call) -> bool {
        match self.asked {
            Some(StoryChoice::Io(number)) => number == call.serial,
            Some(StoryChoice::Slowest(most)) => {
                let most = most.min(MOST_KEPT);
                let least = self.kept.peek().filter(|_| self.kept.len() >= most);
                let latency_ns = call.end_ns.saturating_sub(call.start_ns);
                most > 0 && least.is_none_or(|Reverse(least)| least.key().0 < latency_ns)
            }
            Some(StoryChoice::All) => self.kept.len() < MOST_KEPT,
            None => false,
        }
    }

    pub(super) fn keep(&mut self, call: KeptCall) {
        self.kept.push(Reverse(call));
        if let Some(StoryChoice::Slowest(most)) = self.asked
            && self.kept.len() > most.min(MOST_KEPT)
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

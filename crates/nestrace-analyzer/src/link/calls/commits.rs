//! Commits of the guests' journals (jbd2): what each wrote, until no call can have waited for it.

use std::collections::VecDeque;

use nestrace_abi::Kind;
use nestrace_trace::Event;

use super::waiters::{Waiter, Waiters};
use crate::model::call::Call;
use crate::model::pointer::PointerMap;
use crate::model::span::BioSpan;

/// Ended commits that are kept.
const MAX_ENDED: usize = 1 << 12;
/// Commits under way: a journal has one.
const MAX_OPEN: usize = 1 << 10;
/// Bios of one commit that are kept.
const MAX_BIOS: usize = 1 << 14;

/// A commit.
#[derive(Debug)]
pub(super) struct Commit {
    /// The journal's thread.
    pub tid: u32,
    pub transaction: u32,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Numbers of its bios.
    pub bios: Vec<u64>,
    /// Syncs that have ended and needed it.
    pub waiters: Waiters,
}

/// Commits under way by their threads, and those that have ended.
#[derive(Debug, Default)]
pub(super) struct Commits {
    open: PointerMap<u32, Commit>,
    ended: VecDeque<Commit>,
}

impl Commits {
    /// Takes an event of a journal; returns commits that no call needs any more.
    pub(super) fn event(&mut self, kind: Kind, event: &Event) -> Option<Commit> {
        match kind {
            Kind::JournalCommitStart if self.open.len() < MAX_OPEN => {
                let commit = Commit {
                    tid: event.tid,
                    transaction: event.object as u32,
                    start_ns: event.ts_ns,
                    end_ns: event.ts_ns,
                    bios: Vec::new(),
                    waiters: Waiters::default(),
                };
                self.open.insert(event.tid, commit)
            }
            Kind::JournalCommitEnd => {
                let mut commit = self.open.remove(&event.tid)?;
                if commit.transaction != event.object as u32 {
                    return Some(commit);
                }
                commit.end_ns = event.ts_ns;
                self.ended.push_back(commit);
                let too_many = self.ended.len() > MAX_ENDED;
                too_many.then(|| self.ended.pop_front()).flatten()
            }
            _ => None,
        }
    }

    /// A bio that ended: of the commit that its thread was making at its Q, if it was.
    pub(super) fn take(&mut self, bio: &BioSpan, id: u64) -> bool {
        let open = self.open.get_mut(&bio.tid);
        let Some(commit) = open.filter(|commit| bio.queued_ns >= commit.start_ns) else {
            return false;
        };
        if commit.bios.len() >= MAX_BIOS {
            return false;
        }
        commit.bios.push(id);
        true
    }

    /// The commits that a sync waited for: that of its transaction, if it ended during the call, and those of the same
    /// journal that had to end before.
    ///
    /// A transaction's number is the inode's when the sync ends. Had it been raised after the sync had read it, by a later
    /// change of the file, it would be a running transaction's, whose commit cannot have ended before the sync did.
    pub(super) fn waited_by(&self, call: &Call) -> Vec<&Commit> {
        let transaction = call.transaction();
        let within =
            |commit: &&Commit| commit.end_ns > call.start_ns && commit.end_ns <= call.end_ns;
        let mut its_own =
            self.ended.iter().filter(within).filter(|commit| {
                call.syncs() && transaction != 0 && commit.transaction == transaction
            });
        let (Some(own), None) = (its_own.next(), its_own.next()) else {
            return Vec::new();
        };
        let before = |commit: &&Commit| {
            commit.tid == own.tid && commit.end_ns <= own.start_ns && within(commit)
        };
        let earlier = self.ended.iter().filter(before);
        earlier.chain(std::iter::once(own)).collect()
    }

    /// A sync that has ended needed the commit of this transaction, by the journal's thread.
    pub(super) fn needed_by(&mut self, (tid, transaction): (u32, u32), waiter: Waiter) {
        let mut ended = self.ended.iter_mut();
        let its = |commit: &&mut Commit| (commit.tid, commit.transaction) == (tid, transaction);
        if let Some(commit) = ended.rfind(its) {
            commit.waiters.add(waiter);
        }
    }

    /// Takes out the commits that ended before this time.
    pub(super) fn before(&mut self, ts_ns: u64) -> Vec<Commit> {
        let old = self.ended.partition_point(|commit| commit.end_ns < ts_ns);
        self.ended.drain(..old).collect()
    }

    /// Takes out all.
    pub(super) fn drain(&mut self) -> Vec<Commit> {
        let open = self.open.drain().map(|(_, commit)| commit);
        self.ended.drain(..).chain(open).collect()
    }
}

//! Commits of the guests' journals (jbd2) and checkpoints of f2fs: what each wrote, until no call can have waited for it.
//!
//! f2fs makes one checkpoint after the other (`cp_global_sem`). A thread that asks for one waits for that which runs, and
//! for the next, whichever thread makes it (`f2fs_issue_checkpoint()`).

use std::collections::{BTreeSet, VecDeque};

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
/// `sub` of the begin and the end of a checkpoint of f2fs.
const F2FS: u8 = 1;

/// A commit.
#[derive(Debug)]
pub(super) struct Commit {
    /// The journal's thread, or that which makes the checkpoint.
    pub tid: u32,
    /// Of a checkpoint, how many of the guest's there were before.
    pub transaction: u32,
    /// Device number of the super block of a checkpoint; `None`: a journal's.
    checkpoint_of: Option<u32>,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Numbers of its bios.
    pub bios: Vec<u64>,
    /// Syncs that have ended and needed it.
    pub waiters: Waiters,
}

impl Commit {
    /// Its bios but for those that the call holds itself, whose thread may make the checkpoint.
    pub(super) fn without_own(&self, call: &Call) -> Vec<u64> {
        if self.tid != call.caller.tid {
            return self.bios.clone();
        }
        let own: BTreeSet<u64> = call.bios.iter().map(|bio| bio.id).collect();
        let others = self.bios.iter().copied();
        others.filter(|id| !own.contains(id)).collect()
    }
}

/// Commits under way by their threads, and those that have ended.
#[derive(Debug, Default)]
pub(super) struct Commits {
    open: PointerMap<u32, Commit>,
    ended: VecDeque<Commit>,
    n_checkpoints: u32,
}

impl Commits {
    /// Takes an event of a journal; returns commits that no call needs any more.
    pub(super) fn event(&mut self, kind: Kind, event: &Event) -> Option<Commit> {
        match kind {
            Kind::JournalCommitStart if self.open.len() < MAX_OPEN => {
                let of_f2fs = event.sub == F2FS;
                self.n_checkpoints = self.n_checkpoints.wrapping_add(u32::from(of_f2fs));
                let transaction = if of_f2fs {
                    self.n_checkpoints
                } else {
                    event.object as u32
                };
                let commit = Commit {
                    tid: event.tid,
                    transaction,
                    checkpoint_of: of_f2fs.then_some(event.dev),
                    start_ns: event.ts_ns,
                    end_ns: event.ts_ns,
                    bios: Vec::new(),
                    waiters: Waiters::default(),
                };
                self.open.insert(event.tid, commit)
            }
            Kind::JournalCommitEnd => {
                let mut commit = self.open.remove(&event.tid)?;
                let is_its = match commit.checkpoint_of {
                    Some(dev) => event.sub == F2FS && event.dev == dev,
                    None => commit.transaction == event.object as u32,
                };
                if !is_its {
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

    /// Whether a thread queued this bio for its checkpoint of f2fs: of files, that writes nothing but folders.
    pub(super) fn is_of_checkpoint(&self, bio: &BioSpan) -> bool {
        let open = self.open.get(&bio.tid);
        open.is_some_and(|commit| {
            commit.checkpoint_of.is_some() && bio.queued_ns >= commit.start_ns
        })
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
        let mut its_own = self.ended.iter().filter(within).filter(|commit| {
            let of_journal = commit.checkpoint_of.is_none();
            let is_its = commit.transaction == transaction && of_journal;
            call.syncs() && transaction != 0 && is_its
        });
        let (Some(own), None) = (its_own.next(), its_own.next()) else {
            return self.checkpoints_of(call);
        };
        let before = |commit: &&Commit| {
            commit.tid == own.tid && commit.end_ns <= own.start_ns && within(commit)
        };
        let earlier = self.ended.iter().filter(before);
        earlier.chain(std::iter::once(own)).collect()
    }

    /// The checkpoints of f2fs that a call waited for, in their order: those under way when it asked, and the first one that
    /// began after that. One that began when that had ended may be another call's.
    fn checkpoints_of(&self, call: &Call) -> Vec<&Commit> {
        let mut found: Vec<&Commit> = Vec::new();
        let waits = call.commit_waits.iter();
        for wait in waits.filter(|wait| wait.commit.is_checkpoint()) {
            let ended = self.ended.iter().filter(|commit| {
                let within = commit.end_ns > wait.ts_ns && commit.end_ns <= call.end_ns;
                within && commit.checkpoint_of == Some(wait.commit.dev)
            });
            for commit in ended {
                let known = found
                    .last()
                    .is_some_and(|last| last.end_ns >= commit.end_ns);
                if !known {
                    found.push(commit);
                }
                if commit.start_ns >= wait.ts_ns {
                    break;
                }
            }
        }
        found
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

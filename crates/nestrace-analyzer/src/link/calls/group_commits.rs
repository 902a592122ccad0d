//! Commits of btrfs: of a subvolume's log, and of transactions. One thread makes each, and all others wait for it.
//!
//! Each call that comes to a commit names it by its number, and so does the kernel's thread that commits transactions by
//! itself. A bio is the commit's to which the call or the thread that queues it has come last. A log is committed only when
//! the commit before has ended.

use std::collections::VecDeque;

use nestrace_trace::Event;

use crate::model::call::{Call, CommitId, CommitWait};
use crate::model::operation::Operation;
use crate::model::pointer::PointerMap;
use crate::model::span::BioSpan;
use crate::model::threads::Threads;

use super::pending::HeldCommit;
use super::waits::{data_of, is_of_trees};

/// Commits that are kept.
const MOST: usize = 1 << 10;
/// Bios of one commit that are kept.
const MAX_BIOS: usize = 1 << 14;
/// Commits of one call.
const MAX_OF_ONE: usize = 1 << 6;
/// Threads of the kernel that have come to a commit.
const MAX_COMMITTERS: usize = 1 << 8;
/// `btrfs-transaction`, as long as a thread's name may be: the kernel's thread of each btrfs that does nothing but commit
/// transactions (`transaction_kthread()`). Workers write for many a commit, so theirs are not known.
const COMMITTER: &str = "btrfs-transacti";
/// `sub` of `Kind::CommitWait` for a subvolume's log.
const LOG: u8 = 1;

/// A bio of a commit.
#[derive(Clone, Copy, Debug)]
struct Written {
    id: u64,
    ended_ns: u64,
}

/// A commit with its bios, in the order of their ends.
#[derive(Debug)]
pub(super) struct GroupCommit {
    commit: CommitId,
    bios: Vec<Written>,
}

impl GroupCommit {
    /// Numbers of its bios.
    pub(super) fn into_bios(self) -> impl Iterator<Item = u64> {
        self.bios.into_iter().map(|bio| bio.id)
    }

    fn ended_ns(&self) -> u64 {
        self.bios.last().map_or(0, |bio| bio.ended_ns)
    }
}

/// The commits of a guest's btrfs.
#[derive(Debug, Default)]
pub(super) struct GroupCommits {
    /// In the order of their first bio's end.
    commits: VecDeque<GroupCommit>,
    /// The commit to which a thread of the kernel has come last.
    committers: PointerMap<u32, CommitWait>,
}

/// A call has come to a commit.
pub(super) fn comes_to(call: &mut Call, commit: CommitId, ts_ns: u64) {
    if call.commit_waits.len() < MAX_OF_ONE {
        call.commit_waits.push(CommitWait { commit, ts_ns });
    } else {
        call.incomplete = true;
    }
}

/// The commit to which a call had come last when it queued a bio.
pub(super) fn of_call(call: &Call, bio: &BioSpan) -> Option<CommitId> {
    let before_it = |wait: &&CommitWait| wait.ts_ns <= bio.queued_ns;
    let commit = call.commit_waits.iter().rev().find(before_it)?.commit;
    // Which thread makes a checkpoint of f2fs, and with which bios, is recorded (`commits`).
    if commit.is_checkpoint() {
        return None;
    }
    // Super blocks and flushes name no file system. A call that is about a file writes those of its own.
    (is_of_trees(bio) || call.caller.file.dev == commit.dev).then_some(commit)
}

impl GroupCommits {
    /// A thread that is in no call has come to a commit.
    pub(super) fn committer_comes_to(&mut self, event: &Event, threads: &Threads) {
        let is_one = threads
            .get(event.tid)
            .is_some_and(|it| it.name == COMMITTER);
        let has_room = self.committers.len() < MAX_COMMITTERS;
        if is_one && (has_room || self.committers.contains_key(&event.tid)) {
            let wait = CommitWait {
                commit: CommitId::of(event),
                ts_ns: event.ts_ns,
            };
            self.committers.insert(event.tid, wait);
        }
    }

    /// The commit to which the kernel's thread had come last that queued a bio in no call.
    pub(super) fn of_committer(&self, bio: &BioSpan) -> Option<CommitId> {
        let wait = self.committers.get(&bio.tid)?;
        (wait.ts_ns <= bio.queued_ns).then_some(wait.commit)
    }

    /// A bio that ended, and the commit that was made as it was queued: whether it is the commit's. If that is one too many,
    /// the oldest commit is given back.
    pub(super) fn take(
        &mut self,
        bio: &BioSpan,
        id: u64,
        commit: CommitId,
    ) -> (bool, Option<GroupCommit>) {
        let is_its = if is_of_trees(bio) {
            bio.owner_dev == commit.dev
        } else {
            data_of(bio).is_none()
        };
        if bio.operation == Operation::Read || !is_its {
            return (false, None);
        }
        let written = Written {
            id,
            ended_ns: bio.ended_ns,
        };
        if let Some(group) = self
            .commits
            .iter_mut()
            .rev()
            .find(|group| group.commit == commit)
        {
            let has_room = group.bios.len() < MAX_BIOS;
            if has_room {
                group.bios.push(written);
            }
            return (has_room, None);
        }
        self.commits.push_back(GroupCommit {
            commit,
            bios: vec![written],
        });
        let too_many = self.commits.len() > MOST;
        (true, too_many.then(|| self.commits.pop_front()).flatten())
    }

    /// What a call that has ended waited for of commits that other threads made.
    pub(super) fn waited_by(&self, call: &Call) -> Vec<HeldCommit> {
        let mut held = Vec::new();
        for wait in &call.commit_waits {
            let before = CommitId {
                number: wait.commit.number.wrapping_sub(1),
                ..wait.commit
            };
            if wait.commit.what == LOG {
                held.extend(self.held(before, wait.ts_ns, call));
            }
            held.extend(self.held(wait.commit, wait.ts_ns, call));
        }
        held
    }

    fn held(&self, commit: CommitId, from_ns: u64, call: &Call) -> Option<HeldCommit> {
        let group = self.commits.iter().find(|group| group.commit == commit)?;
        let its = group.bios.iter().filter(|bio| {
            let is_own = call.bios.iter().any(|own| own.id == bio.id);
            bio.ended_ns > from_ns && bio.ended_ns <= call.end_ns && !is_own
        });
        let bios: Vec<Written> = its.copied().collect();
        let last = bios.last()?;
        Some(HeldCommit {
            start_ns: from_ns,
            end_ns: last.ended_ns,
            bios: bios.iter().map(|bio| bio.id).collect(),
        })
    }

    /// Takes out the commits without a bio that ended at or after this time.
    pub(super) fn before(&mut self, ts_ns: u64) -> Vec<GroupCommit> {
        let all = std::mem::take(&mut self.commits).into_iter();
        let (old, kept): (Vec<_>, VecDeque<_>) =
            all.fold(Default::default(), |(mut old, mut kept), group| {
                if group.ended_ns() < ts_ns {
                    old.push(group);
                } else {
                    kept.push_back(group);
                }
                (old, kept)
            });
        self.commits = kept;
        old
    }

    /// Takes out all.
    pub(super) fn drain(&mut self) -> Vec<GroupCommit> {
        self.committers = PointerMap::default();
        self.commits.drain(..).collect()
    }
}

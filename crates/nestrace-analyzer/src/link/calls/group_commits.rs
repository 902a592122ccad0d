//! Commits of btrfs: of a subvolume's log, and of transactions. One thread makes each, and all others wait for it.
//!
//! Each call that comes to a commit names it by its number. A bio is the commit's to which the call that queues it has come
//! last. A log is committed only when the commit before has ended.

use std::collections::VecDeque;

use crate::model::call::{Call, CommitId, CommitWait};
use crate::model::operation::Operation;
use crate::model::span::BioSpan;

use super::pending::HeldCommit;
use super::waits::{data_of, is_of_trees};

/// Commits that are kept.
const MOST: usize = 1 << 10;
/// Bios of one commit that are kept.
const MOST_BIOS: usize = 1 << 14;
/// Commits of one call.
const MOST_OF_ONE: usize = 1 << 6;
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

/// The commits of a guest's btrfs, in the order of their first bio's end.
#[derive(Debug, Default)]
pub(super) struct GroupCommits(VecDeque<GroupCommit>);

/// A call has come to a commit.
pub(super) fn comes_to(call: &mut Call, commit: CommitId, ts_ns: u64) {
    if call.commit_waits.len() < MOST_OF_ONE {
        call.commit_waits.push(CommitWait { commit, ts_ns });
    } else {
        call.incomplete = true;
    }
}

impl GroupCommits {
    /// A bio that ended, and the call that queued it: whether it is a commit's. If that is one too many, the oldest commit
    /// is given back.
    pub(super) fn take(
        &mut self,
        bio: &BioSpan,
        id: u64,
        call: &Call,
    ) -> (bool, Option<GroupCommit>) {
        let before_it = |wait: &&CommitWait| wait.ts_ns <= bio.queued_ns;
        let last = call.commit_waits.iter().rev().find(before_it);
        let Some(commit) = last.map(|wait| wait.commit) else {
            return (false, None);
        };
        // Super blocks and flushes name no file system. A call that is about a file writes those of its own.
        let of_trees = is_of_trees(bio) && bio.owner_dev == commit.dev;
        let is_other = is_of_trees(bio) || data_of(bio).is_some();
        let is_its = of_trees || !is_other && call.caller.file.dev == commit.dev;
        if bio.operation == Operation::Read || !is_its {
            return (false, None);
        }
        let written = Written {
            id,
            ended_ns: bio.ended_ns,
        };
        if let Some(group) = self.0.iter_mut().rev().find(|group| group.commit == commit) {
            let has_room = group.bios.len() < MOST_BIOS;
            if has_room {
                group.bios.push(written);
            }
            return (has_room, None);
        }
        self.0.push_back(GroupCommit {
            commit,
            bios: vec![written],
        });
        let too_many = self.0.len() > MOST;
        (true, too_many.then(|| self.0.pop_front()).flatten())
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
        let group = self.0.iter().find(|group| group.commit == commit)?;
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
        let all = std::mem::take(&mut self.0).into_iter();
        let (old, kept): (Vec<_>, VecDeque<_>) =
            all.fold(Default::default(), |(mut old, mut kept), group| {
                if group.ended_ns() < ts_ns {
                    old.push(group);
                } else {
                    kept.push_back(group);
                }
                (old, kept)
            });
        self.0 = kept;
        old
    }

    /// Takes out all.
    pub(super) fn drain(&mut self) -> Vec<GroupCommit> {
        self.0.drain(..).collect()
    }
}

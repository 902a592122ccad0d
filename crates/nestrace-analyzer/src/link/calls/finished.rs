//! Calls for which all that they waited for is known, or is given up, and what they and commits let go of.

use std::collections::BTreeSet;

use crate::link::chains::{Times, walk_with};
use crate::model::threads::Threads;

use super::commits::Commit;
use super::pending::{Pending, bio_ids};
use super::{CallLinks, KeptCall, pid, tree};

impl CallLinks {
    /// All that a call waited for is known.
    pub(super) fn finish_call(&mut self, pending: Pending, threads: &Threads) {
        let linked = !pending.call.incomplete && self.is_linked(&pending);
        let kept = self.kept.wants(&pending.call);
        let tree = (linked || kept).then(|| tree::of(&pending, &mut self.bios));
        let times = tree
            .as_ref()
            .filter(|_| linked)
            .map(|tree| walk_with(&tree.span, Some(&self.cpu)));
        self.count_call(&pending, times.as_ref(), threads);
        let clock_of = |id: &u64| self.bios.get(*id).map(|bio| bio.clock.clone());
        let tree = tree.filter(|_| kept).map(|tree| {
            let clocks = tree.bios.iter().filter_map(clock_of).collect();
            (tree.span, clocks)
        });
        self.release_all(&pending, threads);
        if let Some((tree, clocks)) = tree {
            let bios: BTreeSet<u64> = bio_ids(&pending).collect();
            let call = pending.call;
            let program = self.programs.of(call.caller.tid, threads);
            self.kept.keep(KeptCall {
                pid: pid(&call, threads),
                call,
                program,
                tree,
                linked,
                without_io: false,
                bios: bios.len() as u64,
                clocks,
            });
        }
    }

    fn is_linked(&self, pending: &Pending) -> bool {
        let mut ids = bio_ids(pending);
        ids.all(|id| self.bios.get(id).is_some_and(|bio| bio.linked))
    }

    fn count_call(&mut self, pending: &Pending, times: Option<&Times>, threads: &Threads) {
        let call = &pending.call;
        let program = self.programs.of(call.caller.tid, threads);
        let row = self.rows.at(program, call.caller);
        row.add(call, false, times);
        pending.wait.count(row, times);
        for id in bio_ids(pending) {
            let Some(bio) = self.bios.get_mut(id) else {
                continue;
            };
            if !std::mem::replace(&mut bio.counted, true) {
                row.waited.add(bio.bytes);
                self.totals.waited.add(bio.bytes);
            }
        }
        let of_commits = pending.commits.iter().flat_map(|commit| &commit.bios);
        for bio in of_commits.filter_map(|id| self.bios.get(*id)) {
            if let Some(file) = bio.data_of.filter(|file| *file != call.caller.file) {
                let program = bio.cause.writer.map(|(_, program, _)| program);
                row.others_data(file, program, bio.bytes);
            }
        }
    }

    /// Too many wait, or nothing more is decided.
    pub(super) fn give_up(&mut self, mut pending: Pending, threads: &Threads) {
        for id in bio_ids(&pending).collect::<Vec<u64>>() {
            if let Some(bio) = self.bios.get_mut(id) {
                bio.waiting.retain(|serial| *serial != pending.call.serial);
            }
        }
        pending.call.incomplete = true;
        self.finish_call(pending, threads);
    }

    pub(super) fn release_all(&mut self, pending: &Pending, threads: &Threads) {
        for id in bio_ids(pending).collect::<Vec<u64>>() {
            self.release(id, threads);
        }
    }

    /// One that held a bio needs it no more.
    pub(super) fn release(&mut self, id: u64, threads: &Threads) {
        match self.bios.release(id) {
            Some(bio) if bio.counted => {}
            Some(bio) if bio.in_commit => self.totals.journal.add(bio.bytes),
            Some(bio) => self.not_waited_for(bio.cause, threads),
            None => {}
        }
    }

    pub(super) fn drop_commit(&mut self, commit: Commit, threads: &Threads) {
        self.drop_bios(commit.bios.into_iter(), threads);
    }

    pub(super) fn drop_commits(&mut self, threads: &Threads) {
        for commit in self.commits.drain() {
            self.drop_commit(commit, threads);
        }
        for commit in self.group_commits.drain() {
            self.drop_bios(commit.into_bios(), threads);
        }
    }

    pub(super) fn drop_bios(&mut self, bios: impl Iterator<Item = u64>, threads: &Threads) {
        for bio in bios {
            self.release(bio, threads);
        }
    }
}

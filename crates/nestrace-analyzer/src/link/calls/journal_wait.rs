//! What a sync waited for in the journal that it did not need by itself: commits that syncs of other files had asked for,
//! and a commit that no data of its file needed.

use super::commits::{Commit, Commits};
use super::rows::Row;
use super::waiters::Waiter;
use crate::link::chains::Times;
use crate::model::call::{Call, Why};
use nestrace_abi::flags::op;

/// Programs and files that a row remembers.
const MAX_BEHIND: usize = 8;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct JournalWait {
    /// Which commit it needed was not recorded.
    unknown: bool,
    /// The commit that it waited for holds nothing that its data need.
    for_times: bool,
    /// From the end of its own data to the end of other files' commits.
    behind_ns: u64,
    behind: Vec<Waiter>,
}

impl JournalWait {
    /// Of a call that has ended; a sync is remembered as one that needed its commit.
    pub(super) fn of(call: &Call, commits: &mut Commits, program: u32) -> Self {
        let waited = commits.waited_by(call);
        let wait = Self::behind(call, &waited);
        if let Some(own) = waited.last().map(|own| (own.tid, own.transaction)) {
            commits.needed_by(own, (call.caller.file, program));
        }
        wait
    }

    /// Of a call and the commits that it waited for, its own last.
    fn behind(call: &Call, commits: &[&Commit]) -> Self {
        let (needed, by_data) = call.transactions;
        let unknown = is_sync_of_a_file(call) && needed == 0;
        let Some((_, before)) = commits.split_last() else {
            return Self {
                unknown,
                ..Self::default()
            };
        };
        let includes_data = commits.iter().any(|commit| commit.transaction == by_data);
        let mut wait = Self {
            unknown,
            for_times: !call.data_only
                && is_sync_of_a_file(call)
                && by_data != 0
                && !includes_data
                // Numbers of transactions wrap around.
                && needed.wrapping_sub(by_data) as i32 > 0,
            ..Self::default()
        };
        let mut cursor_ns = call.start_ns;
        for commit in before {
            let others = commit.waiters.others(call.caller.file);
            let begin_ns = data_end(call, commit.end_ns)
                .max(commit.start_ns)
                .max(cursor_ns);
            if !others.is_empty() && begin_ns < commit.end_ns {
                wait.behind_ns += commit.end_ns - begin_ns;
                wait.behind.extend(others);
            }
            cursor_ns = cursor_ns.max(commit.end_ns);
        }
        wait
    }

    /// Counts it in the row of its call.
    pub(super) fn count(&self, row: &mut Row, times: Option<&Times>) {
        row.syncs.unknown_commit += u64::from(self.unknown);
        let Some(times) = times else { return };
        if self.for_times {
            row.syncs.for_times += 1;
            row.syncs.for_times_ns += u128::from(times.under_journal_ns);
        }
        if self.behind_ns > 0 {
            row.syncs.behind += 1;
            row.syncs.behind_ns += u128::from(self.behind_ns);
            self.behind
                .iter()
                .for_each(|waiter| row.waits_behind(*waiter));
        }
    }
}

impl Row {
    /// Syncs of this row waited for a commit of another one.
    pub(super) fn waits_behind(&mut self, waiter: Waiter) {
        if self.behind.len() < MAX_BEHIND && !self.behind.contains(&waiter) {
            self.behind.push(waiter);
        }
    }

    /// Counts a write or a sync; `times` where all of its I/O was followed.
    pub(super) fn count_sync(&mut self, call: &Call, without_io: bool, times: Option<&Times>) {
        let counts = &mut self.syncs;
        if call.caller.op == op::WRITE && call.result > 0 {
            let bytes = call.result.unsigned_abs();
            counts.writes += 1;
            counts.written_bytes = counts.written_bytes.saturating_add(bytes);
            counts.in_sequence += u64::from(call.offset == self.next_offset);
            self.next_offset = call.offset.saturating_add(bytes);
        }
        if without_io || call.result < 0 || !is_sync_of_a_file(call) {
            return;
        }
        counts.syncs += 1;
        if let Some(times) = times {
            counts.followed += 1;
            counts.latency_ns += u128::from(call.end_ns.saturating_sub(call.start_ns));
            counts.others_data_ns += u128::from(times.others_data_ns);
        }
    }
}

/// It waits until one file is on the disk.
fn is_sync_of_a_file(call: &Call) -> bool {
    call.synced_write || matches!(call.caller.op, op::FSYNC | op::FDATASYNC)
}

/// When the last of the call's own bios ended that ended before this time.
fn data_end(call: &Call, before_ns: u64) -> u64 {
    let own = call.bios.iter().filter(|bio| bio.why != Why::Log);
    let ends = own.map(|bio| bio.ended_ns);
    ends.filter(|ended_ns| *ended_ns <= before_ns)
        .max()
        .unwrap_or(call.start_ns)
        .max(call.start_ns)
}

//! Sums of calls by program, file and operation.

use std::collections::HashMap;

use super::waiters::Waiter;
use crate::link::chains::{SegmentMeter, Times};
use crate::measure::clues::SyncCounts;
use crate::measure::histogram::Histogram;
use crate::model::call::{Call, Caller, FileId};
use crate::model::pointer::PointerMap;
use crate::model::threads::Threads;
use crate::result::analysis::CallIo;

/// Rows that are kept; where there are more, the ones with the least time become one for each program and operation.
const MOST_ROWS: usize = 1 << 12;
/// Programs that have names of their own.
const MOST_PROGRAMS: usize = 1 << 12;
/// Other files that a row remembers.
const MOST_OTHERS: usize = 64;

/// What a row is about. [`ANY_FILE`] stands for the files of rows that were summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct RowKey {
    /// Index into [`Programs`].
    pub program: u32,
    pub file: FileId,
    pub op: u8,
}

/// In place of the file of a row that sums further ones.
pub(super) const ANY_FILE: FileId = FileId {
    dev: u32::MAX,
    inode: u64::MAX,
};

/// One row.
#[derive(Debug, Default)]
pub(super) struct Row {
    pub without_io: u64,
    pub failed: u64,
    pub bytes: u64,
    pub latency: Histogram,
    /// Of the linked ones.
    pub segments: SegmentMeter,
    pub others_data_ns: u128,
    pub under_journal_ns: u128,
    /// Bytes of other files' data, with the program that wrote it.
    pub others: Vec<(FileId, Option<u32>, u64)>,
    pub waited: CallIo,
    pub deferred: CallIo,
    pub delay: Histogram,
    pub syncs: SyncCounts,
    /// Where the last write ended.
    pub next_offset: u64,
    /// Syncs whose commits had to end before these calls' own began.
    pub behind: Vec<Waiter>,
}

impl Row {
    /// Adds a call; `times` where all of its I/O was followed.
    pub(super) fn add(&mut self, call: &Call, without_io: bool, times: Option<&Times>) {
        let latency_ns = call.end_ns.saturating_sub(call.start_ns);
        self.latency.record(latency_ns);
        self.without_io += u64::from(without_io);
        match u64::try_from(call.result) {
            Ok(bytes) if call.moves_data() => {
                self.bytes = self.bytes.saturating_add(bytes);
            }
            Ok(_) => {}
            Err(_) => self.failed += 1,
        }
        self.count_sync(call, without_io, times);
        if let Some(times) = times {
            self.segments.add(times, latency_ns);
            self.others_data_ns += u128::from(times.others_data_ns);
            self.under_journal_ns += u128::from(times.under_journal_ns);
        }
    }

    pub(super) fn others_data(&mut self, file: FileId, program: Option<u32>, bytes: u64) {
        let mut others = self.others.iter_mut();
        if let Some(known) = others.find(|it| (it.0, it.1) == (file, program)) {
            known.2 = known.2.saturating_add(bytes);
        } else if self.others.len() < MOST_OTHERS {
            self.others.push((file, program, bytes));
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.without_io += other.without_io;
        self.failed += other.failed;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.latency.merge(&other.latency);
        self.segments.merge(&other.segments);
        self.others_data_ns += other.others_data_ns;
        self.under_journal_ns += other.under_journal_ns;
        for (file, program, bytes) in &other.others {
            self.others_data(*file, *program, *bytes);
        }
        self.waited.merge(other.waited);
        self.deferred.merge(other.deferred);
        self.delay.merge(&other.delay);
        self.syncs.add(other.syncs);
        other.behind.iter().for_each(|it| self.waits_behind(*it));
    }
}

/// Names of programs, each once.
#[derive(Debug, Default)]
pub(super) struct Programs {
    pub names: Vec<String>,
    by_name: HashMap<String, u32>,
    of_thread: PointerMap<u32, u32>,
    /// [`Threads::changes`] at which `of_thread` was right.
    at: u64,
}

impl Programs {
    /// The program of a thread.
    pub(super) fn of(&mut self, tid: u32, threads: &Threads) -> u32 {
        if self.at != threads.changes() {
            self.at = threads.changes();
            self.of_thread.clear();
        }
        if let Some(known) = self.of_thread.get(&tid) {
            return *known;
        }
        let (_, name) = threads.process(tid);
        let program = self.named(name);
        self.of_thread.insert(tid, program);
        program
    }

    fn named(&mut self, name: String) -> u32 {
        if let Some(known) = self.by_name.get(&name) {
            return *known;
        }
        let name = if self.names.len() < MOST_PROGRAMS {
            name
        } else {
            String::from("…")
        };
        let number = self.names.len() as u32;
        let number = *self.by_name.entry(name.clone()).or_insert(number);
        if number as usize == self.names.len() {
            self.names.push(name);
        }
        number
    }
}

/// Rows by key.
#[derive(Debug, Default)]
pub(super) struct Rows {
    rows: HashMap<RowKey, Row>,
}

impl Rows {
    /// The row of a caller.
    pub(super) fn at(&mut self, program: u32, caller: Caller) -> &mut Row {
        let key = RowKey {
            program,
            file: caller.file,
            op: caller.op,
        };
        if self.rows.len() >= MOST_ROWS && !self.rows.contains_key(&key) {
            self.sum_up();
        }
        self.rows.entry(key).or_default()
    }

    /// Makes the half of the rows with the least time one for each program and operation.
    #[cold]
    fn sum_up(&mut self) {
        let mut sums: Vec<u128> = self.rows.values().map(|row| row.latency.sum()).collect();
        let middle = sums.len() / 2;
        let (_, median, _) = sums.select_nth_unstable(middle);
        let limit = *median;
        let small =
            |key: &RowKey, row: &mut Row| key.file != ANY_FILE && row.latency.sum() <= limit;
        let taken: Vec<(RowKey, Row)> = self.rows.extract_if(|key, row| small(key, row)).collect();
        for (key, row) in taken {
            let any = RowKey {
                file: ANY_FILE,
                ..key
            };
            self.rows.entry(any).or_default().merge(&row);
        }
    }

    /// All rows, the ones with the most time first.
    pub(super) fn sorted(&self) -> Vec<(RowKey, &Row)> {
        let mut all: Vec<(RowKey, &Row)> = self.rows.iter().map(|(key, row)| (*key, row)).collect();
        all.sort_by_key(|(key, row)| (std::cmp::Reverse(row.latency.sum()), *key));
        all
    }
}

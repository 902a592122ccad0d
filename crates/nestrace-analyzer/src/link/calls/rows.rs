//! Sums of calls by program, file and operation.

use std::collections::HashMap;

use super::waiters::Waiter;
use crate::link::chains::{SegmentMeter, Times};
use crate::measure::clues::SyncCounts;
use crate::measure::histogram::Histogram;
use crate::measure::series::SeriesMeter;
use crate::model::call::{By, Call, Caller, FileId};
use crate::model::pointer::PointerMap;
use crate::model::threads::Threads;
use crate::result::analysis::CallIo;
use crate::result::segments::SegmentKind;
use crate::result::sums::CallSums;

/// Rows that are kept; where there are more, the ones with the least time become one for each program and operation.
const MAX_ROWS: usize = 1 << 12;
/// Rows with sums by time, some 250 KB each. Where there are more, the half with the least time loses them.
const MAX_SERIES: usize = 1 << 7;
/// Programs that have names of their own.
const MAX_PROGRAMS: usize = 1 << 12;
/// Other files that a row remembers.
const MAX_OTHERS: usize = 64;

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
    /// By aio or io_uring.
    pub submitted: u64,
    pub bytes: u64,
    pub latency: Histogram,
    /// Of the linked ones.
    pub segments: SegmentMeter,
    pub others_data_ns: u128,
    pub under_journal_ns: u128,
    pub under_image_sync_ns: u128,
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
    /// For comparisons.
    pub series: Option<Box<SeriesMeter<CallSums>>>,
}

impl Row {
    fn with_series() -> Self {
        Self {
            series: Some(Box::default()),
            ..Self::default()
        }
    }

    /// Adds a call; `times` where all of its I/O was followed.
    pub(super) fn add(&mut self, call: &Call, without_io: bool, times: Option<&Times>) {
        let latency_ns = call.end_ns.saturating_sub(call.start_ns);
        self.latency.record(latency_ns);
        self.without_io += u64::from(without_io);
        self.submitted += u64::from(call.by != By::Thread);
        match u64::try_from(call.result) {
            Ok(bytes) if call.moves_data() => {
                self.bytes = self.bytes.saturating_add(bytes);
            }
            Ok(_) => {}
            Err(_) => self.failed += 1,
        }
        self.count_sync(call, without_io, times);
        if let Some(series) = &mut self.series {
            let sums = series.at(call.end_ns);
            sums.latency.record(latency_ns);
            if let Some(times) = times {
                sums.linked.record(latency_ns);
                for segment in SegmentKind::OF_CALL {
                    let sum_ns = &mut sums.segments[segment as usize];
                    *sum_ns = sum_ns.saturating_add(times.of(segment));
                }
            }
        }
        if let Some(times) = times {
            self.segments.add(times, latency_ns);
            self.others_data_ns += u128::from(times.others_data_ns);
            self.under_journal_ns += u128::from(times.under_journal_ns);
            self.under_image_sync_ns += u128::from(times.under_image_sync_ns);
        }
    }

    pub(super) fn others_data(&mut self, file: FileId, program: Option<u32>, bytes: u64) {
        let mut others = self.others.iter_mut();
        if let Some(known) = others.find(|it| (it.0, it.1) == (file, program)) {
            known.2 = known.2.saturating_add(bytes);
        } else if self.others.len() < MAX_OTHERS {
            self.others.push((file, program, bytes));
        }
    }

    /// Adds another row; the sums by time are of this one alone.
    pub(super) fn merge(&mut self, other: &Self) {
        self.without_io += other.without_io;
        self.failed += other.failed;
        self.submitted += other.submitted;
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.latency.merge(&other.latency);
        self.segments.merge(&other.segments);
        self.others_data_ns += other.others_data_ns;
        self.under_journal_ns += other.under_journal_ns;
        self.under_image_sync_ns += other.under_image_sync_ns;
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
        let name = if self.names.len() < MAX_PROGRAMS {
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
    with_series: usize,
}

impl Rows {
    /// The row of a caller.
    pub(super) fn at(&mut self, program: u32, caller: Caller) -> &mut Row {
        let key = RowKey {
            program,
            file: caller.file,
            op: caller.op,
        };
        let full = self.rows.len() >= MAX_ROWS || self.with_series >= MAX_SERIES;
        if full && !self.rows.contains_key(&key) {
            self.make_room();
        }
        let with_series = &mut self.with_series;
        self.rows.entry(key).or_insert_with(|| {
            *with_series += 1;
            Row::with_series()
        })
    }

    #[cold]
    fn make_room(&mut self) {
        if self.rows.len() >= MAX_ROWS {
            self.sum_up();
        }
        if self.with_series >= MAX_SERIES {
            self.drop_series();
        }
        let rows = self.rows.values();
        self.with_series = rows.filter(|row| row.series.is_some()).count();
    }

    /// Keeps sums by time of the half that has the most time.
    fn drop_series(&mut self) {
        let rows = self.rows.iter_mut();
        let mut with: Vec<_> = rows.filter(|(_, row)| row.series.is_some()).collect();
        let middle = with.len() / 2;
        if middle > 0 {
            // Of rows with the same time the key decides, so that each analysis of a recording gives the same.
            with.select_nth_unstable_by_key(middle, |(key, row)| (row.latency.sum(), **key));
        }
        with.into_iter()
            .take(middle)
            .for_each(|(_, row)| row.series = None);
    }

    /// Makes the half of the rows with the least time one for each program and operation.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_by_time_stay_with_the_rows_that_have_the_most_time() {
        let mut rows = Rows::default();
        let of_file = |inode| Caller {
            file: FileId { dev: 1, inode },
            ..Caller::default()
        };
        // The costliest came first, then a thousand files that hardly cost anything.
        for inode in 0..1_000u64 {
            let row = rows.at(0, of_file(inode));
            row.latency.record(if inode < 10 { 1_000_000 } else { 1 });
            assert!(rows.with_series <= MAX_SERIES);
        }
        for inode in 0..10 {
            assert!(rows.at(0, of_file(inode)).series.is_some(), "{inode}");
        }
        let kept = rows.rows.values().filter(|row| row.series.is_some());
        let kept = kept.count();
        assert!((MAX_SERIES / 2..=MAX_SERIES).contains(&kept), "{kept}");
        // One that lost them does not begin anew: the sums would not be of the whole recording.
        assert!(rows.at(0, of_file(10)).series.is_none());
    }
}

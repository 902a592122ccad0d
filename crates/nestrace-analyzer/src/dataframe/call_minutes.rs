//! Calls of the guests' programs by minute: what a fleet keeps of them for years.

use std::collections::{BTreeMap, BTreeSet};

use polars::prelude::Column;

use super::minutes::{MINUTE_NS, distribution_columns, signed};
use super::{DataFrame, PolarsResult, table};
use crate::Analysis;
use crate::result::analysis::{CallFile, CallOperation, CallRow, CallStory, SUM};
use crate::result::segments::{CALL_SEGMENT_NAMES, CALL_SEGMENTS};
use crate::result::sums::{Sum, Times};

/// Rows that are kept, some 4 KB each; calls of further programs, files and minutes are in rows that sum the rest.
const MAX_ROWS: usize = 1 << 14;

/// Who called, what it did, and on which file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key {
    guest: String,
    process: String,
    op: CallOperation,
    mount: String,
    inode: Option<u64>,
    path: Option<String>,
}

impl Key {
    fn new(guest: &str, process: &str, op: CallOperation, file: &CallFile) -> Self {
        Self {
            guest: guest.to_owned(),
            process: process.to_owned(),
            op,
            mount: file.mount.clone(),
            inode: file.inode,
            path: file.path.clone(),
        }
    }

    fn of_row(row: &CallRow) -> Self {
        Self::new(&row.guest, &row.process, row.op, &row.file)
    }

    /// The row that sums what has none of its own.
    fn into_rest(self) -> Self {
        Self {
            process: SUM.to_owned(),
            mount: SUM.to_owned(),
            inode: None,
            path: None,
            ..self
        }
    }
}

/// What was counted in a minute.
#[derive(Clone, Debug, Default)]
struct Counts {
    latency: Times,
    linked: Sum,
    /// Of the linked ones, in the order of [`CALL_SEGMENT_NAMES`].
    segments: [u64; CALL_SEGMENTS],
    without_io: u64,
    failed: u64,
    bytes: u64,
}

/// Sums of calls by program, file, operation and minute, made of one call after the other.
#[derive(Clone, Debug, Default)]
pub struct CallMinutes {
    /// Those that have a row of their own in the analysis.
    alone: BTreeSet<Key>,
    /// The minute, nanoseconds since 1970; `None` where the time of day is not known.
    rows: BTreeMap<(Key, Option<i64>), Counts>,
}

impl CallMinutes {
    /// No call yet. The rows will be those of [`Analysis::calls`] of the same recording: what is summed up there is summed
    /// up here.
    #[must_use]
    pub fn new(analysis: &Analysis) -> Self {
        Self {
            alone: analysis.calls.iter().flatten().map(Key::of_row).collect(),
            rows: BTreeMap::new(),
        }
    }

    /// Adds a call that began at this time of day, nanoseconds since 1970.
    pub fn push(&mut self, call: &CallStory, unix_ns: Option<i64>) {
        let minute = unix_ns.map(|ns| ns - ns.rem_euclid(MINUTE_NS));
        let mut key = Key::new(&call.guest, &call.process, call.op, &call.file);
        if !self.alone.contains(&key) {
            key = key.into_rest();
        }
        let mut key = (key, minute);
        if self.rows.len() >= MAX_ROWS && !self.rows.contains_key(&key) {
            // The rest of all minutes together: one row more for each operation of a guest.
            key = (key.0.into_rest(), None);
        }
        self.rows.entry(key).or_default().add(call);
    }

    /// A row for each program, file, operation and minute (UTC) with any call.
    ///
    /// `n` calls have the sum `sum_ns`; over all minutes `n`, `without_io`, `failed`, `linked`, `bytes` and the sums are
    /// those of [`Analysis::calls`]. `at_most_ns` and `counts` are as in [`minutes`](super::minutes). The segments are
    /// sums over the `linked` ones, with the sum `linked_ns`.
    ///
    /// # Errors
    ///
    /// None that is known: polars' own, should it refuse a table of equally long columns.
    pub fn table(&self) -> PolarsResult<DataFrame> {
        let rows: Vec<(&Key, Option<i64>, &Counts)> = self
            .rows
            .iter()
            .map(|((key, minute), counts)| (key, *minute, counts))
            .collect();
        let mut table = table!(&rows, row => {
            guest: row.0.guest.as_str(),
            process: row.0.process.as_str(),
            op: row.0.op.name(),
            mount: (!row.0.mount.is_empty()).then_some(row.0.mount.as_str()),
            inode: row.0.inode.map(signed),
            path: row.0.path.as_deref(),
            minute_unix_ns: row.1,
            n: signed(row.2.latency.sum().n),
            sum_ns: signed(row.2.latency.sum_ns),
            bytes: signed(row.2.bytes),
            without_io: signed(row.2.without_io),
            failed: signed(row.2.failed),
            linked: signed(row.2.linked.n),
            linked_ns: signed(row.2.linked.sum),
        })?;
        let distributions = rows
            .iter()
            .map(|(_, _, counts)| Some(&counts.latency.latencies));
        for column in distribution_columns(distributions.collect())? {
            table.with_column(column)?;
        }
        for (place, name) in CALL_SEGMENT_NAMES.iter().enumerate() {
            let values = rows
                .iter()
                .map(|(_, _, counts)| counts.segments.get(place).copied().map(signed));
            let values: Vec<Option<i64>> = values.collect();
            table.with_column(Column::new(format!("{name}_ns").into(), values))?;
        }
        Ok(table)
    }
}

impl Counts {
    fn add(&mut self, call: &CallStory) {
        self.latency.record(call.latency_ns);
        self.without_io += u64::from(call.without_io);
        match u64::try_from(call.result) {
            Ok(bytes) if call.op.moves_data() => self.bytes = self.bytes.saturating_add(bytes),
            Ok(_) => {}
            Err(_) => self.failed += 1,
        }
        if !call.linked {
            return;
        }
        self.linked.record(call.latency_ns);
        for (sum_ns, name) in self.segments.iter_mut().zip(CALL_SEGMENT_NAMES) {
            *sum_ns = sum_ns.saturating_add(call.segment_ns(name).unwrap_or(0));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::analysis::{StoryLayer, StorySegment, StorySpan, StoryWork};
    use crate::result::side::Side;

    fn call(process: &str, latency_ns: u64, result: i64) -> CallStory {
        CallStory {
            side: Side::Guest,
            call: 1,
            guest: String::from("vm"),
            process: process.to_owned(),
            pid: None,
            tid: 1,
            op: CallOperation::Read,
            file: CallFile {
                mount: String::from("/"),
                inode: Some(7),
                path: None,
            },
            disk: String::new(),
            guest_device: String::new(),
            offset: 0,
            bytes: 4096,
            result,
            at_ns: None,
            clock_bound_ns: 0,
            latency_ns,
            without_io: false,
            bios: 1,
            linked: result >= 0,
            segments: vec![StorySegment {
                name: "device",
                ns: latency_ns,
            }],
            tree: StorySpan {
                layer: StoryLayer::Call,
                what: StoryWork::Read,
                place: String::new(),
                offset: 0,
                bytes: 0,
                ts_ns: 0,
                from_ns: 0,
                to_ns: 0,
                shared: false,
                stacked: false,
                remote: false,
                children: Vec::new(),
            },
        }
    }

    fn minutes_of(processes: &[&str]) -> CallMinutes {
        let known = processes.iter().map(|name| {
            let call = call(name, 1, 0);
            Key::new(&call.guest, &call.process, call.op, &call.file)
        });
        CallMinutes {
            alone: known.collect(),
            rows: BTreeMap::new(),
        }
    }

    #[test]
    fn calls_add_up_by_minute_and_program() {
        let mut minutes = minutes_of(&["db"]);
        minutes.push(&call("db", 5_000, 4096), Some(MINUTE_NS + 1));
        minutes.push(&call("db", 7_000, -5), Some(2 * MINUTE_NS - 1));
        minutes.push(&call("db", 9_000, 100), Some(2 * MINUTE_NS));
        minutes.push(&call("cron", 1, 1), None);
        let table = minutes.table().expect("a table");
        let numbers = |name: &str| -> Vec<Option<i64>> {
            let column = table.column(name).expect("a column");
            column.i64().expect("numbers").iter().collect()
        };
        // By name: the one without a row in the analysis is in a row that sums the rest.
        let first = Some(MINUTE_NS);
        assert_eq!(
            numbers("minute_unix_ns"),
            [first, Some(2 * MINUTE_NS), None]
        );
        assert_eq!(numbers("n"), [Some(2), Some(1), Some(1)]);
        assert_eq!(numbers("sum_ns"), [Some(12_000), Some(9_000), Some(1)]);
        assert_eq!(numbers("failed"), [Some(1), Some(0), Some(0)]);
        assert_eq!(numbers("linked_ns"), [Some(5_000), Some(9_000), Some(1)]);
        assert_eq!(numbers("device_ns"), numbers("linked_ns"));
        assert_eq!(numbers("bytes"), [Some(4096), Some(100), Some(1)]);
        assert_eq!(numbers("inode"), [Some(7), Some(7), None]);
    }

    #[test]
    fn many_files_and_minutes_are_bounded() {
        let mut minutes = minutes_of(&["db"]);
        for minute in 0..MAX_ROWS as i64 + 100 {
            minutes.push(&call("db", 5_000, 1), Some(minute * MINUTE_NS));
        }
        assert_eq!(minutes.rows.len(), MAX_ROWS + 1);
        let n: u64 = minutes.rows.values().map(|row| row.latency.sum().n).sum();
        assert_eq!(n, MAX_ROWS as u64 + 100);
    }
}

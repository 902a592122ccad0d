//! Counts and latencies by minute: what a fleet keeps of a recording for years.

use std::collections::BTreeMap;

use polars::prelude::{Column, DataType, IntoColumn, NamedFrom, Series as Values};

use super::{DataFrame, PolarsResult, table};
use crate::Analysis;
use crate::result::analysis::Device;
use crate::result::latencies::{Latencies, bucket_ends};
use crate::result::segments::{SEGMENTS, segment_names};
use crate::result::series::{Counted, Series};
use crate::result::sums::{ChainSums, OPERATIONS, QemuSums, SegmentSums, Sum, Times};

pub(super) const MINUTE_NS: i64 = 60_000_000_000;

/// A bucket's bound, or its count.
type OfBucket = fn((u64, u64)) -> u64;

/// What latencies are of, where they were measured, and when.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Key<'a> {
    side: &'static str,
    guest: Option<&'a str>,
    /// The kernel's name of the device.
    device: Option<&'a str>,
    /// QEMU's name of the disk.
    disk: Option<&'a str>,
    layer: &'static str,
    /// Place in [`OPERATIONS`].
    operation: usize,
    /// Beginning of the minute, nanoseconds since 1970; `None` where the time of day is not known.
    minute_unix_ns: Option<i64>,
}

/// What was counted in a minute.
#[derive(Clone, Debug, Default)]
struct Counts {
    latency: Sum,
    bytes: Option<u64>,
    /// By bound; `None` where only sums are kept.
    distribution: Option<Latencies>,
    segments: Option<[u64; SEGMENTS]>,
}

impl Counts {
    fn of_times(times: &Times, bytes: Option<u64>) -> Self {
        Self {
            latency: times.sum(),
            bytes: bytes.filter(|_| times.sum().n > 0),
            distribution: Some(times.latencies.clone()),
            segments: None,
        }
    }

    const fn of_segments(sums: &SegmentSums) -> Self {
        Self {
            latency: sums.latency,
            bytes: None,
            distribution: None,
            segments: Some(sums.segments),
        }
    }

    fn add(&mut self, more: Self) {
        self.latency.add(&more.latency);
        if let Some(bytes) = more.bytes {
            *self.bytes.get_or_insert_default() += bytes;
        }
        if let Some(distribution) = more.distribution {
            self.distribution.get_or_insert_default().add(&distribution);
        }
        if let Some(segments) = more.segments {
            let mine = self.segments.get_or_insert_default();
            for (to, from) in mine.iter_mut().zip(segments) {
                *to = to.saturating_add(from);
            }
        }
    }
}

/// The rows under way.
struct Minutes<'a> {
    /// Time of day at the start of the recording.
    start_unix_ns: Option<u64>,
    rows: BTreeMap<Key<'a>, Counts>,
}

impl<'a> Minutes<'a> {
    /// Adds what `counts` says of a stretch that begins `from_ns` after the start of the recording.
    fn add(&mut self, key: Key<'a>, from_ns: u64, counts: Counts) {
        if counts.latency.n == 0 {
            return;
        }
        let at_ns = self
            .start_unix_ns
            .map(|start_ns| start_ns.saturating_add(from_ns));
        let minute_unix_ns = at_ns
            .and_then(|ns| i64::try_from(ns).ok())
            .map(|ns| ns - ns % MINUTE_NS);
        let key = Key {
            minute_unix_ns,
            ..key
        };
        self.rows.entry(key).or_default().add(counts);
    }

    /// Adds a series that counts from the start of the recording.
    fn add_series<T>(
        &mut self,
        key: Key<'a>,
        series: &Series<T>,
        counts: impl Fn(&T, usize) -> Counts,
    ) {
        for (period, sums) in &series.stretches {
            for operation in 0..OPERATIONS.len() {
                let key = Key { operation, ..key };
                self.add(key, period.from_ns, counts(sums, operation));
            }
        }
    }

    fn add_device(&mut self, device: &'a Device) {
        let key = Key {
            side: device.side.name(),
            guest: device.guest.as_deref(),
            device: Some(&device.name),
            disk: None,
            layer: "block",
            operation: 0,
            minute_unix_ns: None,
        };
        let figures = &device.figures;
        let has_requests = figures
            .series
            .stretches
            .iter()
            .any(|(_, sums)| sums.d2c.iter().any(|times| times.sum().n > 0));
        for (period, sums) in &figures.series.stretches {
            let from_ns = figures.recording_ns(period.from_ns);
            for operation in 0..OPERATIONS.len() {
                let key = Key { operation, ..key };
                let bytes = Some(sums.bytes[operation]);
                let of_bios = bytes.filter(|_| !has_requests);
                let block = Counts::of_times(&sums.q2c[operation], of_bios);
                self.add(key, from_ns, block);
                let key = Key {
                    layer: "device",
                    ..key
                };
                let device = Counts::of_times(&sums.d2c[operation], bytes);
                self.add(key, from_ns, device);
            }
        }
    }

    fn table(&self) -> PolarsResult<DataFrame> {
        let rows: Vec<(&Key<'_>, &Counts)> = self.rows.iter().collect();
        let mut table = table!(&rows, row => {
            side: row.0.side,
            guest: row.0.guest,
            device: row.0.device,
            disk: row.0.disk,
            layer: row.0.layer,
            op: OPERATIONS[row.0.operation].name(),
            minute_unix_ns: row.0.minute_unix_ns,
            n: signed(row.1.latency.n),
            sum_ns: signed(row.1.latency.sum),
            bytes: row.1.bytes.map(signed),
        })?;
        let distributions = rows.iter().map(|(_, counts)| counts.distribution.as_ref());
        for column in distribution_columns(distributions.collect())? {
            table.with_column(column)?;
        }
        for (place, name) in segment_names().enumerate() {
            let values = rows
                .iter()
                .map(|(_, counts)| Some(signed(counts.segments.as_ref()?[place])));
            let values: Vec<Option<i64>> = values.collect();
            table.with_column(Column::new(format!("{name}_ns").into(), values))?;
        }
        Ok(table)
    }
}

/// `at_most_ns` and `counts` of these distributions.
pub(super) fn distribution_columns(of: Vec<Option<&Latencies>>) -> PolarsResult<[Column; 2]> {
    let filled = |part: OfBucket| -> Vec<Option<Values>> {
        let values = of.iter().map(|latencies| {
            let buckets = bucket_ends((*latencies)?);
            let values: Vec<i64> = buckets.into_iter().map(part).map(signed).collect();
            Some(Values::new("".into(), values))
        });
        values.collect()
    };
    Ok([
        list("at_most_ns", filled(|(bound, _)| bound))?,
        list("counts", filled(|(_, n)| n))?,
    ])
}

/// Engines that run on the JVM have no unsigned numbers.
pub(super) fn signed(n: u64) -> i64 {
    i64::try_from(n).unwrap_or(i64::MAX)
}

/// A column of lists, of numbers whether or not there are any.
fn list(name: &str, values: Vec<Option<Values>>) -> PolarsResult<Column> {
    let numbers = DataType::List(Box::new(DataType::Int64));
    if values.iter().all(Option::is_none) {
        return Ok(Values::full_null(name.into(), values.len(), &numbers).into_column());
    }
    let column = Values::new(name.into(), values).cast(&numbers)?;
    Ok(column.into_column())
}

/// A row for each device or disk, layer, operation and minute (UTC) with any I/O; `start_unix_ns` is the time of day at
/// the start of the recording, where it is known.
///
/// `layer` is `block` (Q to C of bios with data, and of flushes without), `device` (D to C of requests), `qemu` (QEMU's
/// requests) or `chain` (guest bios that were followed to the host, with the sum of each segment). Its `n` latencies have
/// the sum `sum_ns`; over all minutes both are those of the JSON form. `at_most_ns` and `counts` are lists of equal
/// length: so many latencies lie above the bound before and not above this one. The bounds are the same in every recording,
/// so counts of equal bounds add up. They lie at most 6.3 % apart between 1,024 ns and 275 s. `bytes` are of `qemu` and of
/// `device`, or of `block` where a device has no requests.
///
/// A latency counts in the minute in which the analysis' stretch of time begins that holds its end. There are at most 64
/// of them in a recording; up to ten minutes of recording they are shorter than 11 s.
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn minutes(analysis: &Analysis, start_unix_ns: Option<u64>) -> PolarsResult<DataFrame> {
    let mut minutes = Minutes {
        start_unix_ns,
        rows: BTreeMap::new(),
    };
    for device in &analysis.devices {
        minutes.add_device(device);
    }
    let of_disk = |guest, device, disk, side, layer| Key {
        side,
        guest: Some(guest),
        device,
        disk,
        layer,
        operation: 0,
        minute_unix_ns: None,
    };
    for disk in &analysis.qemu {
        let key = of_disk(&*disk.guest, None, disk.disk.as_deref(), "host", "qemu");
        minutes.add_series(key, &disk.series, |sums: &QemuSums, operation| {
            Counts::of_times(&sums.latency[operation], Some(sums.bytes[operation]))
        });
    }
    for chains in &analysis.chains {
        let (device, disk) = (Some(&*chains.guest_device), Some(&*chains.disk));
        let key = of_disk(&*chains.guest, device, disk, "guest", "chain");
        minutes.add_series(key, &chains.series, |sums: &ChainSums, operation| {
            Counts::of_segments(&sums.by_op[operation])
        });
    }
    minutes.table()
}

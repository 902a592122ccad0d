//! What a disk is asked for, as `vscsiStats` measures it: length, distance, what is outstanding, time
//! between two I/Os, and latency, by operation and over time.

use crate::measure::collects::Collects;
use crate::measure::over_time::OverTime;
use crate::model::operation::Operation;
use crate::result::analysis::{ByOp, Edges, Histograms, OpHistograms, Slot};
use crate::result::series::Counted;

/// Bytes of a sector in the kernel's terms.
const SECTOR: u64 = 512;
/// I/Os that the least distance is taken over.
const WINDOW: usize = 16;

const LENGTHS: usize = Edges::ALL.length_bytes.len() + 1;
const SEEKS: usize = Edges::ALL.seek_sectors.len() + 1;
const OUTSTANDING: usize = Edges::ALL.outstanding.len() + 1;
const LATENCIES: usize = Edges::ALL.latency_us.len() + 1;
const INTERARRIVALS: usize = Edges::ALL.interarrival_us.len() + 1;

/// The bin of a value: edges are inclusive.
#[inline]
fn bin(edges: &[i64], value: i64) -> usize {
    edges.partition_point(|edge| *edge < value)
}

fn microseconds(ns: u64) -> i64 {
    i64::try_from(ns.div_ceil(1000)).unwrap_or(i64::MAX)
}

/// What was counted of one operation.
#[derive(Clone, Debug)]
struct Op {
    queued: u64,
    bytes: u64,
    ended: u64,
    q2c_ns: u64,
    length: [u64; LENGTHS],
    seek: [u64; SEEKS],
    seek_of_16: [u64; SEEKS],
    outstanding: [u64; OUTSTANDING],
    latency: [u64; LATENCIES],
    interarrival: [u64; INTERARRIVALS],
}

impl Default for Op {
    fn default() -> Self {
        Self {
            queued: 0,
            bytes: 0,
            ended: 0,
            q2c_ns: 0,
            length: [0; LENGTHS],
            seek: [0; SEEKS],
            seek_of_16: [0; SEEKS],
            outstanding: [0; OUTSTANDING],
            latency: [0; LATENCIES],
            interarrival: [0; INTERARRIVALS],
        }
    }
}

impl Op {
    fn add(&mut self, other: &Self) {
        let add = |to: &mut [u64], from: &[u64]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to += from);
        };
        self.queued += other.queued;
        self.bytes += other.bytes;
        self.ended += other.ended;
        self.q2c_ns = self.q2c_ns.saturating_add(other.q2c_ns);
        add(&mut self.length, &other.length);
        add(&mut self.seek, &other.seek);
        add(&mut self.seek_of_16, &other.seek_of_16);
        add(&mut self.outstanding, &other.outstanding);
        add(&mut self.latency, &other.latency);
        add(&mut self.interarrival, &other.interarrival);
    }

    fn finish(&self) -> Option<OpHistograms> {
        (self.queued + self.ended > 0).then(|| OpHistograms {
            queued: self.queued,
            bytes: self.bytes,
            ended: self.ended,
            q2c_ns: self.q2c_ns,
            length: self.length.to_vec(),
            seek: self.seek.to_vec(),
            seek_of_16: self.seek_of_16.to_vec(),
            outstanding: self.outstanding.to_vec(),
            latency: self.latency.to_vec(),
            interarrival: self.interarrival.to_vec(),
        })
    }
}

/// What was counted in a stretch of time: reads, writes, discards, flushes.
#[derive(Debug, Default)]
struct Stretch {
    ops: [Option<Box<Op>>; 4],
    seeks: u64,
}

impl Counted for Stretch {
    fn add(&mut self, later: &Self) {
        self.seeks += later.seeks;
        for (mine, theirs) in self.ops.iter_mut().zip(&later.ops) {
            if let Some(theirs) = theirs {
                mine.get_or_insert_default().add(theirs);
            }
        }
    }
}

impl Stretch {
    #[inline]
    fn op(&mut self, place: usize) -> &mut Op {
        self.ops[place].get_or_insert_default()
    }

    fn by_op(&self) -> ByOp {
        let [read, write, discard, flush] = &self.ops;
        let of = |op: &Option<Box<Op>>| op.as_ref().and_then(|op| op.finish());
        ByOp {
            read: of(read),
            write: of(write),
            discard: of(discard),
            flush: of(flush),
        }
    }
}

/// Place of an operation; flushes have the last.
const fn place(operation: Operation) -> usize {
    match operation {
        Operation::Read => 0,
        Operation::Write => 1,
        Operation::Discard => 2,
        Operation::Other => FLUSH,
    }
}

const FLUSH: usize = 3;

/// Sectors from the end of an I/O to the start of another; 0 where they touch or overlap.
#[inline]
fn distance(last: (u64, u64), start: u64, end: u64) -> i64 {
    let (last_start, last_end) = last;
    let ahead = if start > last_end {
        start - last_end
    } else if end < last_start {
        return -i64::try_from(last_start - end).unwrap_or(i64::MAX);
    } else {
        0
    };
    i64::try_from(ahead).unwrap_or(i64::MAX)
}

/// Sectors between two I/Os, whichever is first.
#[inline]
fn gap((last_start, last_end): (u64, u64), start: u64, end: u64) -> u64 {
    start
        .saturating_sub(last_end)
        .max(last_start.saturating_sub(end))
}

/// Histograms of one device.
#[derive(Debug, Default)]
pub(crate) struct ArrivalMeter {
    collects: Collects,
    last_ns: Option<u64>,
    /// Starts and ends in sectors of the last data bios, in a ring.
    recent: [(u64, u64); WINDOW],
    n_recent: usize,
    series: OverTime<Stretch>,
}

impl ArrivalMeter {
    pub(crate) fn new(collects: Collects) -> Self {
        Self {
            collects,
            ..Self::default()
        }
    }

    /// Q of a bio with data.
    #[inline]
    pub(crate) fn queued(
        &mut self,
        operation: Operation,
        ts_ns: u64,
        (offset, bytes): (u64, u64),
        outstanding: u64,
    ) {
        if self.collects.only_what_btt_has() {
            return;
        }
        let start = offset / SECTOR;
        let end = start.saturating_add(bytes / SECTOR);
        let seeks = self.seeks(start, end);
        let op = self.arrived(place(operation), ts_ns, outstanding);
        op.bytes = op.bytes.saturating_add(bytes);
        let length = i64::try_from(bytes).unwrap_or(i64::MAX);
        op.length[bin(Edges::ALL.length_bytes, length)] += 1;
        if let Some((last, least)) = seeks {
            op.seek[bin(Edges::ALL.seek_sectors, last)] += 1;
            op.seek_of_16[bin(Edges::ALL.seek_sectors, least)] += 1;
        }
    }

    /// Distances to the last I/O and to the nearest of the last 16.
    fn seeks(&mut self, start: u64, end: u64) -> Option<(i64, i64)> {
        let known = self.n_recent.min(WINDOW);
        let found = (known > 0).then(|| {
            let last = distance(self.recent[(self.n_recent - 1) % WINDOW], start, end);
            if last == 0 {
                return (last, last);
            }
            let nearest = self.recent[..known]
                .iter()
                .min_by_key(|recent| gap(**recent, start, end));
            (
                last,
                nearest.map_or(last, |nearest| distance(*nearest, start, end)),
            )
        });
        self.recent[self.n_recent % WINDOW] = (start, end);
        self.n_recent += 1;
        found
    }

    /// Q of a flush without data.
    pub(crate) fn flush_queued(&mut self, ts_ns: u64, outstanding: u64) {
        if self.collects.only_what_btt_has() {
            return;
        }
        self.arrived(FLUSH, ts_ns, outstanding);
    }

    #[inline]
    fn arrived(&mut self, place: usize, ts_ns: u64, outstanding: u64) -> &mut Op {
        let before_ns = self.last_ns.replace(ts_ns);
        let op = self.series.at(ts_ns).op(place);
        op.queued += 1;
        let outstanding = i64::try_from(outstanding).unwrap_or(i64::MAX);
        op.outstanding[bin(Edges::ALL.outstanding, outstanding)] += 1;
        if let Some(before_ns) = before_ns {
            let passed = microseconds(ts_ns.saturating_sub(before_ns));
            op.interarrival[bin(Edges::ALL.interarrival_us, passed)] += 1;
        }
        op
    }

    /// A bio with data ended.
    #[inline]
    pub(crate) fn ended(&mut self, operation: Operation, ts_ns: u64, q2c_ns: u64) {
        if self.collects.only_what_btt_has() {
            return;
        }
        let op = self.series.at(ts_ns).op(place(operation));
        op.ended += 1;
        op.q2c_ns = op.q2c_ns.saturating_add(q2c_ns);
        op.latency[bin(Edges::ALL.latency_us, microseconds(q2c_ns))] += 1;
    }

    /// A flush without data ended.
    pub(crate) fn flush_ended(&mut self, ts_ns: u64, q2c_ns: u64) {
        self.ended(Operation::Other, ts_ns, q2c_ns);
    }

    /// A request was issued that does not begin where the one before ended.
    #[inline]
    pub(crate) fn seek(&mut self, ts_ns: u64) {
        if self.collects.only_what_btt_has() {
            return;
        }
        self.series.at(ts_ns).seeks += 1;
    }

    pub(crate) fn finish(&self, start_ns: u64) -> Histograms {
        let slot = |(from_ns, stretch): (u64, &Stretch)| Slot {
            from_ns: from_ns.saturating_sub(start_ns),
            seeks: stretch.seeks,
            by_op: stretch.by_op(),
        };
        Histograms {
            edges: Edges::ALL,
            all: self.series.total().by_op(),
            step_ns: self.series.step_ns(),
            over_time: self.series.slots().map(slot).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edges_ascend_and_are_inclusive() {
        let edges = Edges::ALL;
        for edges in [
            edges.length_bytes,
            edges.seek_sectors,
            edges.outstanding,
            edges.latency_us,
            edges.interarrival_us,
        ] {
            assert!(edges.is_sorted_by(|a, b| a < b));
            assert_eq!(bin(edges, edges[0]), 0);
            assert_eq!(bin(edges, edges[0] + 1), 1);
            assert_eq!(bin(edges, i64::MAX), edges.len());
        }
        // A nanosecond above a microsecond is above its edge.
        assert_eq!(
            (microseconds(0), microseconds(1000), microseconds(1001)),
            (0, 1, 2)
        );
    }

    #[test]
    fn distances_have_a_direction() {
        for (start, end, expected) in [
            (108, 116, 0),
            (104, 120, 0),
            (92, 100, 0),
            (90, 200, 0),
            (109, 117, 1),
            (50, 58, -42),
        ] {
            assert_eq!(distance((100, 108), start, end), expected, "{start}");
        }
    }

    #[test]
    fn two_interleaved_streams_are_sequential_to_the_window_of_16() {
        let mut meter = ArrivalMeter::default();
        for n in 0..100u64 {
            for stream in [0, 1 << 30] {
                meter.queued(Operation::Read, n, (stream + n * 4096, 4096), 0);
            }
        }
        let read = meter.finish(0).all.read.expect("reads");
        let zero = bin(Edges::ALL.seek_sectors, 0);
        assert_eq!((read.queued, read.bytes), (200, 200 * 4096));
        assert_eq!((read.seek[zero], read.seek_of_16[zero]), (0, 198));
        assert_eq!(read.length[bin(Edges::ALL.length_bytes, 4096)], 200);
        assert_eq!(read.seek.iter().sum::<u64>(), 199);
    }

    #[test]
    fn latency_and_outstanding_by_operation() {
        let mut meter = ArrivalMeter::default();
        meter.queued(Operation::Write, 1_000, (0, 512), 0);
        meter.flush_queued(3_000, 1);
        meter.ended(Operation::Write, 102_000, 101_000);
        meter.flush_ended(103_000, 100_000);
        let all = meter.finish(0).all;
        let (write, flush) = (all.write.expect("write"), all.flush.expect("flush"));
        assert_eq!((write.latency[3], flush.latency[2]), (1, 1));
        assert_eq!((write.outstanding[0], flush.outstanding[0]), (1, 1));
        assert_eq!(
            (
                write.interarrival.iter().sum::<u64>(),
                flush.interarrival[1]
            ),
            (0, 1)
        );
        assert!(all.read.is_none() && flush.length.iter().all(|n| *n == 0));
    }
}

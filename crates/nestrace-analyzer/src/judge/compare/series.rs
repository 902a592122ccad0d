//! What is kept of a recording for comparisons: sums over short stretches of time, in bounded memory.
//!
//! The bootstrap draws these stretches again and again, so a value's spread is that of the stretches.
//! There are at most 64 of them: they begin with 10 ms and become twice as long whenever time runs beyond
//! the last one.

use crate::measure::block_stats::{Counted, OverTime};
use crate::measure::device::Operation;
use crate::measure::figures::Latencies;
use crate::result::analysis::ReadWrite;

use super::OPERATIONS;

/// What a stretch stands for at first: a recording of a third of a second has 32 of them.
pub(crate) const FIRST_STEP_NS: u64 = 10_000_000;
/// Stretches of all sessions of a guest taken together.
const MOST: usize = 256;

/// Sums over stretches of time, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Series<T> {
    /// Length of each stretch in nanoseconds, and what was counted in it.
    pub(crate) stretches: Vec<(u64, T)>,
}

impl<T> Default for Series<T> {
    fn default() -> Self {
        Self {
            stretches: Vec::new(),
        }
    }
}

/// One series behind the other. Where there are very many stretches, neighbours become one.
pub(crate) fn joined<T: Counted>(mut first: Series<T>, mut later: Series<T>) -> Series<T> {
    let stretches = &mut first.stretches;
    stretches.append(&mut later.stretches);
    while stretches.len() > MOST {
        let mut halves = std::mem::take(stretches).into_iter();
        while let Some((mut ns, mut sums)) = halves.next() {
            if let Some((more_ns, more)) = halves.next() {
                ns += more_ns;
                sums.add(&more);
            }
            stretches.push((ns, sums));
        }
    }
    first
}

/// Collects a [`Series`].
#[derive(Clone, Debug)]
pub(crate) struct SeriesMeter<T> {
    slots: OverTime<T>,
    last_ns: u64,
}

impl<T> Default for SeriesMeter<T> {
    fn default() -> Self {
        Self {
            slots: OverTime::with_step(FIRST_STEP_NS),
            last_ns: 0,
        }
    }
}

impl<T: Counted + Clone> SeriesMeter<T> {
    /// The sums at this time.
    #[inline]
    pub(crate) fn at(&mut self, ts_ns: u64) -> &mut T {
        self.last_ns = self.last_ns.max(ts_ns);
        self.slots.at(ts_ns)
    }

    /// From the first event to the last: the last stretch is shorter.
    pub(crate) fn finish(&self) -> Series<T> {
        let step_ns = self.slots.step_ns();
        let length = |from_ns: u64| step_ns.min(self.last_ns.saturating_sub(from_ns));
        let slots = self.slots.slots();
        Series {
            stretches: slots
                .map(|(from_ns, sums)| (length(from_ns), sums.clone()))
                .collect(),
        }
    }
}

/// How many, and a sum over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub n: u64,
    pub sum: u64,
}

impl Sum {
    #[inline]
    pub(crate) fn record(&mut self, value: u64) {
        self.n += 1;
        self.sum = self.sum.saturating_add(value);
    }

    fn add(&mut self, other: &Self) {
        self.n += other.n;
        self.sum = self.sum.saturating_add(other.sum);
    }
}

/// Times: their number, their sum, and how they are distributed.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Times {
    pub sum_ns: u64,
    pub latencies: Latencies,
}

impl Times {
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.sum_ns = self.sum_ns.saturating_add(ns);
        self.latencies.record(ns);
    }

    pub(crate) fn sum(&self) -> Sum {
        Sum {
            n: self.latencies.n(),
            sum: self.sum_ns,
        }
    }

    fn add(&mut self, other: &Self) {
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.latencies.add(&other.latencies);
    }
}

/// The place of an operation in [`OPERATIONS`].
pub(crate) const fn place(operation: Operation) -> Option<usize> {
    match operation {
        Operation::Read => Some(0),
        Operation::Write => Some(1),
        Operation::Discard => Some(2),
        Operation::Other => None,
    }
}

/// The place of writes in [`OPERATIONS`].
pub(crate) const WRITE: usize = 1;
/// The place of flushes in [`OPERATIONS`].
pub(crate) const FLUSH: usize = 3;

/// What was counted on a device.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceSums {
    /// Q to C by operation; of flushes, those without data.
    pub(crate) q2c: [Times; OPERATIONS.len()],
    /// Bytes of these.
    pub(crate) bytes: [u64; OPERATIONS.len()],
    /// D to C by operation.
    pub(crate) d2c: [Times; OPERATIONS.len()],
    /// Q to D by operation.
    pub(crate) wait: [Sum; OPERATIONS.len()],
    /// Requests with data at D, and their bytes.
    pub(crate) issued: Sum,
    /// Those that begin where the one before ended.
    pub(crate) sequential: u64,
    /// Bios with data at Q.
    pub(crate) queued: u64,
    /// Bios that went into a request that was there, and requests that went into another one.
    pub(crate) merged: u64,
}

impl Counted for DeviceSums {
    fn add(&mut self, later: &Self) {
        for place in 0..OPERATIONS.len() {
            self.q2c[place].add(&later.q2c[place]);
            self.bytes[place] = self.bytes[place].saturating_add(later.bytes[place]);
            self.d2c[place].add(&later.d2c[place]);
            self.wait[place].add(&later.wait[place]);
        }
        self.issued.add(&later.issued);
        self.sequential += later.sequential;
        self.queued += later.queued;
        self.merged += later.merged;
    }
}

/// Requests at a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DepthSums {
    /// Sum of requests × time.
    pub(crate) request_ns: u64,
    /// Time with at least one.
    pub(crate) busy_ns: u64,
}

impl Counted for DepthSums {
    fn add(&mut self, later: &Self) {
        self.request_ns = self.request_ns.saturating_add(later.request_ns);
        self.busy_ns = self.busy_ns.saturating_add(later.busy_ns);
    }
}

/// Bytes and flushes of a disk, layer by layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerSums {
    /// As QEMU accounts them.
    pub(crate) qemu: ReadWrite,
    /// QEMU's file I/O on the images.
    pub(crate) image: ReadWrite,
    /// Host bios.
    pub(crate) host: ReadWrite,
    /// The requests that they became.
    pub(crate) device: ReadWrite,
    /// Flushes that QEMU accounts.
    pub(crate) qemu_flushes: u64,
    /// Flush requests of the devices.
    pub(crate) device_flushes: u64,
}

impl LayerSums {
    /// What came since `earlier`.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let bytes = |now: ReadWrite, then: ReadWrite| ReadWrite {
            read: now.read.saturating_sub(then.read),
            write: now.write.saturating_sub(then.write),
        };
        Self {
            qemu: bytes(self.qemu, earlier.qemu),
            image: bytes(self.image, earlier.image),
            host: bytes(self.host, earlier.host),
            device: bytes(self.device, earlier.device),
            qemu_flushes: self.qemu_flushes.saturating_sub(earlier.qemu_flushes),
            device_flushes: self.device_flushes.saturating_sub(earlier.device_flushes),
        }
    }
}

/// What QEMU accounted of a disk.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QemuSums {
    /// Start to hand-back by operation.
    pub(crate) latency: [Times; OPERATIONS.len()],
    /// Bytes of these.
    pub(crate) bytes: [u64; OPERATIONS.len()],
}

impl Counted for QemuSums {
    fn add(&mut self, later: &Self) {
        for place in 0..OPERATIONS.len() {
            self.latency[place].add(&later.latency[place]);
            self.bytes[place] = self.bytes[place].saturating_add(later.bytes[place]);
        }
    }
}

/// What linked bios of a disk waited for.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ChainSums {
    /// By operation.
    pub(crate) by_op: [SegmentSums; OPERATIONS.len()],
}

/// Latency of chains and its parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SegmentSums {
    pub latency: Sum,
    /// In the order of the path.
    pub segments: [u64; crate::link::chains::SEGMENTS],
}

impl Counted for ChainSums {
    fn add(&mut self, later: &Self) {
        for (mine, theirs) in self.by_op.iter_mut().zip(&later.by_op) {
            mine.latency.add(&theirs.latency);
            let segments = mine.segments.iter_mut().zip(&theirs.segments);
            segments.for_each(|(to, from)| *to = to.saturating_add(*from));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_series_is_bounded_and_keeps_its_sums_and_its_time() {
        let mut meter = SeriesMeter::<QemuSums>::default();
        for i in 0..100_000u64 {
            let sums = meter.at(5_000_000 + i * 1_000_000);
            sums.latency[0].record(1_000 + i % 7);
            sums.bytes[0] += 512;
        }
        let series = meter.finish();
        assert!((32..=64).contains(&series.stretches.len()));
        let total_ns: u64 = series.stretches.iter().map(|(ns, _)| ns).sum();
        assert_eq!(total_ns, 99_999 * 1_000_000);
        let bytes: u64 = series.stretches.iter().map(|(_, sums)| sums.bytes[0]).sum();
        assert_eq!(bytes, 100_000 * 512);
        let many = (0..40).fold(Series::default(), |all, _| joined(all, series.clone()));
        assert!(many.stretches.len() <= MOST);
        let n: u64 = many
            .stretches
            .iter()
            .map(|(_, sums)| sums.latency[0].sum().n)
            .sum();
        assert_eq!(n, 4_000_000);
    }
}

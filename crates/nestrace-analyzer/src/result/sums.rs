//! What is summed over each stretch of a recording, for comparisons.

use crate::result::compared::IoOperation;
use crate::result::latencies::Latencies;
use crate::result::read_write::ReadWrite;
use crate::result::series::Counted;

/// The operations that are distinguished.
pub(crate) const OPERATIONS: [IoOperation; 4] = IoOperation::ALL;

/// The place of writes in [`OPERATIONS`].
pub(crate) const WRITE: usize = 1;

/// The place of flushes in [`OPERATIONS`].
pub(crate) const FLUSH: usize = 3;

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

    pub(crate) fn add(&mut self, other: &Self) {
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
    /// Start to completion notification by operation.
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

/// What was counted of the calls of one program on one file.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CallSums {
    /// Of all calls.
    pub latency: Times,
    /// Of the linked ones.
    pub linked: Sum,
    /// What these waited for, by [`SegmentKind`](crate::result::segments::SegmentKind).
    pub segments: [u64; crate::result::segments::CALL_SEGMENTS],
}

impl Counted for CallSums {
    fn add(&mut self, later: &Self) {
        self.latency.add(&later.latency);
        self.linked.add(&later.linked);
        let segments = self.segments.iter_mut().zip(&later.segments);
        segments.for_each(|(to, from)| *to = to.saturating_add(*from));
    }
}

/// Latency of chains and its parts.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SegmentSums {
    pub latency: Sum,
    /// In the order of the path.
    pub segments: [u64; crate::result::segments::SEGMENTS],
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

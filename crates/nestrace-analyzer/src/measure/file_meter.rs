//! What QEMU's file I/O on one image counted.

use nestrace_abi::flags::op;

use crate::measure::histogram::{CURVE_STEPS, Histogram};
use crate::result::analysis::{FileLatency, ImageFileIo, ReadWrite, ReadWriteCdf};

/// What was done to one image.
#[derive(Debug, Default)]
pub(crate) struct FileMeter {
    /// The kernel tells the end of direct I/O on it (iomap; not a raw block device).
    pub(crate) dio_end_recorded: bool,
    /// The file system tells the end of a sync (ext4 does, xfs does not).
    pub(crate) sync_end_recorded: bool,
    pub(crate) counts: ImageFileIo,
    read: Histogram,
    write: Histogram,
    sync: Histogram,
}

impl FileMeter {
    /// Something was read or written.
    pub(crate) const fn any(&self) -> bool {
        self.counts.reads + self.counts.writes + self.counts.failed > 0
    }

    /// A call has moved `bytes`; `dsync`: it ended only when they were on the device.
    pub(crate) fn count(&mut self, (op, dsync): (u8, bool), bytes: u64) {
        match op {
            op::READ => {
                self.counts.reads += 1;
                self.counts.bytes.read = self.counts.bytes.read.saturating_add(bytes);
            }
            op::WRITE => {
                self.counts.writes += 1;
                self.counts.bytes.write = self.counts.bytes.write.saturating_add(bytes);
                self.counts.dsync += u64::from(dsync);
            }
            op::FSYNC | op::FDATASYNC => self.counts.syncs += 1,
            op::FALLOCATE => self.counts.fallocates += 1,
            _ => {}
        }
    }

    pub(crate) fn took(&mut self, op: u8, ns: u64) {
        match op {
            op::READ => self.read.record(ns),
            op::WRITE => self.write.record(ns),
            op::FSYNC | op::FDATASYNC => self.sync.record(ns),
            _ => {}
        }
    }

    /// Bytes so far.
    pub(crate) const fn bytes(&self) -> ReadWrite {
        self.counts.bytes
    }

    /// Counts and latencies; what is known from bios is added by the caller.
    pub(crate) fn finish(&self) -> ImageFileIo {
        let latency_ns = FileLatency {
            read: self.read.dist(),
            write: self.write.dist(),
            sync: self.sync.dist(),
        };
        ImageFileIo {
            latency_ns,
            cdf: ReadWriteCdf {
                read: self.read.cdf(CURVE_STEPS),
                write: self.write.cdf(CURVE_STEPS),
            },
            ..self.counts.clone()
        }
    }
}

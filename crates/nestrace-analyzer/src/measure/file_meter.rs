//! What QEMU's file I/O on one image counted.

use nestrace_abi::flags::op;

use crate::measure::histogram::{CURVE_STEPS, Histogram};
use crate::result::analysis::{FileLatency, ImageFileIo, ImageRpcs, ReadWrite, ReadWriteCdf};

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
    rpcs: ImageRpcs,
    rpc_times: RpcTimes,
}

/// Times of calls to a server: reads, writes and commits.
#[derive(Debug, Default)]
struct RpcTimes {
    all: [Histogram; 3],
    at_server: [Histogram; 3],
}

fn of_operations([read, write, sync]: &[Histogram; 3]) -> FileLatency {
    FileLatency {
        read: read.dist(),
        write: write.dist(),
        sync: sync.dist(),
    }
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

    /// A call to a server has ended; `at_server_ns` of one that was sent.
    pub(crate) fn rpc(
        &mut self,
        op: u8,
        bytes: u64,
        took_ns: u64,
        at_server_ns: Option<u64>,
        linked: bool,
    ) {
        let rpcs = &mut self.rpcs;
        let place = match op {
            op::READ => {
                rpcs.reads += 1;
                rpcs.bytes.read = rpcs.bytes.read.saturating_add(bytes);
                0
            }
            op::WRITE => {
                rpcs.writes += 1;
                rpcs.bytes.write = rpcs.bytes.write.saturating_add(bytes);
                1
            }
            _ => {
                rpcs.commits += 1;
                2
            }
        };
        rpcs.linked += u64::from(linked);
        self.rpc_times.all[place].record(took_ns);
        if let Some(ns) = at_server_ns {
            self.rpc_times.at_server[place].record(ns);
        }
    }

    /// The calls to a server.
    pub(crate) fn rpcs(&self) -> ImageRpcs {
        ImageRpcs {
            latency_ns: of_operations(&self.rpc_times.all),
            at_server_ns: of_operations(&self.rpc_times.at_server),
            ..self.rpcs.clone()
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

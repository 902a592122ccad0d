//! Reads that come while the host writes its page cache back to the same device.

use std::collections::VecDeque;

use super::ranges::Ranges;
use crate::measure::histogram::Histogram;
use crate::result::dist::Dist;

/// A bio of write-back that overlaps a read may end after it: this long it is waited for.
const LATE_NS: u64 = 2_000_000_000;
/// Times of write-back, and reads that wait to be judged.
const MOST: usize = 1 << 14;

/// What was counted of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct WritebackTimes {
    /// QEMU's latency of reads that reached the device, while write-back was under way there.
    pub during: Dist,
    /// The same while none was.
    pub between: Dist,
    /// QEMU's latency of all requests, summed.
    pub all_ns: u64,
    /// Bios of write-back.
    pub bios: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bios that found no room: reads beside them count as if there were none.
    pub given_up: u64,
}

/// Write-back below a disk and the disk's reads.
#[derive(Debug, Default)]
pub(super) struct Writeback {
    under_way: Ranges,
    /// Start and end of reads.
    waiting: VecDeque<(u64, u64)>,
    during: Histogram,
    between: Histogram,
    times: WritebackTimes,
}

impl Writeback {
    /// A bio of write-back, from Q to its end.
    pub(super) fn bio(&mut self, queued_ns: u64, ended_ns: u64, bytes: u64) {
        self.times.bios += 1;
        self.times.bytes += bytes;
        if !self.under_way.add(queued_ns, ended_ns, MOST) {
            self.times.given_up += 1;
        }
    }

    /// A request of QEMU has ended.
    pub(super) fn request(&mut self, start_ns: u64, end_ns: u64, read_device: bool) {
        let latency_ns = end_ns.saturating_sub(start_ns);
        self.times.all_ns = self.times.all_ns.saturating_add(latency_ns);
        if read_device {
            self.waiting.push_back((start_ns, end_ns));
        }
        self.judge(end_ns.saturating_sub(LATE_NS));
    }

    /// Judges the reads that ended before this time, and more where there is no room.
    fn judge(&mut self, before_ns: u64) {
        while let Some((start_ns, end_ns)) = self.waiting.front().copied()
            && (end_ns < before_ns || self.waiting.len() > MOST)
        {
            self.waiting.pop_front();
            let times = if self.under_way.common(start_ns, end_ns) > 0 {
                &mut self.during
            } else {
                &mut self.between
            };
            times.record(end_ns - start_ns);
        }
        let oldest = self.waiting.front().map_or(before_ns, |it| it.0);
        self.under_way.forget_before(oldest.min(before_ns));
    }

    pub(super) fn finish(&mut self) -> WritebackTimes {
        self.judge(u64::MAX);
        WritebackTimes {
            during: self.during.dist(),
            between: self.between.dist(),
            ..self.times
        }
    }
}

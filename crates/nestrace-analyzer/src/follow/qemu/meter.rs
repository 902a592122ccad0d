//! What QEMU counted of one disk.

use super::{FLUSH, READ, TYPES, UNMAP, WRITE};
use crate::measure::histogram::{CURVE_STEPS, Histogram};
use crate::measure::series::SeriesMeter;
use crate::model::pointer::PointerMap;
use crate::result::analysis::{QemuBytes, QemuDisk, QemuLatency, QemuMerged, ReadWriteCdf};
use crate::result::series::Series;
use crate::result::sums::QemuSums;

/// What one `BlockAcctStats` counted.
#[derive(Debug, Default)]
pub(super) struct Meter {
    pub done: [u64; TYPES],
    pub failed: u64,
    pub invalid: u64,
    pub bytes: [u64; TYPES],
    pub latency: [Histogram; TYPES],
    pub series: SeriesMeter<QemuSums>,
    /// Of other `BlockAcctStats`.
    pub merged_series: Series<QemuSums>,
    pub ended_by_push: u64,
    pub unlinked: u64,
    /// Requests with a `blk_aio_*` of their own, by the distance that would make it so.
    pub own_aio: PointerMap<u64, [u64; TYPES]>,
}

impl Meter {
    pub(super) fn merge(&mut self, other: &Self) {
        for kind in 0..TYPES {
            self.done[kind] += other.done[kind];
            self.bytes[kind] = self.bytes[kind].saturating_add(other.bytes[kind]);
            self.latency[kind].merge(&other.latency[kind]);
        }
        self.failed += other.failed;
        self.invalid += other.invalid;
        self.ended_by_push += other.ended_by_push;
        self.unlinked += other.unlinked;
        // A disk has one; several at the same time cannot be laid one behind the other.
        let theirs = other.series.finish();
        if self.merged_series.stretches.is_empty() {
            self.merged_series = theirs;
        } else if !theirs.stretches.is_empty() {
            self.merged_series = Series::default();
        }
        for (delta, n) in &other.own_aio {
            let mine = self.own_aio.entry(*delta).or_default();
            mine.iter_mut().zip(n).for_each(|(mine, n)| *mine += n);
        }
    }

    pub(super) fn has_io(&self) -> bool {
        self.done.iter().sum::<u64>() + self.failed + self.invalid + self.unlinked > 0
    }

    pub(super) fn finish(
        &self,
        guest: &str,
        disk: Option<String>,
        merged: Option<[u64; TYPES]>,
    ) -> QemuDisk {
        QemuDisk {
            guest: guest.to_owned(),
            disk,
            reads: self.done[READ],
            writes: self.done[WRITE],
            flushes: self.done[FLUSH],
            discards: self.done[UNMAP],
            merged: merged.map(|merged| merged.iter().sum()),
            merged_by_type: merged.map(|merged| QemuMerged {
                read: merged[READ],
                write: merged[WRITE],
                discard: merged[UNMAP],
            }),
            failed: self.failed,
            invalid: self.invalid,
            bytes: QemuBytes {
                read: self.bytes[READ],
                write: self.bytes[WRITE],
                discard: self.bytes[UNMAP],
            },
            latency_ns: QemuLatency {
                read: self.latency[READ].dist(),
                write: self.latency[WRITE].dist(),
                flush: self.latency[FLUSH].dist(),
                discard: self.latency[UNMAP].dist(),
            },
            ended_by_push: self.ended_by_push,
            unlinked: self.unlinked,
            cdf: ReadWriteCdf {
                read: self.latency[READ].cdf(CURVE_STEPS),
                write: self.latency[WRITE].cdf(CURVE_STEPS),
            },
            series: self.merged_series.clone(),
        }
    }
}

/// Requests without a `blk_aio_*` of their own: QEMU merges on virtio-blk only. `None` where the bus is not known
/// from the beginning.
pub(super) fn merges(meter: &Meter, bus: &str, delta: Option<u64>) -> Option<[u64; TYPES]> {
    match bus {
        "virtio-blk" => {}
        "" => return None,
        _ => return Some([0; TYPES]),
    }
    let own = delta
        .and_then(|delta| meter.own_aio.get(&delta))
        .copied()
        .unwrap_or_default();
    let own = |kind: usize| meter.done[kind].saturating_sub(own[kind]);
    Some(std::array::from_fn(own))
}

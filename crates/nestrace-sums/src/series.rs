//! The series of a snapshot: what `nestrace serve` gives of each disk's and device's operation, with its labels.

use nestrace_abi::histogram::{BUCKET_BITS, BUCKETS, upper_bound_ns};

use crate::snapshot::{LayerSums, Snapshot};

/// The labels of a series.
#[derive(Clone, Copy, Default)]
pub struct Labels<'l> {
    pub guest: &'l str,
    pub uuid: &'l str,
    pub disk: &'l str,
    pub device: &'l str,
    pub op: &'l str,
}

impl<'l> Labels<'l> {
    /// Those that there are, by name. A label that is empty is one that is not there.
    pub fn present(&self) -> impl Iterator<Item = (&'static str, &'l str)> + use<'l> {
        let all = [
            ("guest", self.guest),
            ("uuid", self.uuid),
            ("disk", self.disk),
            ("device", self.device),
            ("op", self.op),
        ];
        all.into_iter().filter(|(_, value)| !value.is_empty())
    }
}

/// Of a disk's or a device's operation.
pub struct Values<'s> {
    pub layers: &'s [(&'static str, &'s Option<LayerSums>)],
    pub bytes: u64,
    pub in_flight: Option<u64>,
    pub oldest_ns: Option<u64>,
}

/// Visits the operations of all disks, then those of all devices.
pub fn each(snapshot: &Snapshot, mut visit: impl FnMut(&Labels<'_>, &Values<'_>)) {
    for disk in &snapshot.disks {
        let labels = Labels {
            guest: &disk.guest,
            uuid: disk.uuid.as_deref().unwrap_or(""),
            disk: &disk.disk,
            device: "",
            op: disk.op.name(),
        };
        let values = Values {
            // Those of its device are there once, with the device.
            layers: &[
                ("guest", &disk.layers.guest),
                ("qemu", &disk.layers.qemu),
                ("file_io", &disk.layers.file_io),
            ],
            bytes: disk.bytes,
            in_flight: disk.in_flight,
            oldest_ns: disk.oldest_ns,
        };
        visit(&labels, &values);
    }
    for device in &snapshot.devices {
        let labels = Labels {
            device: &device.device,
            op: device.op.name(),
            ..Labels::default()
        };
        let values = Values {
            layers: &[
                ("host_queue", &device.host_queue),
                ("device", &device.latency),
            ],
            bytes: device.bytes,
            in_flight: device.in_flight,
            oldest_ns: device.oldest_ns,
        };
        visit(&labels, &values);
    }
}

/// A label's value as it is shown: names come from guests.
pub fn printable(value: &str) -> impl Iterator<Item = char> {
    let shown = |c: char| {
        if c.is_control() && c != '\n' {
            '\u{fffd}'
        } else {
            c
        }
    };
    value.chars().map(shown)
}

/// Most requests that one bucket says, which a double holds exactly, and all buckets together an i64. A guest can claim more.
const MAX_COUNT: u64 = 1 << 53;

/// Requests in each bucket of the probes.
pub fn counts(sums: &LayerSums) -> impl Iterator<Item = u64> {
    sums.buckets.iter().map(|n| (*n).min(MAX_COUNT))
}

/// How many there are in all buckets.
pub fn count(sums: &LayerSums) -> u64 {
    counts(sums).sum()
}

/// The bounds of the classic buckets in nanoseconds, each with how many were shorter: a bucket for each power of two, which the
/// finer buckets of the probes add up to exactly.
pub fn classic(sums: &LayerSums) -> impl Iterator<Item = (u64, u64)> {
    let mut below = 0_u64;
    let buckets = counts(sums).enumerate().take(BUCKETS - 1);
    buckets.filter_map(move |(bucket, n)| {
        below += n;
        // The first bucket, and the last one of each power.
        let ends_power = bucket.is_multiple_of(1 << BUCKET_BITS);
        let bound = upper_bound_ns(bucket).filter(|_| ends_power)?;
        Some((bound, below))
    })
}

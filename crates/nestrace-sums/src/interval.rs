//! What happened between two snapshots: the lines of `nestrace top --batch`.

use std::collections::BTreeMap;

use nestrace_abi::histogram::upper_bound_ns;
use serde::Serialize;

use crate::snapshot::{DeviceSums, DiskSums, LayerSums, Op, Snapshot};

/// The format's name.
pub const SCHEMA: &str = "nestrace-live/1";

/// Latencies of one layer in an interval, in nanoseconds; `None` of what no request had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Latency {
    /// Requests that have ended.
    pub n: u64,
    /// Their mean.
    pub mean: Option<f64>,
    /// Half of them took no longer, to within an eighth: the bucket's width.
    pub p50: Option<u64>,
    /// 99 of 100 took no longer, to within an eighth.
    pub p99: Option<u64>,
    /// The longest.
    pub max: Option<u64>,
}

/// Latencies of the layers; `None`: not recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DiskLatency {
    /// From a request's start in the guest to its completion there.
    pub guest: Option<Latency>,
    /// From QEMU's start of the request to its end.
    pub qemu: Option<Latency>,
    /// The calls of QEMU into the image's file.
    pub file_io: Option<Latency>,
    /// From the start of a request to its issue, on the device that carries the image: of all its users.
    pub host_queue: Option<Latency>,
    /// From the issue to the completion, on that device.
    pub device: Option<Latency>,
}

/// One operation of one guest's disk in an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DiskRow {
    /// The guest's name.
    pub guest: String,
    /// Its UUID, where QEMU has one.
    pub uuid: Option<String>,
    /// The disk's name.
    pub disk: String,
    /// The host's device that carries its image.
    pub device: Option<String>,
    /// The operation.
    pub op: Op,
    /// Requests that have ended.
    pub n: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those that QEMU merged into others.
    pub merged: Option<u64>,
    /// Their latencies.
    pub latency_ns: DiskLatency,
    /// Requests that have begun and not ended at the interval's end.
    pub in_flight: Option<u64>,
    /// The age of the oldest of them, in nanoseconds.
    pub oldest_ns: Option<u64>,
    /// Why `latency_ns.guest` is null, where it is.
    pub no_guest: Option<String>,
}

/// Latencies of a device's layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeviceLatency {
    /// From a request's start to its issue.
    pub host_queue: Option<Latency>,
    /// From its issue to its completion.
    pub device: Option<Latency>,
}

/// One operation of one device of the host in an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeviceRow {
    /// The kernel's name of it.
    pub device: String,
    /// The operation.
    pub op: Op,
    /// Requests that have completed.
    pub n: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Their latencies.
    pub latency_ns: DeviceLatency,
    /// Requests that were issued and have not completed at the interval's end.
    pub in_flight: Option<u64>,
    /// The age of the oldest of them, in nanoseconds.
    pub oldest_ns: Option<u64>,
}

/// What all disks and devices did in an interval.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Interval {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// When it ended, in nanoseconds of Unix time.
    pub at_unix_ns: u64,
    /// How long it was, in nanoseconds.
    pub interval_ns: u64,
    /// Requests that could not be summed in it.
    pub lost: u64,
    /// The same by source: block, file, qemu, meta.
    pub lost_by_source: BTreeMap<String, u64>,
    /// The guests' disks.
    pub disks: Vec<DiskRow>,
    /// The host's devices.
    pub devices: Vec<DeviceRow>,
}

impl Interval {
    /// From the snapshot `earlier` to `now`. A disk that was not there before has done all that it did in the interval.
    #[must_use]
    pub fn between(earlier: &Snapshot, now: &Snapshot) -> Self {
        let since = now.since(earlier);
        Self {
            schema: SCHEMA,
            at_unix_ns: now.at_unix_ns,
            interval_ns: now.at_unix_ns.saturating_sub(earlier.at_unix_ns),
            lost: since.n_lost(),
            disks: since.disks.iter().map(disk_row).collect(),
            devices: since.devices.iter().map(device_row).collect(),
            lost_by_source: since.lost,
        }
    }
}

fn disk_row(disk: &DiskSums) -> DiskRow {
    let layers = &disk.layers;
    DiskRow {
        guest: disk.guest.clone(),
        uuid: disk.uuid.clone(),
        disk: disk.disk.clone(),
        device: disk.device.clone(),
        op: disk.op,
        n: disk.n,
        bytes: disk.bytes,
        merged: disk.merged,
        latency_ns: DiskLatency {
            guest: layers.guest.as_ref().map(latency),
            qemu: layers.qemu.as_ref().map(latency),
            file_io: layers.file_io.as_ref().map(latency),
            host_queue: layers.host_queue.as_ref().map(latency),
            device: layers.device.as_ref().map(latency),
        },
        in_flight: disk.in_flight,
        oldest_ns: disk.oldest_ns,
        no_guest: disk.no_guest.clone(),
    }
}

fn device_row(device: &DeviceSums) -> DeviceRow {
    DeviceRow {
        device: device.device.clone(),
        op: device.op,
        n: device.n,
        bytes: device.bytes,
        latency_ns: DeviceLatency {
            host_queue: device.host_queue.as_ref().map(latency),
            device: device.latency.as_ref().map(latency),
        },
        in_flight: device.in_flight,
        oldest_ns: device.oldest_ns,
    }
}

/// Mean, percentiles and maximum of sums.
#[must_use]
pub fn latency(sums: &LayerSums) -> Latency {
    let some = sums.n > 0;
    // A mean of nanoseconds needs no more than 53 bits.
    #[expect(clippy::cast_precision_loss)]
    let mean = sums.sum_ns as f64 / sums.n.max(1) as f64;
    Latency {
        n: sums.n,
        mean: some.then_some(mean),
        p50: percentile(sums, 50),
        p99: percentile(sums, 99),
        max: sums.max_ns.filter(|_| some),
    }
}

/// The latency that so many of 100 requests did not exceed: it lies within its bucket, as far as that is filled up to it.
/// `None` without requests.
#[must_use]
pub fn percentile(sums: &LayerSums, of_100: u64) -> Option<u64> {
    let total: u64 = sums.buckets.iter().sum();
    if total == 0 {
        return None;
    }
    // The rank from 1 on; at least the first.
    let rank = u128::from(total) * u128::from(of_100);
    let rank = u64::try_from(rank.div_ceil(100)).unwrap_or(total).max(1);
    let mut below = 0;
    for (bucket, n) in sums.buckets.iter().enumerate() {
        if below + n < rank {
            below += n;
            continue;
        }
        let lower = bucket.checked_sub(1).map_or(Some(0), upper_bound_ns)?;
        let Some(upper) = upper_bound_ns(bucket) else {
            // The last bucket has no bound.
            return Some(sums.max_ns.unwrap_or(lower).max(lower));
        };
        let part = u128::from(upper - lower) * u128::from(rank - below) / u128::from(*n);
        let value = lower.saturating_add(u64::try_from(part).unwrap_or(0));
        return Some(sums.max_ns.map_or(value, |max| value.min(max.max(lower))));
    }
    None
}

#[cfg(test)]
mod tests {
    use nestrace_abi::histogram::{BUCKETS, bucket_of};

    use super::*;
    use crate::snapshot::Layers;

    fn sums(latencies: &[u64]) -> LayerSums {
        let mut buckets = vec![0; BUCKETS];
        for ns in latencies {
            buckets[bucket_of(*ns)] += 1;
        }
        LayerSums {
            n: latencies.len() as u64,
            sum_ns: latencies.iter().sum(),
            max_ns: latencies.iter().max().copied(),
            buckets,
        }
    }

    #[test]
    fn percentiles_lie_within_a_bucket_of_the_exact_ones() {
        // A latency of each microsecond up to 10 ms.
        let all: Vec<u64> = (1..=10_000).map(|us| us * 1000).collect();
        let sums = sums(&all);
        for of_100 in [1, 10, 50, 90, 99, 100] {
            let exact = all[(of_100 * 100 - 1) as usize];
            let found = percentile(&sums, of_100).unwrap();
            let off = found.abs_diff(exact);
            assert!(off * 8 <= exact.max(8192), "{of_100}: {found} for {exact}");
        }
        let latency = latency(&sums);
        assert_eq!(latency.max, Some(10_000_000));
        assert!((latency.mean.unwrap() - 5_000_500.0).abs() < 1.0);
    }

    #[test]
    fn nothing_has_no_latency() {
        let latency = latency(&sums(&[]));
        assert_eq!(latency, Latency::default());
        assert_eq!(percentile(&sums(&[u64::MAX]), 50), Some(u64::MAX));
    }

    fn disk(n: u64, latencies: &[u64]) -> DiskSums {
        DiskSums {
            guest: "vm1".to_owned(),
            uuid: None,
            disk: "vda".to_owned(),
            device: None,
            op: Op::Read,
            n,
            bytes: n * 4096,
            merged: None,
            no_guest: None,
            layers: Layers {
                qemu: Some(sums(latencies)),
                ..Layers::default()
            },
            in_flight: Some(1),
            oldest_ns: Some(7),
        }
    }

    #[test]
    fn an_interval_is_the_difference_of_two_snapshots() {
        let at = |at_unix_ns, lost, disk| Snapshot {
            at_unix_ns,
            lost: [("block".to_owned(), lost)].into(),
            disks: vec![disk],
            devices: Vec::new(),
        };
        let earlier = at(5, 1, disk(2, &[2000, 2000]));
        let now = at(1_000_000_005, 4, disk(3, &[2000, 2000, 9000]));
        let interval = Interval::between(&earlier, &now);
        assert_eq!((interval.interval_ns, interval.lost), (1_000_000_000, 3));
        let row = &interval.disks[0];
        assert_eq!((row.n, row.bytes), (1, 4096));
        let qemu = row.latency_ns.qemu.unwrap();
        assert_eq!((qemu.n, qemu.mean), (1, Some(9000.0)));
        let json = serde_json::to_value(&interval).unwrap();
        assert_eq!(json["schema"], "nestrace-live/1");
        assert_eq!(json["disks"][0]["op"], "read");
        assert!(json["disks"][0]["latency_ns"]["file_io"].is_null());
        // A guest that was started again under its name counts from 0.
        let again = Interval::between(&now, &at(2_000_000_005, 4, disk(1, &[3000])));
        assert_eq!(again.disks[0].n, 1);
        assert_eq!(again.disks[0].latency_ns.qemu.unwrap().n, 1);
    }
}

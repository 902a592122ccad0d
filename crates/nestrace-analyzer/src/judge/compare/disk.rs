//! Values of a guest's disk in both recordings.

use crate::result::analysis::{
    Amplification, Analysis, Chains, Device, QemuDisk, ReadWrite, UserKind,
};
use crate::result::compared::{MetricLayer, Unit};
use crate::result::dist::Dist;
use crate::result::segments::segment_names;
use crate::result::side::Side;
use crate::result::sums::{FLUSH, LayerSums, OPERATIONS, QemuSums, Times};
use crate::result::units;

use super::bootstrap::Ratio;
use super::comparison::{Both, DiskName, ExplainedBy, Explanation, Metric};
use super::device::{Percentile, ended, mean, mean_of, seconds, whole};
use super::explanation;
use super::metric::Key;

/// Part of a disk's bios of an operation that must have been followed before their segments are compared.
pub(super) const FOLLOWED: f64 = 0.9;
/// Why an amplification has no spread.
const SHARED: &str = "other disks lie on its file system: whose journal and metadata it was is known for the \
                      whole recording only";

/// Why flushes of a device have none.
const NEIGHBOURS: &str = "others use the device too, so its flushes cannot be attributed";

/// What QEMU accounts.
pub(super) fn qemu(disks: Both<&QemuDisk>) -> Vec<Metric> {
    let mut metrics = Vec::new();
    for place in 0..OPERATIONS.len() {
        of_qemu(disks, place, &mut metrics);
    }
    metrics
}

fn of_qemu(disks: Both<&QemuDisk>, place: usize, metrics: &mut Vec<Metric>) {
    let dists = disks.map(|disk| qemu_dist(disk, place));
    let n = dists.map(|dist| dist.n);
    if n.a + n.b == 0 {
        return;
    }
    let key = |name, unit| Key {
        layer: MetricLayer::Qemu,
        operation: Some(OPERATIONS[place]),
        name,
        unit,
    };
    let series = |of: &dyn Fn(&QemuSums, u64) -> (f64, f64)| {
        disks.map(|disk| {
            let stretches = &disk.series.stretches;
            Ratio {
                stretches: stretches
                    .iter()
                    .map(|(period, sums)| of(sums, period.ns))
                    .collect(),
            }
        })
    };
    let times = disks.map(|disk| {
        let stretches = disk.series.stretches.iter();
        stretches
            .map(|(_, sums)| &sums.latency[place])
            .collect::<Vec<&Times>>()
    });
    let means = series(&|sums, _| mean_of(sums.latency[place].sum()));
    metrics.push(key("latency_mean", Unit::Ns).ratio(dists.map(|dist| mean(&dist)), n, &means));
    let percentiles: [Percentile; 2] = [
        ("latency_p50", 0.5, |dist| dist.p50),
        ("latency_p99", 0.99, |dist| dist.p99),
    ];
    for (name, q, of) in percentiles {
        let values = dists.map(|dist| of(dist).map(|ns| ns as f64));
        metrics.push(key(name, Unit::Ns).quantile(q, values, n, &times));
    }
    let rate = series(&|sums, ns| (sums.latency[place].sum().n as f64, seconds(ns)));
    metrics.push(key("per_second", Unit::PerSecond).ratio(whole(&rate), n, &rate));
    if place != FLUSH {
        let rate = series(&|sums, ns| (sums.bytes[place] as f64, seconds(ns)));
        let key = key("bytes_per_second", Unit::BytesPerSecond);
        metrics.push(key.ratio(whole(&rate), n, &rate));
    }
}

fn qemu_dist(disk: &QemuDisk, place: usize) -> Dist {
    let latency = &disk.latency_ns;
    [latency.read, latency.write, latency.discard, latency.flush][place]
}

/// By operation: what each segment has of a mean latency. `guest`: the disk inside, whose latency it is.
pub(super) fn segments(chains: Both<&Chains>, guest: Option<Both<&Device>>) -> Vec<Explanation> {
    (0..OPERATIONS.len())
        .filter_map(|place| {
            let all = guest.map_or(Both { a: 0, b: 0 }, |it| it.map(|it| ended(it, place)));
            segments_of(chains, place, all)
        })
        .collect()
}

fn segments_of(chains: Both<&Chains>, place: usize, all: Both<u64>) -> Option<Explanation> {
    let dists = chains.map(|chains| {
        let latency = &chains.latency_ns;
        [latency.read, latency.write, latency.discard, latency.flush][place]
    });
    let n = dists.map(|dist| dist.n);
    if n.a == 0 || n.b == 0 {
        return None;
    }
    let why = distrusted(chains).or_else(|| few_of(n, all));
    let key = |name| Key {
        layer: MetricLayer::Segment,
        operation: Some(OPERATIONS[place]),
        name,
        unit: Unit::Ns,
    };
    let judged = |key: Key, values: Both<Option<f64>>, series: &Both<Ratio>| {
        key.ratio(values, n, series).unless(why.as_deref())
    };
    let latency = chains.map(|chains| Ratio {
        stretches: (chains.series.stretches.iter())
            .map(|(_, sums)| mean_of(sums.by_op[place].latency))
            .collect(),
    });
    let latency = judged(key("q2c_mean"), dists.map(|dist| mean(&dist)), &latency);
    let parts = segment_names().enumerate().filter_map(|(segment, name)| {
        let series = chains.map(|chains| Ratio {
            stretches: (chains.series.stretches.iter())
                .map(|(_, sums)| {
                    let sums = &sums.by_op[place];
                    (sums.segments[segment] as f64, sums.latency.n as f64)
                })
                .collect(),
        });
        let values = whole(&series);
        let is_there = [values.a, values.b].iter().any(|it| *it > Some(0.0));
        is_there.then(|| judged(key(name), values, &series))
    });
    explanation::of(
        OPERATIONS[place],
        ExplainedBy::Segments,
        latency,
        parts.collect(),
    )
}

/// Why segments are not judged.
fn distrusted(chains: Both<&Chains>) -> Option<String> {
    for (name, chains) in [("A", chains.a), ("B", chains.b)] {
        let fraction = chains.fraction.unwrap_or(0.0);
        if fraction < FOLLOWED {
            let part = units::percent(fraction);
            return Some(format!("only {part} of {name}'s bios were linked"));
        }
    }
    let (mut a, mut b) = (chains.a.folded.clone(), chains.b.folded.clone());
    a.sort_unstable();
    b.sort_unstable();
    (a != b).then(|| String::from("the recordings hold different layers"))
}

/// Why the followed bios of an operation do not stand for all that ended.
fn few_of(followed: Both<u64>, all: Both<u64>) -> Option<String> {
    let sides = [("A", followed.a, all.a), ("B", followed.b, all.b)];
    let poorly =
        |(_, followed, all): &(&str, u64, u64)| (*followed as f64) < FOLLOWED * *all as f64;
    let (name, followed, all) = sides.into_iter().find(poorly)?;
    let part = units::percent(units::share(followed, all));
    Some(format!(
        "only {part} of {name}'s bios of this operation were linked"
    ))
}

/// Whether others than the disk and the file systems of its images use a device that these lie on, as far as is
/// known.
pub(super) fn has_neighbours(analysis: &Analysis, name: &DiskName) -> bool {
    let hosts = analysis
        .devices
        .iter()
        .filter(|device| device.side == Side::Host);
    hosts
        .filter_map(|device| device.users.as_ref())
        .any(|users| {
            let own = |user: &crate::result::analysis::User| {
                user.guest.as_deref() == Some(&*name.guest)
                    && user.disk.as_deref() == Some(&*name.disk)
            };
            users.iter().any(own)
                && users
                    .iter()
                    .any(|user| !own(user) && user.kind != UserKind::FileSystem)
        })
}

/// What is divided by what, of the whole recording.
type Whole = fn(&Amplification) -> (Option<u64>, Option<u64>);
/// And in a stretch of time.
type Stretch = fn(&LayerSums) -> (u64, u64);

/// What each layer made of the bytes and flushes that it was given.
const RATIOS: [(&str, Whole, Stretch); 6] = [
    (
        "image_bytes_per_qemu_byte",
        |it| (it.image_bytes, it.qemu_bytes),
        |it| (total(it.image), total(it.qemu)),
    ),
    (
        "host_bytes_per_qemu_byte",
        |it| (it.host_bytes, it.qemu_bytes),
        |it| (total(it.host), total(it.qemu)),
    ),
    (
        "device_bytes_per_qemu_byte",
        |it| (it.device_bytes, it.qemu_bytes),
        |it| (total(it.device), total(it.qemu)),
    ),
    (
        "device_writes_per_qemu_write",
        |it| (it.write.device, it.write.qemu),
        |it| (it.device.write, it.qemu.write),
    ),
    (
        "device_reads_per_qemu_read",
        |it| (it.read.device, it.read.qemu),
        |it| (it.device.read, it.qemu.read),
    ),
    (
        "device_flushes_per_qemu_flush",
        |it| (it.flushes.device, it.flushes.qemu),
        |it| (it.device_flushes, it.qemu_flushes),
    ),
];

const fn total(bytes: ReadWrite) -> u64 {
    bytes.read + bytes.write
}

/// Every ratio that either recording has. `neighbours`: others use the devices below too.
pub(super) fn amplification(layers: Both<&Amplification>, neighbours: bool) -> Vec<Metric> {
    let metric = |(name, whole, stretch): (&'static str, Whole, Stretch)| {
        let values = layers.map(|it| {
            let (above, below) = whole(it);
            let below = below.filter(|below| *below > 0)?;
            Some(above? as f64 / below as f64)
        });
        if values.a.is_none() && values.b.is_none() {
            return None;
        }
        let n = layers.map(|it| whole(it).1.unwrap_or(0));
        let key = Key {
            layer: MetricLayer::Amplification,
            operation: None,
            name,
            unit: Unit::Ratio,
        };
        // QEMU's file I/O is the disk's own.
        let of_file_system = name != "image_bytes_per_qemu_byte";
        if of_file_system && layers.a.shared_with + layers.b.shared_with > 0 {
            return Some(key.unjudged(values, n, SHARED));
        }
        if name == "device_flushes_per_qemu_flush" && neighbours {
            return Some(key.unjudged(values, n, NEIGHBOURS));
        }
        let series = layers.map(|it| Ratio {
            stretches: (it.series.stretches.iter())
                .map(|(_, sums)| {
                    let (above, below) = stretch(sums);
                    (above as f64, below as f64)
                })
                .collect(),
        });
        Some(key.ratio(values, n, &series))
    };
    RATIOS.into_iter().filter_map(metric).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_few_that_were_followed_do_not_stand_for_all() {
        let both = |a, b| Both { a, b };
        for (followed, all, expected) in [
            (both(500, 500), both(500, 500), None),
            (both(500, 460), both(500, 500), None),
            (both(20, 500), both(500, 500), Some("only 4.0 % of A's")),
            (both(500, 20), both(500, 500), Some("only 4.0 % of B's")),
            // Nothing is known of the guest's own count.
            (both(20, 20), both(0, 0), None),
        ] {
            let why = few_of(followed, all);
            assert_eq!(why.is_some(), expected.is_some(), "{why:?}");
            let begins = why.as_deref().unwrap_or_default();
            assert!(begins.starts_with("only") || expected.is_none(), "{why:?}");
        }
    }

    #[test]
    fn flushes_of_a_device_that_others_use_are_not_judged() {
        let mut layers = Amplification::default();
        (layers.flushes.device, layers.flushes.qemu) = (Some(50), Some(40));
        let both = Both {
            a: &layers,
            b: &layers,
        };
        for neighbours in [false, true] {
            let metrics = amplification(both, neighbours);
            let why = metrics[0].why.as_deref();
            assert_eq!(why == Some(NEIGHBOURS), neighbours, "{why:?}");
        }
    }
}

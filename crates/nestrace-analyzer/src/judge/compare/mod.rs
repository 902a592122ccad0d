//! Two recordings side by side: what differs, by how much, and how sure that is.
//!
//! [`compare`] takes two finished analyses. What is the same in both is found by name and by place
//! (`matching`); each value of the one stands beside that of the other with an interval that a bootstrap
//! over stretches of time gives (`bootstrap`), and nothing is called a difference that this interval does
//! not allow. The difference of a mean latency is split among its segments (`explanation`).
//!
//! It rests on sums over at most 64 stretches of time that the single pass keeps beside the
//! distributions, so it needs no events and no second pass.
//!
//! ```
//! use nestrace_analyzer::{Analyzer, Options, compare::compare};
//! let analysis = Analyzer::analyze(&Default::default(), Options::default(), []);
//! let comparison = compare(&analysis, &analysis);
//! assert!(comparison.disks.is_empty() && comparison.unmatched.is_empty());
//! ```

mod bootstrap;
#[cfg(test)]
mod calibration;
mod calls;
mod caveats;
mod comparison;
mod device;
mod disk;
mod explanation;
mod findings;
mod loss;
mod matching;
mod metric;
mod student;

use crate::result::analysis::{Amplification, Analysis, Chains, Device, QemuDisk};
use crate::result::side::Side;

pub use crate::result::compared::{IoOperation, MetricLayer, Unit};
pub use crate::result::series::Series;
pub use crate::result::sums::{ChainSums, DepthSums, DeviceSums, LayerSums, QemuSums};
pub use comparison::{
    Both, CallExplanation, CallPair, Comparison, DeviceName, DevicePair, DiskName, DiskPair,
    DistrustedGuest, ExplainedBy, Explanation, FindingPair, FoundIn, Interval, Matched, Method,
    Metric, Part, Recording, SCHEMA, Unmatched, UnmatchedKind, Verdict, Which,
};
use device::DeviceView;
use matching::Pair;
pub use student::normal_below;

/// Devices that are compared; a comparison stays small whatever the machine has.
const MAX_DEVICES: usize = 64;

/// What `a` and `b` say side by side.
#[must_use]
pub fn compare(a: &Analysis, b: &Analysis) -> Comparison {
    let analyses = Both { a, b };
    let (of_a, of_b) = (caveats::recording(a), caveats::recording(b));
    let calls = calls::compared(analyses);
    let mut comparison = Comparison {
        schema: SCHEMA,
        method: Method {
            name: "circular_block_bootstrap",
            draws: bootstrap::DRAWS,
            confidence: bootstrap::CONFIDENCE,
            seed: bootstrap::SEED,
            least_blocks: bootstrap::LEAST_BLOCKS,
            judged: 0,
            by_chance: 0.0,
        },
        disks: Vec::new(),
        devices: Vec::new(),
        calls: calls.pairs,
        calls_why_none: calls.why_none,
        calls_left: calls.left,
        unmatched: Vec::new(),
        caveats: caveats::of_recordings(analyses, &of_a, &of_b),
        a: of_a,
        b: of_b,
    };
    comparison.add_disks(analyses);
    comparison.add_devices(analyses);
    let mut caveats = caveats::of_pairing(&comparison);
    caveats.extend(caveats::of_sessions(analyses, &comparison.disks));
    caveats.extend(caveats::of_loads(&comparison));
    comparison.caveats.extend(caveats);
    comparison.distrust();
    comparison.count();
    comparison
}

impl Comparison {
    fn add_disks(&mut self, analyses: Both<&Analysis>) {
        let disks = analyses.map(matching::disks);
        let guests = (matching::guests(&disks.a), matching::guests(&disks.b));
        let found = matching::pairs(&guests.0, &guests.1, |a, b| a == b);
        let names = (
            |place: usize| guests.0[place].to_owned(),
            |place: usize| guests.1[place].to_owned(),
        );
        self.unmatched.extend(matching::unmatched(
            UnmatchedKind::Guest,
            &found.left,
            names,
        ));
        for guest in found.pairs {
            let of = |disks: &[DiskName], guest: &str| -> Vec<DiskName> {
                let own = disks.iter().filter(|disk| disk.guest == guest);
                own.cloned().collect()
            };
            let own = (
                of(&disks.a, guests.0[guest.places.a]),
                of(&disks.b, guests.1[guest.places.b]),
            );
            let found = matching::pairs(&own.0, &own.1, |a, b| a.disk == b.disk);
            let name = |disk: &DiskName| format!("{}/{}", disk.guest, disk.disk);
            let names = (
                |place: usize| name(&own.0[place]),
                |place: usize| name(&own.1[place]),
            );
            self.unmatched
                .extend(matching::unmatched(UnmatchedKind::Disk, &found.left, names));
            for Pair { places, matched } in found.pairs {
                let matched = match (guest.matched, matched) {
                    (Matched::Name, matched) | (matched, Matched::Name) => matched,
                    (Matched::OnlyOne, Matched::OnlyOne) => Matched::OnlyOne,
                    _ => Matched::Order,
                };
                let names = Both {
                    a: own.0[places.a].clone(),
                    b: own.1[places.b].clone(),
                };
                self.disks.push(disk_pair(analyses, names, matched));
            }
        }
        let done = |pair: &DiskPair| -> u64 {
            let means = pair.metrics.iter().filter(|it| it.name.ends_with("_mean"));
            means.map(|it| it.n.a + it.n.b).max().unwrap_or(0)
        };
        self.disks.sort_by_key(|pair| std::cmp::Reverse(done(pair)));
    }

    fn add_devices(&mut self, analyses: Both<&Analysis>) {
        let mut taken: Vec<Both<usize>> = Vec::new();
        for pair in &self.disks {
            taken.extend(pair.guest_places);
        }
        // A device below several disks is one device, and it goes with the busiest of them.
        let mut pairs: Vec<Pair> = Vec::new();
        for places in self.disks.iter().filter_map(|pair| pair.host_places) {
            let is_new = |it: &Pair| it.places.a != places.a && it.places.b != places.b;
            if pairs.iter().all(is_new) {
                pairs.push(Pair {
                    places,
                    matched: Matched::Disk,
                });
            }
        }
        taken.extend(pairs.iter().map(|pair| pair.places));
        for (side, guests) in [(Side::Guest, self.guest_names()), (Side::Host, Vec::new())] {
            let left = |analysis: &Analysis, taken: &dyn Fn(usize) -> bool| -> Vec<usize> {
                let devices = analysis.devices.iter().enumerate();
                let free = devices.filter(|(place, it)| it.side == side && !taken(*place));
                free.map(|(place, _)| place).take(MAX_DEVICES).collect()
            };
            let a = left(analyses.a, &|place| taken.iter().any(|it| it.a == place));
            let b = left(analyses.b, &|place| taken.iter().any(|it| it.b == place));
            let (of_a, of_b) = (&analyses.a.devices, &analyses.b.devices);
            let same = |a: &usize, b: &usize| {
                let (a, b) = (&of_a[*a], &of_b[*b]);
                let guest = match (&a.guest, &b.guest) {
                    (Some(a), Some(b)) => a == b || guests.contains(&(a.clone(), b.clone())),
                    (None, None) => true,
                    _ => false,
                };
                guest && a.name == b.name
            };
            let found = matching::pairs(&a, &b, same);
            let names = (
                |place: usize| shown(&of_a[a[place]]),
                |place: usize| shown(&of_b[b[place]]),
            );
            self.unmatched.extend(matching::unmatched(
                UnmatchedKind::Device,
                &found.left,
                names,
            ));
            pairs.extend(found.pairs.into_iter().map(|pair| Pair {
                places: Both {
                    a: a[pair.places.a],
                    b: b[pair.places.b],
                },
                matched: pair.matched,
            }));
        }
        pairs.sort_by_key(|pair| (pair.matched != Matched::Disk, pair.places.a));
        self.devices = pairs
            .into_iter()
            .map(|pair| device_pair(analyses, &pair))
            .collect();
    }

    /// Guests that were taken for the same.
    fn guest_names(&self) -> Vec<(String, String)> {
        let pairs = self.disks.iter();
        pairs
            .map(|pair| (pair.names.a.guest.clone(), pair.names.b.guest.clone()))
            .collect()
    }

    /// What is shown with a verdict, each value once: parts of a latency may be among the metrics too.
    fn count(&mut self) {
        let of_disks = self.disks.iter().map(|it| (&it.metrics, &it.explanations));
        let of_devices = self
            .devices
            .iter()
            .map(|it| (&it.metrics, &it.explanations));
        let judged = of_disks.chain(of_devices).map(|(metrics, explanations)| {
            let parts = explanations.iter().flat_map(|it| &it.parts);
            let parts = parts
                .map(|part| &part.mean)
                .filter(|mean| !metrics.contains(mean));
            let values = metrics.iter().chain(parts);
            values.filter(|it| it.verdict.is_judged()).count()
        });
        let of_calls = self.calls.iter().flatten().map(|pair| {
            let parts = pair.explanation.iter().flat_map(|it| &it.parts);
            let values = pair.metrics.iter().chain(parts.map(|part| &part.mean));
            values.filter(|it| it.verdict.is_judged()).count()
        });
        let judged: usize = judged.chain(of_calls).sum();
        self.method.judged = judged;
        self.method.by_chance = judged as f64 * (1.0 - self.method.confidence);
    }
}

fn disk_pair(analyses: Both<&Analysis>, names: Both<DiskName>, matched: Matched) -> DiskPair {
    let Both { a, b } = analyses;
    let of = |name: &DiskName, guest: &str, disk: &str| name.guest == guest && name.disk == disk;
    let both = |a: Option<usize>, b: Option<usize>| a.zip(b).map(|(a, b)| Both { a, b });
    let guest_place = |analysis: &Analysis, name: &DiskName| {
        let device = name.guest_device.as_deref()?;
        matching::guest_place(analysis, &name.guest, device)
    };
    let host_place = |analysis: &Analysis, name: &DiskName| {
        matching::host_place(analysis, name.host_device.as_deref()?)
    };
    let guest_places = both(guest_place(a, &names.a), guest_place(b, &names.b));
    let host_places = both(host_place(a, &names.a), host_place(b, &names.b));
    let mut metrics = Vec::new();
    let mut explanations = Vec::new();
    let chains = |it: &'_ Chains, name: &DiskName| of(name, &it.guest, &it.disk);
    let chains_a = a.chains.iter().find(|it| chains(it, &names.a));
    let chains_b = b.chains.iter().find(|it| chains(it, &names.b));
    if let (Some(a), Some(b)) = (chains_a, chains_b) {
        let guest = guest_places.map(|places| devices(analyses, places));
        explanations = disk::segments(Both { a, b }, guest);
    }
    if let Some(places) = guest_places {
        let view = DeviceView {
            layer: MetricLayer::Guest,
            devices: devices(analyses, places),
        };
        metrics.extend(view.metrics());
        let known = |it: &Explanation| explanations.iter().any(|of| of.operation == it.operation);
        let more: Vec<_> = view
            .explanations()
            .into_iter()
            .filter(|it| !known(it))
            .collect();
        explanations.extend(more);
    }
    let qemu = |it: &QemuDisk, name: &DiskName| {
        of(name, &it.guest, it.disk.as_deref().unwrap_or_default())
    };
    let qemu_a = a.qemu.iter().find(|it| qemu(it, &names.a));
    let qemu_b = b.qemu.iter().find(|it| qemu(it, &names.b));
    if let (Some(a), Some(b)) = (qemu_a, qemu_b) {
        metrics.extend(disk::qemu(Both { a, b }));
    }
    let layers = |it: &Amplification, name: &DiskName| of(name, &it.guest, &it.disk);
    let layers_a = a.amplification.iter().find(|it| layers(it, &names.a));
    let layers_b = b.amplification.iter().find(|it| layers(it, &names.b));
    if let (Some(a), Some(b)) = (layers_a, layers_b) {
        let neighbours = disk::has_neighbours(analyses.a, &names.a)
            || disk::has_neighbours(analyses.b, &names.b);
        metrics.extend(disk::amplification(Both { a, b }, neighbours));
    }
    let findings = findings::of_disk(
        analyses,
        Both {
            a: &names.a,
            b: &names.b,
        },
    );
    DiskPair {
        names,
        matched,
        metrics,
        explanations,
        findings,
        guest_places,
        host_places,
    }
}

fn device_pair(analyses: Both<&Analysis>, pair: &Pair) -> DevicePair {
    let devices = devices(analyses, pair.places);
    let view = DeviceView {
        layer: MetricLayer::Device,
        devices,
    };
    DevicePair {
        names: devices.map(|device| DeviceName {
            side: device.side,
            guest: device.guest.clone(),
            name: device.name.clone(),
            dev: device.dev.clone(),
            scheduler: device.scheduler.clone(),
        }),
        matched: pair.matched,
        metrics: view.metrics(),
        explanations: view.explanations(),
        places: pair.places,
    }
}

fn devices(analyses: Both<&Analysis>, places: Both<usize>) -> Both<&Device> {
    Both {
        a: &analyses.a.devices[places.a],
        b: &analyses.b.devices[places.b],
    }
}

/// `loop0`, or `vm1:vda`.
fn shown(device: &Device) -> String {
    caveats::device(device.guest.as_deref(), &device.name)
}

//! What the sums were at one moment: counters that only grow while a disk is there, and what is in flight.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The latencies of one operation in one layer since the probes were attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayerSums {
    /// Requests that have ended in this layer.
    pub n: u64,
    /// Their latencies together, in nanoseconds.
    pub sum_ns: u64,
    /// The longest since the last snapshot, in nanoseconds, where the kernel keeps it.
    pub max_ns: Option<u64>,
    /// Requests in each bucket of [`histogram`](crate::histogram), [`BUCKETS`](crate::histogram::BUCKETS) of them.
    pub buckets: Vec<u64>,
}

/// The layers of a request, the outermost first. `None`: not recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layers {
    /// From a request's start in the guest to its completion there, as the guest's agent says.
    pub guest: Option<LayerSums>,
    /// From QEMU's start of the request to its end.
    pub qemu: Option<LayerSums>,
    /// The calls of QEMU into the image's file.
    pub file_io: Option<LayerSums>,
    /// From the start of a request to its issue, on the device that carries the image: of all its users.
    pub host_queue: Option<LayerSums>,
    /// From the issue to the completion, on the device that carries the image: of all its users.
    pub device: Option<LayerSums>,
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Op {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A flush of the cache.
    Flush,
    /// A discard or a write of zeros without data.
    Discard,
}

impl LayerSums {
    /// What has ended since `earlier`. Counters that are smaller than before began anew: then all of it has.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        if self.n < earlier.n {
            return self.clone();
        }
        let before = earlier.buckets.iter().chain(std::iter::repeat(&0));
        let buckets = self.buckets.iter().zip(before);
        Self {
            n: self.n - earlier.n,
            sum_ns: self.sum_ns.saturating_sub(earlier.sum_ns),
            max_ns: self.max_ns,
            buckets: buckets
                .map(|(now, then)| now.saturating_sub(*then))
                .collect(),
        }
    }

    /// Adds what ended elsewhere or at another time.
    pub fn add(&mut self, other: &Self) {
        self.n = self.n.saturating_add(other.n);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        self.max_ns = self.max_ns.max(other.max_ns);
        let n_buckets = self.buckets.len().max(other.buckets.len());
        self.buckets.resize(n_buckets, 0);
        for (sum, n) in self.buckets.iter_mut().zip(&other.buckets) {
            *sum = sum.saturating_add(*n);
        }
    }
}

/// Counters that are smaller than before began anew.
fn grown(earlier: Option<u64>, now: u64) -> u64 {
    now.checked_sub(earlier.unwrap_or(0)).unwrap_or(now)
}

fn layer_since(earlier: Option<&LayerSums>, now: Option<&LayerSums>) -> Option<LayerSums> {
    let now = now?;
    Some(earlier.map_or_else(|| now.clone(), |earlier| now.since(earlier)))
}

impl Layers {
    fn since(&self, earlier: Option<&Self>) -> Self {
        let layer =
            |of: fn(&Self) -> Option<&LayerSums>| layer_since(earlier.and_then(of), of(self));
        Self {
            guest: layer(|layers| layers.guest.as_ref()),
            qemu: layer(|layers| layers.qemu.as_ref()),
            file_io: layer(|layers| layers.file_io.as_ref()),
            host_queue: layer(|layers| layers.host_queue.as_ref()),
            device: layer(|layers| layers.device.as_ref()),
        }
    }
}

impl Op {
    /// All, in the order of the probes' numbers.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Flush, Self::Discard];

    /// The word of JSON and of labels.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Flush => "flush",
            Self::Discard => "discard",
        }
    }
}

/// One operation of one guest's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskSums {
    /// The guest's name, as QEMU or libvirt gives it.
    pub guest: String,
    /// The guest's UUID, where QEMU has one.
    pub uuid: Option<String>,
    /// The disk, as libvirt names it (`vda`), else QEMU's name of it.
    pub disk: String,
    /// The host's device that carries its image, where that is known.
    pub device: Option<String>,
    /// The operation.
    pub op: Op,
    /// Requests that have ended.
    pub n: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Those of them that QEMU merged into others, where that is known.
    pub merged: Option<u64>,
    /// Their latencies.
    pub layers: Layers,
    /// Requests that have begun and not ended, where that is known.
    pub in_flight: Option<u64>,
    /// The age of the oldest of them, in nanoseconds.
    pub oldest_ns: Option<u64>,
    /// Why [`Layers::guest`] is not recorded, where it is not, in words. A guest may have chosen them.
    #[serde(default)]
    pub no_guest: Option<String>,
}

impl DiskSums {
    fn key(&self) -> (&str, Option<&str>, &str, Op) {
        (&self.guest, self.uuid.as_deref(), &self.disk, self.op)
    }

    fn since(&self, earlier: Option<&Self>) -> Self {
        Self {
            n: grown(earlier.map(|earlier| earlier.n), self.n),
            bytes: grown(earlier.map(|earlier| earlier.bytes), self.bytes),
            merged: self
                .merged
                .map(|merged| grown(earlier.and_then(|earlier| earlier.merged), merged)),
            layers: self.layers.since(earlier.map(|earlier| &earlier.layers)),
            ..self.clone()
        }
    }
}

/// One operation of one device of the host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceSums {
    /// The kernel's name of it.
    pub device: String,
    /// The operation.
    pub op: Op,
    /// Requests that have completed.
    pub n: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From a request's start to its issue.
    pub host_queue: Option<LayerSums>,
    /// From its issue to its completion.
    pub latency: Option<LayerSums>,
    /// Requests that were issued and have not completed.
    pub in_flight: Option<u64>,
    /// The age of the oldest of them, in nanoseconds.
    pub oldest_ns: Option<u64>,
}

impl DeviceSums {
    fn key(&self) -> (&str, Op) {
        (&self.device, self.op)
    }

    fn since(&self, earlier: Option<&Self>) -> Self {
        let layer =
            |of: fn(&Self) -> Option<&LayerSums>| layer_since(earlier.and_then(of), of(self));
        Self {
            n: grown(earlier.map(|earlier| earlier.n), self.n),
            bytes: grown(earlier.map(|earlier| earlier.bytes), self.bytes),
            host_queue: layer(|device| device.host_queue.as_ref()),
            latency: layer(|device| device.latency.as_ref()),
            ..self.clone()
        }
    }
}

/// The sums of all disks and devices at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Snapshot {
    /// When it was read, in nanoseconds of Unix time.
    pub at_unix_ns: u64,
    /// Requests that could not be summed since the probes were attached, by source: block, file, qemu, meta; guest: what
    /// agents could not.
    pub lost: BTreeMap<String, u64>,
    /// The guests' disks, an entry for reads, writes and flushes each, and for discards once one occurred.
    pub disks: Vec<DiskSums>,
    /// The host's devices, with entries like these.
    pub devices: Vec<DeviceSums>,
}

impl Snapshot {
    /// Requests that could not be summed, of all sources. A guest can say any number.
    #[must_use]
    pub fn n_lost(&self) -> u64 {
        self.lost.values().copied().fold(0, u64::saturating_add)
    }

    /// What was done since `earlier`; what is in flight is that of now. A disk that was not there before has done all that
    /// it did since then.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let disks: BTreeMap<_, _> = earlier.disks.iter().map(|it| (it.key(), it)).collect();
        let devices: BTreeMap<_, _> = earlier.devices.iter().map(|it| (it.key(), it)).collect();
        let lost = self.lost.iter().map(|(source, n)| {
            let before = earlier.lost.get(source).copied().unwrap_or(0);
            (source.clone(), n.saturating_sub(before))
        });
        let disk = |it: &DiskSums| it.since(disks.get(&it.key()).copied());
        let device = |it: &DeviceSums| it.since(devices.get(&it.key()).copied());
        Self {
            at_unix_ns: self.at_unix_ns,
            lost: lost.collect(),
            disks: self.disks.iter().map(disk).collect(),
            devices: self.devices.iter().map(device).collect(),
        }
    }
}

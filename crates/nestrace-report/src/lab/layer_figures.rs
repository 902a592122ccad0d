//! How one layer of a cell did its I/O, as FAST'12 shows it: jumps, merges, wait in the queue.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::Device;
use nestrace_analyzer::histogram::Dist;
use serde::{Deserialize, Serialize};

use crate::plots::{Subject, seek_shares};

/// Points of a curve at most.
const MAX_POINTS: usize = 48;

/// The guest's disk, or the lowest device below it that did most of its I/O.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct LayerFigures {
    /// Share of bios that were merged into others' requests; `null` where bios were not recorded.
    pub merged: Option<f64>,
    /// Mean time of a bio from Q to D, nanoseconds: Q2C without D2C.
    pub queue_wait_mean_ns: Option<f64>,
    /// How far each request jumps, as a share of the range in use, and the share of requests that jump no farther.
    pub seeks: Vec<(f64, f64)>,
}

impl LayerFigures {
    /// Of the guest's disk with this name, and of the device below it.
    pub(super) fn of(analysis: &Analysis, guest: &str, disk: &str) -> [Option<Self>; 2] {
        let subject = Subject::of_disk(analysis, guest, disk);
        [subject.guest, subject.host].map(|device| device.map(Self::of_device))
    }

    fn of_device(device: &Device) -> Self {
        let counts = &device.counts;
        let merges = [
            counts.back_merges,
            counts.front_merges,
            counts.request_merges,
        ];
        let merged: u64 = merges.into_iter().flatten().sum();
        let queued = counts.queued.filter(|queued| *queued > 0);
        let mean = |dist: Dist| (dist.n > 0).then(|| dist.sum as f64 / dist.n as f64);
        let parts = &device.latency_ns.all;
        let whole = parts.q2c.and_then(mean);
        let wait = whole
            .zip(parts.d2c.and_then(mean))
            .map(|(q2c, d2c)| q2c - d2c);
        let seeks = seek_shares(device);
        // Every second point less, until few enough are left; the last one stays.
        let step = seeks.len().div_ceil(MAX_POINTS).max(1);
        let last = seeks.len().saturating_sub(1);
        let kept = seeks.into_iter().enumerate();
        Self {
            merged: queued.map(|queued| merged as f64 / queued as f64),
            queue_wait_mean_ns: wait.map(|ns| ns.max(0.0)),
            seeks: kept
                .filter(|(place, _)| place % step == 0 || *place == last)
                .map(|(_, point)| point)
                .collect(),
        }
    }
}

//! The segments of a chain or a call, and their distributions over many.

use std::collections::BTreeMap;

use crate::measure::histogram::Histogram;
use crate::result::analysis::{self, SegmentCpu};
use crate::result::dist::Dist;
use crate::result::segments::{CALL_SEGMENTS, SegmentKind};

use super::walk::{StackLayer, Times};

/// Layers of stacked devices: damaged input may name any number.
const MAX_LAYERS: usize = 256;

/// Segments of many chains, or of many calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentMeter {
    /// Q to the end, as the guest has it.
    latency: Histogram,
    /// The times of those chains that have the segment.
    times: [Histogram; CALL_SEGMENTS],
    /// Summed times of the layers of [`SegmentKind::OF_STACKS`].
    stack: BTreeMap<StackLayer, [u128; SegmentKind::OF_STACKS.len()]>,
    layer_metadata_ns: u128,
    read_modify_write_ns: u128,
    /// Running, runnable, asleep; the rest is not known.
    cpu: [[u128; 3]; CALL_SEGMENTS],
}

impl SegmentMeter {
    /// Adds a chain of a bio that took `latency_ns`.
    pub(crate) fn add(&mut self, times: &Times, latency_ns: u64) {
        self.latency.record(latency_ns);
        for segment in SegmentKind::OF_CALL {
            let ns = times.of(segment);
            if ns > 0 {
                self.times[segment as usize].record(ns);
                let cpu = times.cpu(segment);
                let parts = [cpu.running, cpu.runnable, cpu.asleep].map(u128::from);
                let sums = self.cpu[segment as usize].iter_mut().zip(parts);
                sums.for_each(|(sum, part)| *sum += part);
            }
        }
        for (layer, times) in &times.stack {
            self.add_layer(*layer, times.map(u128::from));
        }
        self.layer_metadata_ns += u128::from(times.layer_metadata_ns);
        self.read_modify_write_ns += u128::from(times.read_modify_write_ns);
    }

    fn add_layer(&mut self, layer: StackLayer, times: [u128; SegmentKind::OF_STACKS.len()]) {
        if self.stack.len() >= MAX_LAYERS && !self.stack.contains_key(&layer) {
            return;
        }
        let sums = self.stack.entry(layer).or_default();
        for (sum, ns) in sums.iter_mut().zip(times) {
            *sum = sum.saturating_add(ns);
        }
    }

    /// Adds the chains of another.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (layer, times) in &other.stack {
            self.add_layer(*layer, *times);
        }
        self.layer_metadata_ns += other.layer_metadata_ns;
        self.read_modify_write_ns += other.read_modify_write_ns;
        self.latency.merge(&other.latency);
        for (mine, theirs) in self.times.iter_mut().zip(&other.times) {
            mine.merge(theirs);
        }
        let cpu = self.cpu.iter_mut().flatten();
        let sums = cpu.zip(other.cpu.iter().flatten());
        sums.for_each(|(mine, theirs)| *mine += theirs);
    }

    /// Latency of the chains.
    pub(crate) fn latency(&self) -> Dist {
        self.latency.dist()
    }

    /// Mean latency.
    pub(crate) fn mean_ns(&self) -> f64 {
        mean(self.latency.sum(), self.latency.n())
    }

    /// Part of the summed latency that is in no segment.
    pub(crate) fn residual_share(&self) -> f64 {
        let covered: u128 = self.times.iter().map(Histogram::sum).sum();
        share(self.latency.sum().abs_diff(covered), self.latency.sum())
    }

    /// What stacked devices did beside the I/O; `None` where there was no such device.
    pub(crate) fn stacks(&self) -> Option<analysis::StackIo> {
        (!self.stack.is_empty()).then(|| analysis::StackIo {
            metadata_share: share(self.layer_metadata_ns, self.latency.sum()),
            read_modify_write_share: share(self.read_modify_write_ns, self.latency.sum()),
        })
    }

    /// One entry for each segment of a chain; nothing where there was no chain.
    pub(crate) fn finish(&self) -> Vec<analysis::Segment> {
        self.entries(&SegmentKind::OF_BIO)
    }

    /// One entry for each segment of a call; nothing where there was no call.
    pub(crate) fn finish_calls(&self) -> Vec<analysis::Segment> {
        self.entries(&SegmentKind::OF_CALL)
    }

    fn cpu(&self, segment: SegmentKind) -> SegmentCpu {
        let of = |sum: u128| mean(sum, self.latency.n());
        let sums = self.cpu[segment as usize];
        let known: u128 = sums.iter().sum();
        let [running, runnable, asleep] = sums.map(of);
        let whole = self.times[segment as usize].sum();
        SegmentCpu {
            running,
            runnable,
            asleep,
            unknown: of(whole.saturating_sub(known)),
        }
    }

    fn entries(&self, segments: &[SegmentKind]) -> Vec<analysis::Segment> {
        let (n, total_ns) = (self.latency.n(), self.latency.sum());
        if n == 0 {
            return Vec::new();
        }
        let entry = |segment: &SegmentKind| {
            let histogram = &self.times[*segment as usize];
            analysis::Segment {
                layers: self.layers_of(*segment, n),
                name: segment.name(),
                n: histogram.n(),
                mean_ns: mean(histogram.sum(), n),
                p50_ns: histogram.quantile(0.5),
                p99_ns: histogram.quantile(0.99),
                share: share(histogram.sum(), total_ns),
                cpu: self.cpu(*segment),
            }
        };
        let is_there = |segment: &&SegmentKind| {
            !segment.has_layers() || self.times[**segment as usize].n() > 0
        };
        segments.iter().filter(is_there).map(entry).collect()
    }

    /// The layers of a segment, the costliest first; over `n` chains.
    fn layers_of(&self, segment: SegmentKind, n: u64) -> Option<Vec<analysis::SegmentLayer>> {
        let part = SegmentKind::OF_STACKS
            .iter()
            .position(|it| *it == segment)?;
        let mut layers: Vec<(StackLayer, u128)> = self
            .stack
            .iter()
            .map(|(layer, sums)| (*layer, sums[part]))
            .filter(|(_, sum)| *sum > 0)
            .collect();
        layers.sort_by_key(|(layer, sum)| (std::cmp::Reverse(*sum), *layer));
        let named = layers
            .into_iter()
            .map(|(layer, sum)| analysis::SegmentLayer {
                dev: layer.dev,
                of_file: layer.of_file,
                mean_ns: mean(sum, n),
                ..analysis::SegmentLayer::default()
            });
        Some(named.collect())
    }
}

fn mean(sum: u128, n: u64) -> f64 {
    if n == 0 { 0.0 } else { sum as f64 / n as f64 }
}

fn share(part: u128, whole: u128) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

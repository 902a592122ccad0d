//! The segments of a chain or a call, and their distributions over many.

use crate::measure::histogram::Histogram;
use crate::result::analysis;
use crate::result::dist::Dist;
use crate::result::segments::{CALL_SEGMENTS, Segment};

use super::walk::Times;

/// Segments of many chains, or of many calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct SegmentMeter {
    /// Q to the end, as the guest has it.
    latency: Histogram,
    /// The times of those chains that have the segment.
    times: [Histogram; CALL_SEGMENTS],
}

impl SegmentMeter {
    /// Adds a chain of a bio that took `latency_ns`.
    pub(crate) fn add(&mut self, times: &Times, latency_ns: u64) {
        self.latency.record(latency_ns);
        for segment in Segment::OF_CALL {
            let ns = times.of(segment);
            if ns > 0 {
                self.times[segment as usize].record(ns);
            }
        }
    }

    /// Adds the chains of another.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.latency.merge(&other.latency);
        for (mine, theirs) in self.times.iter_mut().zip(&other.times) {
            mine.merge(theirs);
        }
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

    /// One entry for each segment of a chain; nothing where there was no chain.
    pub(crate) fn finish(&self) -> Vec<analysis::Segment> {
        self.entries(&Segment::OF_BIO)
    }

    /// One entry for each segment of a call; nothing where there was no call.
    pub(crate) fn finish_calls(&self) -> Vec<analysis::Segment> {
        self.entries(&Segment::OF_CALL)
    }

    fn entries(&self, segments: &[Segment]) -> Vec<analysis::Segment> {
        let (n, total_ns) = (self.latency.n(), self.latency.sum());
        if n == 0 {
            return Vec::new();
        }
        let entry = |segment: &Segment| {
            let histogram = &self.times[*segment as usize];
            analysis::Segment {
                name: segment.name(),
                n: histogram.n(),
                mean_ns: mean(histogram.sum(), n),
                p50_ns: histogram.quantile(0.5),
                p99_ns: histogram.quantile(0.99),
                share: share(histogram.sum(), total_ns),
            }
        };
        segments.iter().map(entry).collect()
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

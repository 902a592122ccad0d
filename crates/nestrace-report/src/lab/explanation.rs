//! What a cell's recording says of its disk: where the time goes, and what was found.

use std::collections::BTreeMap;

use nestrace_analyzer::analysis::{ChainLatency, Severity};
use nestrace_analyzer::histogram::Dist;
use nestrace_analyzer::{Analysis, incomplete, units::of};
use serde::{Deserialize, Serialize};

use super::layer_figures::LayerFigures;
use super::results::Latency;

/// Changes below this are not reported, however sure they are, and explain nothing.
pub(super) const NOTABLE: f64 = 0.1;

/// In short, what an analysis says of one disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct Explanation {
    /// Mean latency of the guest's data bios that were followed, nanoseconds; `null` without any.
    pub q2c_mean_ns: Option<f64>,
    /// Part of the guest's bios that was followed.
    pub linked: Option<f64>,
    /// Of the guest's bios that were followed: `read`, `write`, `flush`, `discard`.
    pub latency: BTreeMap<String, Latency>,
    /// Where the time goes, in the order of the path.
    pub segments: Vec<SegmentTime>,
    /// Bytes at the device for each byte that the guest asked for.
    pub amplification: Option<f64>,
    /// Flushes of the device.
    pub device_flushes: Option<u64>,
    /// The guest's disk; `null` where its side was not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub guest: Option<LayerFigures>,
    /// The device below it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<LayerFigures>,
    /// What the rules found, what weighs most first.
    pub findings: Vec<CellFinding>,
    /// Events that were lost.
    pub lost: u64,
    /// What else is missing of the recording, in words; empty where nothing is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
    /// Why the recording ended before its run did (`max_size`, `disk_full`, `guest_exited`); empty where it did not.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub ended_early: String,
}

/// A segment of the guest's bios.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct SegmentTime {
    /// `guest_queue`, …
    pub name: String,
    /// Mean over all bios that were followed, nanoseconds.
    pub mean_ns: f64,
}

/// A finding.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
#[non_exhaustive]
pub struct CellFinding {
    /// The rule.
    pub id: String,
    /// `high`, `medium`, `low`, `info`.
    pub severity: String,
    /// What happened, in a line.
    pub title: String,
    /// Why.
    pub explanation: String,
    /// What to do.
    pub advice: Vec<String>,
    /// Part at stake, 0 to 1.
    pub share: f64,
}

/// What is missing beside the events that were lost, which are counted.
fn missing(analysis: &Analysis) -> Vec<String> {
    let counted = usize::from(analysis.trace.lost > 0);
    let mut missing: Vec<String> = incomplete::missing(&analysis.trace)
        .into_iter()
        .skip(counted)
        .collect();
    let ends = incomplete::ends_missed(&analysis.devices);
    if ends > 0 {
        missing.push(of(
            ends,
            "request without an end",
            "requests without an end",
        ));
    }
    missing
}

impl Explanation {
    /// Of the disk with this name.
    #[must_use]
    pub fn of(analysis: &Analysis, disk: &str) -> Self {
        let chains = analysis
            .chains
            .iter()
            .find(|chains| chains.disk == disk && chains.linked > 0);
        let amplification = analysis.amplification.iter().find(|one| one.disk == disk);
        let mut explanation = Self {
            lost: analysis.trace.lost,
            missing: missing(analysis),
            findings: findings(analysis, disk),
            ended_early: ended_early(analysis.trace.end_reason.as_deref().unwrap_or_default()),
            ..Self::default()
        };
        if let Some(chains) = chains {
            explanation.q2c_mean_ns = Some(chains.q2c_mean_ns);
            explanation.linked = chains.fraction;
            [explanation.guest, explanation.host] =
                LayerFigures::of(analysis, &chains.guest, &chains.disk);
            explanation.latency = latencies(&chains.latency_ns);
            explanation.segments = chains
                .segments
                .iter()
                .filter(|segment| segment.n > 0)
                .map(|segment| SegmentTime {
                    name: segment.name.to_owned(),
                    mean_ns: segment.mean_ns,
                })
                .collect();
        }
        if let Some(disk) = amplification {
            let asked = disk
                .qemu_bytes
                .or(disk.guest_bytes)
                .filter(|bytes| *bytes > 0);
            let device = disk.device_bytes.or(disk.host_bytes);
            explanation.amplification = asked
                .zip(device)
                .map(|(asked, device)| device as f64 / asked as f64);
            explanation.device_flushes = disk.flushes.device;
        }
        explanation
    }

    /// The segment that explains why the guest's I/Os took longer than the baseline's (`longer`) or not so long: the one
    /// that grew or shrank most, and its nanoseconds more, fewer being negative. `None` where the I/Os as a whole did
    /// not by a tenth at least, or one of the two was not followed.
    #[must_use]
    pub fn changed_most<'s>(&'s self, baseline: &'s Self, longer: bool) -> Option<(&'s str, f64)> {
        let (own, before) = (self.q2c_mean_ns?, baseline.q2c_mean_ns?);
        let ratio = if longer { own / before } else { before / own };
        if ratio.is_nan() || ratio < 1.0 + NOTABLE {
            return None;
        }
        let sign = if longer { 1.0 } else { -1.0 };
        let names = self.segments.iter().chain(&baseline.segments);
        names
            .map(|segment| {
                let name = segment.name.as_str();
                (name, self.mean_ns(name) - baseline.mean_ns(name))
            })
            .max_by(|(_, a), (_, b)| (a * sign).total_cmp(&(b * sign)))
    }

    /// Mean of a segment; 0 for one that no I/O had.
    fn mean_ns(&self, name: &str) -> f64 {
        let mut segments = self.segments.iter();
        let segment = segments.find(|segment| segment.name == name);
        segment.map_or(0.0, |segment| segment.mean_ns)
    }
}

/// Why a recording ended by itself: the lab ends one when its run is over.
fn ended_early(end_reason: &str) -> String {
    let by_itself = ["max_size", "disk_full", "guest_exited"].contains(&end_reason);
    let reason = if by_itself { end_reason } else { "" };
    reason.to_owned()
}

fn latencies(of: &ChainLatency) -> BTreeMap<String, Latency> {
    let operations = [
        ("read", &of.read),
        ("write", &of.write),
        ("flush", &of.flush),
        ("discard", &of.discard),
    ];
    let seen = operations.into_iter().filter(|(_, dist)| dist.n > 0);
    seen.map(|(name, dist)| (name.to_owned(), latency(dist)))
        .collect()
}

fn latency(dist: &Dist) -> Latency {
    let of = |value: Option<u64>| value.unwrap_or(0);
    Latency {
        n: dist.n,
        mean_ns: dist.sum as f64 / dist.n.max(1) as f64,
        p50_ns: of(dist.p50),
        p90_ns: of(dist.p90),
        p99_ns: of(dist.p99),
        p999_ns: of(dist.p999),
        max_ns: of(dist.max),
    }
}

fn findings(analysis: &Analysis, disk: &str) -> Vec<CellFinding> {
    let own = analysis
        .findings
        .iter()
        .filter(|finding| finding.disk == disk);
    own.map(|finding| CellFinding {
        id: finding.id.to_owned(),
        severity: match finding.severity {
            Severity::High => "high",
            Severity::Medium => "medium",
            Severity::Low => "low",
            _ => "info",
        }
        .to_owned(),
        title: finding.title.clone(),
        explanation: finding.explanation.clone(),
        advice: finding.advice.clone(),
        share: finding.share,
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(segments: &[(&str, f64)]) -> Explanation {
        let segment = |(name, mean_ns): &(&str, f64)| SegmentTime {
            name: (*name).to_owned(),
            mean_ns: *mean_ns,
        };
        let sum: f64 = segments.iter().map(|(_, mean_ns)| mean_ns).sum();
        Explanation {
            q2c_mean_ns: (!segments.is_empty()).then_some(sum),
            segments: segments.iter().map(segment).collect(),
            ..Explanation::default()
        }
    }

    #[test]
    fn the_segment_that_changed_most() {
        let baseline = of(&[("guest_queue", 100.0), ("device", 500.0)]);
        let nested = of(&[
            ("guest_queue", 150.0),
            ("host_fs_submit", 300.0),
            ("device", 400.0),
        ]);
        let most = Some(("host_fs_submit", 300.0));
        assert_eq!(nested.changed_most(&baseline, true), most);
        let least = Some(("host_fs_submit", -300.0));
        assert_eq!(baseline.changed_most(&nested, false), least);
        // As a whole the I/Os did not change so.
        assert_eq!(baseline.changed_most(&nested, true), None);
        assert_eq!(nested.changed_most(&baseline, false), None);
        assert_eq!(nested.changed_most(&of(&[]), true), None);
        assert_eq!(nested.changed_most(&nested, true), None);
    }
}

//! Which streams of a recording lost so much that nothing of them is judged.
//!
//! Each machine has a stream of its own: a guest's that lost half of its events is a drop in the sea of its
//! host's. What the host's stream lacks may be missing in every value; what a guest's lacks, in what was
//! recorded inside that guest.

use crate::result::analysis::Trace;
use crate::result::compared::MetricLayer;
use crate::result::units::percent;

use super::comparison::{
    Both, CallPair, Comparison, DistrustedGuest, Explanation, Metric, Recording, Verdict,
};

/// Part of a stream's events whose loss leaves nothing to judge.
const TOO_MANY_LOST: f64 = 0.01;
/// What is in no value: names of threads, what the host's file systems did, and requests whose list of bios was
/// too long for the probe (these are no events).
const IN_NO_VALUE: [&str; 3] = ["meta", "host_fs", "walk"];

/// Why nothing of the recording is judged.
pub(super) fn of_host(trace: &Trace) -> Option<String> {
    too_many(trace, None).map(|part| format!("{} of the host's events were lost", percent(part)))
}

/// The guests of whose own values nothing is judged, each once.
pub(super) fn of_guests(trace: &Trace) -> Vec<DistrustedGuest> {
    let of_sources = trace.sources.iter().map(|source| &source.guest);
    let of_losses = trace.losses.iter().map(|loss| &loss.guest);
    let mut guests: Vec<&String> = of_sources.chain(of_losses).flatten().collect();
    guests.sort_unstable();
    guests.dedup();
    let distrusted = guests.into_iter().filter_map(|guest| {
        let part = too_many(trace, Some(guest))?;
        Some(DistrustedGuest {
            guest: guest.clone(),
            why: format!(
                "{} of the events from inside {guest} were lost",
                percent(part)
            ),
        })
    });
    distrusted.collect()
}

/// The part of a machine's events that was lost, where it is too large. Several sessions of a guest have their
/// losses in one. A guest says of itself how many they are: that may be any number.
fn too_many(trace: &Trace, guest: Option<&str>) -> Option<f64> {
    let losses = trace.losses.iter().filter(|loss| {
        loss.guest.as_deref() == guest && !IN_NO_VALUE.contains(&loss.source.as_str())
    });
    let lost: f64 = losses.map(|loss| loss.events as f64).sum();
    let sources = trace.sources.iter();
    let sources = sources.filter(|source| source.guest.as_deref() == guest);
    let read: f64 = sources.map(|source| source.events as f64).sum();
    let part = lost / (read + lost).max(1.0);
    (part > TOO_MANY_LOST).then_some(part)
}

impl Comparison {
    /// Where a stream lacks too much, nothing of it is judged.
    pub(super) fn distrust(&mut self) {
        let recordings = Both {
            a: self.a.clone(),
            b: self.b.clone(),
        };
        if let Some(why) = both_reasons(
            recordings.a.distrusted.clone(),
            recordings.b.distrusted.clone(),
        ) {
            for pair in &mut self.disks {
                distrust(&why, &mut pair.metrics, &mut pair.explanations, |_| true);
            }
            for pair in &mut self.devices {
                distrust(&why, &mut pair.metrics, &mut pair.explanations, |_| true);
            }
            let calls = self.calls.iter_mut().flatten();
            calls.for_each(|pair| distrust_calls(&why, pair));
            return;
        }
        let why = |a: Option<&String>, b: Option<&String>| {
            both_reasons(recordings.a.distrusts(a), recordings.b.distrusts(b))
        };
        for pair in &mut self.disks {
            let (a, b) = (&pair.names.a.guest, &pair.names.b.guest);
            let inside = |metric: &Metric| metric.layer == MetricLayer::Guest;
            if let Some(why) = why(Some(a), Some(b)) {
                distrust(&why, &mut pair.metrics, &mut pair.explanations, inside);
            }
        }
        for pair in &mut self.devices {
            let (a, b) = (pair.names.a.guest.as_ref(), pair.names.b.guest.as_ref());
            if let Some(why) = why(a, b) {
                distrust(&why, &mut pair.metrics, &mut pair.explanations, |_| true);
            }
        }
        for pair in self.calls.iter_mut().flatten() {
            let (a, b) = (&pair.guests.a, &pair.guests.b);
            if let Some(why) = why(Some(a), Some(b)) {
                distrust_calls(&why, pair);
            }
        }
    }
}

impl Recording {
    fn distrusts(&self, guest: Option<&String>) -> Option<String> {
        let mut guests = self.distrusted_guests.iter();
        let found = guests.find(|it| Some(&it.guest) == guest)?;
        Some(found.why.clone())
    }
}

fn both_reasons(a: Option<String>, b: Option<String>) -> Option<String> {
    match (a, b) {
        (None, None) => None,
        (Some(why), None) => Some(format!("A: {why}")),
        (None, Some(why)) => Some(format!("B: {why}")),
        (Some(a), Some(b)) => Some(format!("A: {a}; B: {b}")),
    }
}

/// Takes back what was said of these metrics, and of where differences lie: that rests on them.
fn distrust(
    why: &str,
    metrics: &mut [Metric],
    explanations: &mut [Explanation],
    is_of_it: impl Fn(&Metric) -> bool,
) {
    let own = metrics.iter_mut().filter(|metric| is_of_it(metric));
    own.for_each(|metric| metric.distrust(why));
    for explanation in explanations {
        explanation.largest = None;
        explanation.latency.distrust(why);
        for part in &mut explanation.parts {
            part.mean.distrust(why);
        }
    }
}

/// The same of calls.
fn distrust_calls(why: &str, pair: &mut CallPair) {
    let metrics = pair.metrics.iter_mut();
    metrics.for_each(|metric| metric.distrust(why));
    if let Some(explanation) = &mut pair.explanation {
        explanation.largest = None;
        explanation.latency.distrust(why);
        let parts = explanation.parts.iter_mut();
        parts.for_each(|part| part.mean.distrust(why));
    }
}

impl Metric {
    /// Nothing is said, because of `why`; the values stay.
    fn distrust(&mut self, why: &str) {
        self.interval = None;
        self.verdict = Verdict::NotJudged;
        self.why = Some(why.to_owned());
    }

    /// The same where there is something against it.
    pub(super) fn unless(mut self, why: Option<&str>) -> Self {
        if let Some(why) = why {
            self.distrust(why);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::analysis::{SourceLoss, TraceSource};

    /// A recording with these events read of the host and of vm1, and these lost.
    fn trace(host: u64, guest: u64, lost: &[(&str, Option<&str>, u64)]) -> Trace {
        let source = |guest: Option<&str>, events| TraceSource {
            guest: guest.map(str::to_owned),
            events,
            ..TraceSource::default()
        };
        let loss = |(name, guest, events): &(&str, Option<&str>, u64)| SourceLoss {
            source: (*name).to_owned(),
            guest: guest.map(str::to_owned),
            events: *events,
        };
        Trace {
            sources: vec![source(None, host), source(Some("vm1"), guest)],
            losses: lost.iter().map(loss).collect(),
            ..Trace::default()
        }
    }

    #[test]
    fn losses_count_against_their_own_stream() {
        let (host, vm1) = (None, Some("vm1"));
        for (lost, of_host_expected, of_guest_expected) in [
            (&[][..], None, None),
            (&[("block", vm1, 8_000)], None, Some("50 %")),
            (&[("block", vm1, 60)], None, None),
            (&[("block", host, 5_000)], None, None),
            (
                &[("block", host, 5_000), ("qemu", host, 6_000)],
                Some("1.1 %"),
                None,
            ),
            (
                &[("meta", host, 90_000), ("host_fs", host, 90_000)],
                None,
                None,
            ),
            (&[("walk", host, 90_000), ("walk", vm1, 90_000)], None, None),
            (
                &[("block", vm1, u64::MAX), ("file", vm1, 1)],
                None,
                Some("100 %"),
            ),
            (
                &[("block", host, u64::MAX), ("file", host, 1)],
                Some("100 %"),
                None,
            ),
        ] {
            let trace = trace(1_000_000, 8_000, lost);
            let host = of_host(&trace);
            let guests = of_guests(&trace);
            let begins = |why: Option<&str>, expected: Option<&str>| match expected {
                Some(expected) => why.is_some_and(|why| why.starts_with(expected)),
                None => why.is_none(),
            };
            let guest = guests.first().map(|it| it.why.as_str());
            assert!(
                begins(host.as_deref(), of_host_expected),
                "{lost:?}: {host:?}"
            );
            assert!(begins(guest, of_guest_expected), "{lost:?}: {guest:?}");
        }
    }

    #[test]
    fn a_guest_without_a_stream_has_lost_it_all() {
        let guests = of_guests(&trace(1_000, 1_000, &[("block", Some("vm2"), 7)]));
        let names: Vec<&str> = guests.iter().map(|it| it.guest.as_str()).collect();
        assert_eq!(names, ["vm2"]);
    }
}

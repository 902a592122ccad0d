//! Why a flight recorder wrote the recording.

use nestrace_trace::Manifest;
use nestrace_trace::manifest::FlightCause;

use crate::result::analysis::{FlightMoment, FlightReading};

/// How long before a signal or a file its cause is looked for: somebody has seen something.
const SEEN_NS: u64 = 5_000_000_000;
/// A window is never looked at as shorter than this.
const LEAST_WINDOW_NS: u64 = 1_000_000_000;

/// Why a flight recorder wrote it; `start_ns` is where times count from.
pub(crate) fn moment(manifest: &Manifest, start_ns: u64) -> Option<FlightMoment> {
    let flight = manifest.flight.as_ref()?;
    let at_ns = flight.mono_ns.saturating_sub(start_ns);
    let readings: Vec<FlightReading> = flight.readings.iter().map(reading).collect();
    let held = readings.iter().filter(|reading| reading.holds);
    // The oldest request began before its age was looked at.
    let looked_ns = |reading: &FlightReading| match (reading.statistic.as_str(), reading.value) {
        ("oldest", Some(age_ns)) => reading.window_ns.max(age_ns as u64),
        _ => reading.window_ns,
    };
    let back_ns = match flight.cause {
        FlightCause::Condition => held.map(looked_ns).max().unwrap_or(0).max(LEAST_WINDOW_NS),
        _ => SEEN_NS,
    };
    let cause = match flight.cause {
        FlightCause::Condition => "condition",
        FlightCause::Signal => "signal",
        FlightCause::File => "file",
        _ => "other",
    };
    let unix_ns = manifest.start_unix_ns;
    let since_ns = flight.mono_ns.saturating_sub(manifest.start_mono_ns);
    Some(FlightMoment {
        cause: cause.to_owned(),
        at_unix_ns: (unix_ns > 0).then(|| unix_ns.saturating_add(since_ns)),
        at_ns,
        before_ns: flight.before_ns,
        after_ns: flight.after_ns,
        expression: flight.expression.clone(),
        readings,
        split_ns: at_ns.saturating_sub(back_ns),
        compared: Vec::new(),
    })
}

fn reading(reading: &nestrace_trace::manifest::FlightReading) -> FlightReading {
    FlightReading {
        statistic: reading.statistic.clone(),
        op: reading.op.clone(),
        layer: reading.layer.clone(),
        relation: reading.relation.clone(),
        limit: reading.limit,
        value: reading.value,
        window_ns: reading.window_ns,
        holds: reading.holds,
    }
}

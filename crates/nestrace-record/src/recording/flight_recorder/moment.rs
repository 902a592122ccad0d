//! Why a bundle is written: for people, and for its manifest.

use nestrace_condition::{Limit, Reading};
use nestrace_trace::manifest::{FlightCause, FlightReading};

/// Why a bundle is written, in words.
pub(super) fn why(cause: FlightCause, readings: &[Reading]) -> String {
    match cause {
        FlightCause::Signal => return "SIGUSR1".to_owned(),
        FlightCause::File => return "the file has appeared".to_owned(),
        _ => {}
    }
    let held = readings.iter().filter(|reading| reading.holds);
    let held = held.map(|reading| match reading.value {
        Some(value) => format!("{} ({})", reading.comparison, rounded(value)),
        None => reading.comparison.to_string(),
    });
    held.collect::<Vec<_>>().join(", ")
}

/// A value for a person: of a time three digits are enough.
fn rounded(value: Limit) -> Limit {
    match value {
        Limit::Time(ns) => {
            let unit = 10_u64.saturating_pow(ns.checked_ilog10().unwrap_or(0).saturating_sub(2));
            Limit::Time(ns / unit * unit)
        }
        Limit::Rate(rate) => Limit::Rate((rate * 10.0).round() / 10.0),
        Limit::Count(n) => Limit::Count(n),
    }
}

/// What a bundle's manifest says of it.
pub(super) fn of_manifest(reading: &Reading) -> FlightReading {
    let number = |limit: Limit| match limit {
        Limit::Time(n) | Limit::Count(n) => n as f64,
        Limit::Rate(rate) => rate,
    };
    let comparison = &reading.comparison;
    let layer = comparison.subject.layer;
    FlightReading {
        statistic: comparison.statistic.name().to_owned(),
        op: comparison.subject.op_name().to_owned(),
        layer: layer
            .map(|layer| layer.name())
            .unwrap_or_default()
            .to_owned(),
        relation: comparison.relation.name().to_owned(),
        limit: number(comparison.limit),
        value: reading.value.map(number),
        window_ns: comparison.window_ns(),
        holds: reading.holds,
    }
}

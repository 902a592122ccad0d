//! Which part of a latency explains its difference.

use super::comparison::{ExplainedBy, Explanation, Metric, Part};
use crate::result::compared::IoOperation;

/// The explanation of `latency` by `parts`, whose means add up to it; `None` where there is nothing to
/// compare.
pub(super) fn of(
    operation: IoOperation,
    method: ExplainedBy,
    latency: Metric,
    parts: Vec<Metric>,
) -> Option<Explanation> {
    let (parts, largest) = split(&latency, parts)?;
    Some(Explanation {
        operation,
        method,
        largest,
        latency,
        parts,
    })
}

/// The parts with their shares of the latency's difference, and the name of the largest one.
pub(super) fn split(
    latency: &Metric,
    parts: Vec<Metric>,
) -> Option<(Vec<Part>, Option<&'static str>)> {
    let difference = latency.difference?;
    let share = |part: &Metric| {
        let own = part.difference.filter(|_| difference != 0.0)?;
        Some(own / difference)
    };
    let parts: Vec<Part> = parts
        .into_iter()
        .map(|mean| Part {
            share_of_difference: share(&mean),
            mean,
        })
        .collect();
    let largest = parts
        .iter()
        .filter_map(|part| Some((part.share_of_difference?, part)))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, part)| &part.mean)
        .filter(|mean| latency.verdict.differs() && mean.verdict == latency.verdict);
    let largest = largest.map(|mean| mean.name);
    Some((parts, largest))
}

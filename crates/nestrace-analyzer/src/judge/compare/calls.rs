//! Calls of guests' programs in both recordings, by program, file and operation.

use std::cmp::Reverse;
use std::collections::HashMap;

use crate::result::analysis::{Analysis, CallFile, CallOperation, CallRow};
use crate::result::compared::{MetricLayer, Unit};
use crate::result::segments::SegmentKind;
use crate::result::series::Series;
use crate::result::sums::{CallSums, Times};
use crate::result::units;

use super::bootstrap::Ratio;
use super::comparison::{Both, CallExplanation, CallPair, Metric};
use super::device::{mean, mean_of};
use super::disk::FOLLOWED;
use super::explanation;
use super::matching;
use super::metric::Key;

/// Pairs that are compared.
const MAX_PAIRS: usize = 32;
/// Why the spread of a pair is not known.
const NO_SERIES: &str =
    "more than a hundred programs and files took more time, so its sums by time were not kept";

/// What is compared of calls.
#[derive(Debug)]
pub(super) struct ComparedCalls {
    pub pairs: Option<Vec<CallPair>>,
    pub why_none: Option<String>,
    /// Rows in no pair.
    pub left: Both<u64>,
}

/// What makes rows of two recordings the same, beside the guest. Inodes may be other files', so they count only where
/// neither recording knows the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct RowKey<'a> {
    process: &'a str,
    op: CallOperation,
    path: Option<&'a str>,
    inode: Option<(&'a str, Option<u64>)>,
}

impl<'a> RowKey<'a> {
    fn of(row: &'a CallRow) -> Self {
        let CallFile { mount, inode, path } = &row.file;
        Self {
            process: &row.process,
            op: row.op,
            path: path.as_deref(),
            inode: path.is_none().then_some((mount.as_str(), *inode)),
        }
    }
}

/// The calls of both.
pub(super) fn compared(analyses: Both<&Analysis>) -> ComparedCalls {
    let rows = analyses.map(|analysis| analysis.calls.as_deref());
    let (Some(a), Some(b)) = (rows.a, rows.b) else {
        return ComparedCalls {
            pairs: None,
            why_none: Some(why_none(analyses)),
            left: rows.map(|rows| rows.map_or(0, |rows| rows.len() as u64)),
        };
    };
    let guests = (guests_of(a), guests_of(b));
    let mut pairs: Vec<Both<&CallRow>> = Vec::new();
    for pair in matching::pairs(&guests.0, &guests.1, |a, b| a == b).pairs {
        let of_a = by_key(a, guests.0[pair.places.a]);
        let of_b = by_key(b, guests.1[pair.places.b]);
        let both = of_a.iter().filter_map(|(key, a)| {
            Some(Both {
                a: *a,
                b: *of_b.get(key)?,
            })
        });
        pairs.extend(both);
    }
    let sum_ns = |pair: &Both<&CallRow>| {
        let [a, b] = [pair.a, pair.b].map(|row| u128::from(row.latency_ns.sum));
        a + b
    };
    let name = |pair: &Both<&CallRow>| {
        let row = pair.a;
        let file = (
            row.file.path.clone(),
            row.file.mount.clone(),
            row.file.inode,
        );
        (row.guest.clone(), row.process.clone(), row.op, file)
    };
    pairs.sort_by_cached_key(|pair| (Reverse(sum_ns(pair)), name(pair)));
    pairs.truncate(MAX_PAIRS);
    let left = |rows: &[CallRow]| rows.len().saturating_sub(pairs.len()) as u64;
    ComparedCalls {
        left: Both {
            a: left(a),
            b: left(b),
        },
        why_none: None,
        pairs: Some(pairs.into_iter().map(pair_of).collect()),
    }
}

fn why_none(analyses: Both<&Analysis>) -> String {
    let why = |name: &str, analysis: &Analysis| {
        if analysis.calls.is_some() {
            return None;
        }
        let mut reasons = analysis.guest_calls.iter();
        let why = reasons.find_map(|guest| guest.why_none.clone());
        let why = why.unwrap_or_else(|| String::from("nothing was recorded inside a guest"));
        Some(format!("{name}: {why}"))
    };
    let reasons = [why("A", analyses.a), why("B", analyses.b)];
    let reasons: Vec<String> = reasons.into_iter().flatten().collect();
    reasons.join("; ")
}

/// In the order of the recording, each once.
fn guests_of(rows: &[CallRow]) -> Vec<&str> {
    let mut guests: Vec<&str> = Vec::new();
    for row in rows {
        if !guests.contains(&row.guest.as_str()) {
            guests.push(&row.guest);
        }
    }
    guests
}

/// The rows of a guest. Of several sessions of it the one with the most time counts.
fn by_key<'a>(rows: &'a [CallRow], guest: &str) -> HashMap<RowKey<'a>, &'a CallRow> {
    let mut known: HashMap<RowKey<'a>, &'a CallRow> = HashMap::new();
    let own = rows
        .iter()
        .filter(|row| row.guest == guest && row.n > 0 && !row.is_sum());
    for row in own {
        let best = known.entry(RowKey::of(row)).or_insert(row);
        if row.latency_ns.sum > best.latency_ns.sum {
            *best = row;
        }
    }
    known
}

fn pair_of(rows: Both<&CallRow>) -> CallPair {
    CallPair {
        guests: Both {
            a: rows.a.guest.clone(),
            b: rows.b.guest.clone(),
        },
        process: rows.a.process.clone(),
        op: rows.a.op,
        files: Both {
            a: rows.a.file.clone(),
            b: rows.b.file.clone(),
        },
        n: rows.map(|row| row.n),
        without_io: rows.map(|row| row.without_io),
        metrics: metrics(rows),
        explanation: explained(rows),
    }
}

/// The sums by time of both.
fn series(rows: Both<&CallRow>) -> Option<Both<&Series<CallSums>>> {
    let Both { a, b } = rows;
    Some(Both {
        a: a.series.as_ref()?,
        b: b.series.as_ref()?,
    })
}

fn ratio(series: Both<&Series<CallSums>>, of: impl Fn(&CallSums) -> (f64, f64)) -> Both<Ratio> {
    series.map(|series| Ratio {
        stretches: series.stretches.iter().map(|(_, sums)| of(sums)).collect(),
    })
}

fn metrics(rows: Both<&CallRow>) -> Vec<Metric> {
    let key = |name| Key {
        layer: MetricLayer::Call,
        operation: None,
        name,
        unit: Unit::Ns,
    };
    let n = rows.map(|row| row.n);
    let means = rows.map(|row| mean(&row.latency_ns));
    let p99 = rows.map(|row| row.latency_ns.p99.map(|ns| ns as f64));
    let Some(series) = series(rows) else {
        return vec![
            key("latency_mean").unjudged(means, n, NO_SERIES),
            key("latency_p99").unjudged(p99, n, NO_SERIES),
        ];
    };
    let sums = ratio(series, |sums| mean_of(sums.latency.sum()));
    let times = series.map(|series| {
        let stretches = series.stretches.iter();
        stretches
            .map(|(_, sums)| &sums.latency)
            .collect::<Vec<&Times>>()
    });
    vec![
        key("latency_mean").ratio(means, n, &sums),
        key("latency_p99").quantile(0.99, p99, n, &times),
    ]
}

/// What each segment has of the mean latency of the linked calls.
fn explained(rows: Both<&CallRow>) -> Option<CallExplanation> {
    let n = rows.map(|row| row.linked);
    if n.a == 0 || n.b == 0 {
        return None;
    }
    let key = |name| Key {
        layer: MetricLayer::Segment,
        operation: None,
        name,
        unit: Unit::Ns,
    };
    let of = |segment: SegmentKind| {
        rows.map(|row| {
            let mut segments = row.segments.iter();
            let found = segments.find(|known| known.name == segment.name());
            found.map(|found| found.mean_ns)
        })
    };
    let sum = |row: &CallRow| row.segments.iter().map(|segment| segment.mean_ns).sum();
    let total: Both<Option<f64>> = rows.map(|row| Some(sum(row)));
    let series = series(rows);
    let why = few_linked(rows);
    let judged = |key: Key, values: Both<Option<f64>>, of: &dyn Fn(&CallSums) -> (f64, f64)| {
        let metric = match series {
            Some(series) => key.ratio(values, n, &ratio(series, of)),
            None => key.unjudged(values, n, NO_SERIES),
        };
        metric.unless(why.as_deref())
    };
    let latency = judged(key("latency_mean"), total, &|sums| mean_of(sums.linked));
    let parts = SegmentKind::OF_CALL.into_iter().filter_map(|segment| {
        let values = of(segment);
        let is_there = [values.a, values.b].iter().any(|it| *it > Some(0.0));
        let sums = |sums: &CallSums| {
            let sum_ns = sums.segments[segment as usize];
            (sum_ns as f64, sums.linked.n as f64)
        };
        is_there.then(|| judged(key(segment.name()), values, &sums))
    });
    let (parts, largest) = explanation::split(&latency, parts.collect())?;
    Some(CallExplanation {
        latency,
        parts,
        largest,
    })
}

/// Why the linked calls do not stand for all of them.
fn few_linked(rows: Both<&CallRow>) -> Option<String> {
    let sides = [("A", rows.a), ("B", rows.b)];
    let poorly = |(_, row): &(&str, &CallRow)| (row.linked as f64) < FOLLOWED * row.n as f64;
    let (name, row) = sides.into_iter().find(poorly)?;
    let part = units::percent(units::share(row.linked, row.n));
    Some(format!("only {part} of {name}'s calls were linked"))
}

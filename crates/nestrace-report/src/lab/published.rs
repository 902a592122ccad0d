//! The published figures of the experiments, beside ours.
//!
//! They are for orientation: the hardware was another one, and ratios within one run are all that can be
//! set beside each other.

use serde::Serialize;

use super::chance::{self, Comparisons};
use super::comparison::{Row, Verdict};
use super::results::Metric;
use super::spread::{FEWEST_REPETITIONS, Spread};
use super::statements::percent;

mod figures;

use figures::{E2, E3, E4, E5, Figure, Ratio};

/// What was published, and what we found.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Published {
    /// What is compared.
    pub what: String,
    /// The published figure or statement.
    pub published: String,
    /// Ours; `null` where the run has no cell for it.
    pub ours: Option<String>,
}

/// What was published of an experiment (`E1` to `E5`), and what the rows say.
pub(super) fn beside(experiment: Option<&str>, rows: &[Row]) -> Vec<Published> {
    match experiment {
        Some("E1") => nested(rows),
        Some("E2") => E2.iter().map(|ratio| ratio.beside(rows)).collect(),
        Some("E3") => E3.iter().map(|ratio| ratio.beside(rows)).collect(),
        Some("E4") => E4.iter().map(|ratio| ratio.beside(rows)).collect(),
        Some("E5") => E5
            .iter()
            .map(|ratio| ratio.beside(rows))
            .chain(utilisation(rows))
            .collect(),
        _ => Vec::new(),
    }
}

impl Ratio {
    fn beside(&self, rows: &[Row]) -> Published {
        let published = match self.published {
            Figure::Ratio(ratio) => percent(ratio),
            Figure::Marked(ratio, mark) => format!("{} ({mark})", percent(ratio)),
            Figure::Statement(words) => words.to_owned(),
        };
        Published {
            what: self.what.to_owned(),
            published,
            ours: self.ours(rows),
        }
    }

    fn ours(&self, rows: &[Row]) -> Option<String> {
        let pick = |workload: &str, own: &[(&str, &str)]| {
            let fits = |row: &&Row| {
                let mut words = self.both.iter().chain(own);
                row.workload == workload && words.all(|(axis, word)| row.word(axis) == *word)
            };
            rows.iter().find(fits).and_then(performance)
        };
        let [first, second] = self.workloads;
        let (above, below) = (pick(first, self.above)?, pick(second, self.below)?);
        let ratio = above.relative_to(below.median)?;
        let sure = if above.n.min(below.n) < FEWEST_REPETITIONS {
            String::from(", too few repetitions to decide")
        } else if above.is_apart_from(&below) {
            let one_of = (1.0 / chance::apart(above.n, below.n)).round();
            format!(", no overlap; equal ones do that in 1 of {one_of} cases")
        } else {
            String::from(", within the spread")
        };
        Some(format!(
            "{} ({} to {}{sure})",
            percent(ratio.median),
            percent(ratio.min),
            percent(ratio.max)
        ))
    }
}

/// Values that are better when they are greater.
fn performance(row: &Row) -> Option<Spread> {
    let value = row.value?;
    if row.metric != Metric::Seconds {
        return Some(value);
    }
    Spread::of([value.max, value.median, value.min].map(|s| row.metric.performance(s))).map(
        |spread| Spread {
            n: value.n,
            ..spread
        },
    )
}

/// "xfs uses the disk less and the CPU more for file I/O".
fn utilisation(rows: &[Row]) -> [Published; 2] {
    type Use = fn(&Row) -> f64;
    let kinds: [(&str, &str, Use); 2] = [
        ("use of the disk, xfs relative to ext4", "less", |row| {
            row.guest.disk_utilisation
        }),
        (
            "use of the processors, xfs relative to ext4",
            "more for file I/O",
            |row| row.guest.cpu_user + row.guest.cpu_system,
        ),
    ];
    kinds.map(|(what, published, of)| {
        // Of fileio's rows, whose operations are requests.
        let fits = |row: &Row, fs: &str| {
            let is_file_io = row.latency.contains_key("request");
            row.word("guest_fs") == fs && row.word("host_fs") == "bd" && is_file_io
        };
        let ratios = rows
            .iter()
            .filter(|row| fits(row, "xfs"))
            .filter_map(|row| {
                let alike = |other: &Row| {
                    let mut axes = row.axes.iter();
                    axes.all(|(axis, word)| axis == "guest_fs" || other.word(axis) == word)
                };
                let same = |other: &&Row| {
                    fits(other, "ext4") && other.workload == row.workload && alike(other)
                };
                let other = of(rows.iter().find(same)?);
                (other > 0.0).then(|| of(row) / other)
            });
        let ratios = Spread::of(ratios);
        let tell = |spread: Spread| {
            let (median, low, high) = (spread.median, spread.min, spread.max);
            format!(
                "median {} of {} workloads ({} to {})",
                percent(median),
                spread.n,
                percent(low),
                percent(high)
            )
        };
        Published {
            what: what.to_owned(),
            published: published.to_owned(),
            ours: ratios.map(tell),
        }
    })
}

/// Whether there are more slower rows than chance would have is asked at this level.
const LEVEL: f64 = 0.05;

/// FAST'12's statements.
fn nested(rows: &[Row]) -> Vec<Published> {
    let compared = || {
        let nested = rows.iter().filter(|row| row.baseline.is_some());
        nested.filter(|row| row.relative.is_some())
    };
    let waiting_for = |operations: &[&str]| -> Vec<&Row> {
        let main = |row: &Row| {
            let main = row.main_latency();
            main.is_some_and(|main| operations.contains(&main.operation))
        };
        compared().filter(|row| main(row)).collect()
    };
    let all: Vec<&Row> = compared().collect();
    let told = |what: &str, published: &str, ours: Option<String>| Published {
        what: what.to_owned(),
        published: published.to_owned(),
        ours,
    };
    vec![
        told(
            "largest degradation",
            "67 %",
            largest_degradation(&all, rows),
        ),
        told(
            "workloads that mostly wait for reads",
            "hardly affected, sequential reads sometimes faster",
            range(&waiting_for(&["read"]), rows),
        ),
        told(
            "workloads that mostly wait for writes and syncs",
            "heavily affected",
            range(&waiting_for(&["write", "sync", "flush"]), rows),
        ),
        told(
            "mean latency relative to the bare device",
            "10–30 % more for loads that wait for I/O",
            Spread::of(all.iter().filter_map(|row| row.relative_latency)).map(|spread| {
                format!(
                    "median {} of {} cells ({} to {})",
                    percent(spread.median),
                    spread.n,
                    percent(spread.min),
                    percent(spread.max)
                )
            }),
        ),
    ]
}

fn n_slower(rows: &[&Row]) -> usize {
    let slower = rows.iter().filter(|row| row.verdict == Verdict::Slower);
    slower.count()
}

/// The largest of those that are slower, where there are more of them than equal cells would have.
fn largest_degradation(compared: &[&Row], all: &[Row]) -> Option<String> {
    let comparisons = Comparisons::of(compared.iter().copied(), all);
    let (n, slower) = (comparisons.n(), n_slower(compared));
    if n == 0 {
        let none = "too few repetitions to decide";
        return (!compared.is_empty()).then(|| none.to_owned());
    }
    let expected = comparisons.expected() / 2.0;
    if slower == 0 || chance::slower_at_least(slower, compared, all) > LEVEL {
        return Some(format!(
            "none beyond chance: {slower} of {n} are slower, and {expected:.0} would be if all were equal"
        ));
    }
    let slower_ones = compared.iter().filter(|row| row.verdict == Verdict::Slower);
    let largest = slower_ones
        .filter_map(|row| row.relative)
        .map(|relative| 1.0 - relative.median)
        .max_by(f64::total_cmp)?;
    Some(format!(
        "{}; {slower} of {n} are slower ({expected:.0} would be if all were equal)",
        percent(largest)
    ))
}

fn range(compared: &[&Row], all: &[Row]) -> Option<String> {
    let medians = compared.iter().filter_map(|row| row.relative);
    let spread = Spread::of(medians.map(|one| one.median))?;
    let expected = Comparisons::of(compared.iter().copied(), all).expected() / 2.0;
    Some(format!(
        "{} to {} of the bare device; {} of {} are slower in every repetition ({expected:.0} would be if all were equal)",
        percent(spread.min),
        percent(spread.max),
        n_slower(compared),
        compared.len()
    ))
}

#[cfg(test)]
mod tests;

//! The published figures of the experiments, beside ours.
//!
//! They are for orientation: the hardware was another one, and ratios within one run are all that can be
//! set beside each other.

use serde::Serialize;

use super::chance;
use super::comparison::Row;
use super::results::Metric;
use super::spread::{FEWEST_REPETITIONS, Spread};
use super::statements::percent;

mod figures;
mod judgement;
mod nested;

pub use judgement::Judgement;

use figures::{E2, E3, E4, E5, Figure, Ratio};
use judgement::{Claim, RatioRange};

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
    /// Whether it held; `null` where the run has no cell for it, and where nothing was claimed.
    pub judgement: Option<Judgement>,
}

/// What was published of an experiment (`E1` to `E5`), and what the rows say.
pub(super) fn beside(experiment: Option<&str>, rows: &[Row]) -> Vec<Published> {
    match experiment {
        Some("E1") => nested::beside(rows),
        Some("E2") => E2.iter().map(|ratio| ratio.beside(rows)).collect(),
        Some("E3") => E3.iter().map(|ratio| ratio.beside(rows)).collect(),
        Some("E4") => E4
            .iter()
            .map(|ratio| ratio.beside(rows))
            .chain(["raw", "qcow2"].map(|format| hurts_most(format, rows)))
            .collect(),
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
        let (published, claim) = match self.published {
            Figure::Ratio(ratio) => (percent(ratio), Claim::Ratio(ratio)),
            Figure::Marked(ratio, mark) => {
                let figure = format!("{} ({mark})", percent(ratio));
                (figure, Claim::Ratio(ratio))
            }
            Figure::Statement(words, claim) => (words.to_owned(), claim),
        };
        let performances = self.performances(rows);
        let ours = performances.and_then(|[above, below]| tell(&above, &below));
        let range = performances.and_then(|[above, below]| RatioRange::of(&above, &below));
        Published {
            what: self.what.to_owned(),
            published,
            ours,
            judgement: range.and_then(|range| claim.judge(&range)),
        }
    }

    /// Of the cell above and of the one below.
    fn performances(&self, rows: &[Row]) -> Option<[Spread; 2]> {
        let pick = |workload: &str, own: &[(&str, &str)]| {
            let fits = |row: &&Row| {
                let mut words = self.both.iter().chain(own);
                row.workload == workload && words.all(|(axis, word)| row.word(axis) == *word)
            };
            rows.iter().find(fits).and_then(performance)
        };
        let [first, second] = self.workloads;
        Some([pick(first, self.above)?, pick(second, self.below)?])
    }
}

/// A ratio, and how sure it is.
fn tell(above: &Spread, below: &Spread) -> Option<String> {
    let ratio = above.relative_to(below.median)?;
    let sure = if above.n.min(below.n) < FEWEST_REPETITIONS {
        String::from(", too few repetitions to decide")
    } else if above.is_apart_from(below) {
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

/// "IDE hurts most under writethrough".
fn hurts_most(format: &str, rows: &[Row]) -> Published {
    let ratio = |cache: &str| {
        let pick = |bus: &str| {
            let words = [
                ("format", format),
                ("cache", cache),
                ("bus", bus),
                ("preallocation", "off"),
                ("host_fs", "ext4"),
            ];
            let fits = |row: &&Row| {
                row.workload == "unpack" && words.iter().all(|(axis, word)| row.word(axis) == *word)
            };
            rows.iter().find(fits).and_then(performance)
        };
        RatioRange::of(&pick("ide")?, &pick("virtio")?)
    };
    let ratios = ["writethrough", "none", "writeback"].map(ratio);
    let told = match ratios {
        [Some(through), Some(none), Some(back)] => {
            let ours = format!(
                "IDE has {} of virtio's performance under writethrough, {} with none, {} with writeback",
                percent(through.median),
                percent(none.median),
                percent(back.median)
            );
            let judgement = if through.most < none.least.min(back.least) {
                Judgement::Held
            } else if through.least > none.most.min(back.most) {
                Judgement::DidNotHold
            } else {
                Judgement::NotDecidable
            };
            Some((ours, judgement))
        }
        _ => None,
    };
    Published {
        what: format!("where IDE hurts most, {format}"),
        published: String::from("under writethrough"),
        judgement: told.as_ref().map(|(_, judgement)| *judgement),
        ours: told.map(|(ours, _)| ours),
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
    let kinds: [(&str, &str, Use, bool); 2] = [
        (
            "use of the disk, xfs relative to ext4",
            "less",
            |row| row.guest.disk_utilisation,
            false,
        ),
        (
            "use of the processors, xfs relative to ext4",
            "more for file I/O",
            |row| row.guest.cpu_user + row.guest.cpu_system,
            true,
        ),
    ];
    kinds.map(|(what, published, of, is_more)| {
        // Of fileio's rows, whose operations are requests.
        let fits = |row: &Row, fs: &str| {
            let is_file_io = row.latency.contains_key("request");
            row.word("guest_fs") == fs && row.word("host_fs") == "bd" && is_file_io
        };
        let ratios: Vec<f64> = rows
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
            })
            .collect();
        let judgement = same_sign(&ratios, is_more);
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
            judgement,
        }
    })
}

/// How likely a false judgement of many ratios may be.
const LEVEL: f64 = 0.05;

/// Whether more of these ratios are above 1, or below it, than chance would have (sign test).
fn same_sign(ratios: &[f64], is_more: bool) -> Option<Judgement> {
    let above = ratios.iter().filter(|ratio| **ratio > 1.0).count();
    let below = ratios.iter().filter(|ratio| **ratio < 1.0).count();
    let (with, against) = if is_more {
        (above, below)
    } else {
        (below, above)
    };
    let is_sure = |k: usize| chance::at_least(k, with + against, 0.5) <= LEVEL;
    match ratios.len() {
        0 => None,
        _ if is_sure(with) => Some(Judgement::Held),
        _ if is_sure(against) => Some(Judgement::DidNotHold),
        _ => Some(Judgement::NotDecidable),
    }
}

#[cfg(test)]
mod tests;

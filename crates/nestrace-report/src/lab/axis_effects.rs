//! What it does to change one axis alone: pairs of cells that differ in nothing else, and whether more of them agree than
//! chance would have it.
//!
//! Two cells with their few repetitions say little of each other; a dozen pairs that all go one way do. The test is the
//! sign test (two-sided, exact), Bonferroni's correction the one for the number of questions asked.

use std::collections::BTreeMap;

use super::chance;
use super::comparison::{Row, distinct};
use super::spread::Spread;
use super::statements::percent;

/// How likely any false sentence of a run may be.
const LEVEL: f64 = 0.05;
/// Fewer pairs cannot say anything.
const FEWEST_PAIRS: usize = 6;

/// Pairs of cells under a workload that differ in one axis.
#[derive(Clone, Debug)]
struct Effect<'r> {
    workload: &'r str,
    axis: &'r str,
    words: [&'r str; 2],
    /// Performance with the second word for each of the first.
    ratios: Vec<f64>,
}

/// Sentences on axes with two words that differ by more than chance.
pub(super) fn of(rows: &[Row]) -> Vec<String> {
    let effects = effects(rows);
    let level = LEVEL / effects.len().max(1) as f64;
    let told = effects.iter().filter(|effect| effect.by_chance() <= level);
    told.filter_map(Effect::sentence).collect()
}

fn effects(rows: &[Row]) -> Vec<Effect<'_>> {
    let mut effects = Vec::new();
    for workload in distinct(rows.iter().map(|row| row.workload.as_str())) {
        let under: Vec<&Row> = rows.iter().filter(|row| row.workload == workload).collect();
        let axes = distinct(
            under
                .iter()
                .flat_map(|row| row.axes.keys())
                .map(String::as_str),
        );
        for axis in axes {
            let words = distinct(under.iter().map(|row| row.word(axis)));
            for (n, first) in words.iter().enumerate() {
                for second in &words[n + 1..] {
                    let effect = Effect {
                        workload,
                        axis,
                        words: [first, second],
                        ratios: ratios(&under, axis, [first, second]),
                    };
                    if effect.ratios.len() >= FEWEST_PAIRS {
                        effects.push(effect);
                    }
                }
            }
        }
    }
    effects
}

/// Of each two rows that have these words of an axis and all others alike.
fn ratios(rows: &[&Row], axis: &str, words: [&str; 2]) -> Vec<f64> {
    let mut pairs: BTreeMap<Vec<(&str, &str)>, [Option<f64>; 2]> = BTreeMap::new();
    for row in rows {
        let Some(place) = words.iter().position(|word| row.word(axis) == *word) else {
            continue;
        };
        let others = row.axes.iter().filter(|(name, _)| *name != axis);
        let others = others.map(|(name, word)| (name.as_str(), word.as_str()));
        let performance = row.value.map(|value| row.metric.performance(value.median));
        pairs.entry(others.collect()).or_default()[place] = performance;
    }
    let ratio = |pair: &[Option<f64>; 2]| Some(pair[1]? / pair[0]?);
    let ratios = pairs.values().filter_map(ratio);
    ratios
        .filter(|ratio| ratio.is_finite() && *ratio > 0.0)
        .collect()
}

impl Effect<'_> {
    /// How many are slower, and how many are either.
    fn signs(&self) -> (usize, usize) {
        let slower = self.ratios.iter().filter(|ratio| **ratio < 1.0).count();
        let faster = self.ratios.iter().filter(|ratio| **ratio > 1.0).count();
        (slower, slower + faster)
    }

    /// How likely as many or more agree where both words are alike.
    fn by_chance(&self) -> f64 {
        let (slower, n) = self.signs();
        let more = slower.max(n - slower);
        (2.0 * chance::at_least(more, n, 0.5)).min(1.0)
    }

    fn sentence(&self) -> Option<String> {
        let (slower, n) = self.signs();
        // Nothing is set: a mount without options.
        let [first, second] = self
            .words
            .map(|word| if word.is_empty() { "nothing" } else { word });
        // The slower word comes first, with its part of the other's performance.
        let (is, than, ratios, agree): (_, _, Vec<f64>, _) = if slower * 2 > n {
            (second, first, self.ratios.clone(), slower)
        } else {
            let turned = self.ratios.iter().map(|ratio| 1.0 / ratio).collect();
            (first, second, turned, n - slower)
        };
        let part = Spread::of(ratios)?;
        let how_many = if agree == n {
            format!("all {n} pairs of cells")
        } else {
            format!("{agree} of {n} pairs of cells")
        };
        Some(format!(
            "{}: {} {is} is slower than {than} in {how_many} that differ only in that. Its performance relative to {than}: median {}, {} to {}.",
            self.workload,
            self.axis,
            percent(part.median),
            percent(part.min),
            percent(part.max)
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::{Cell, CellRun, Metric};
    use super::super::{Comparison, Results};
    use super::*;

    /// Seconds of each bus under a workload, for so many cache modes.
    fn told(seconds: &[[f64; 2]]) -> Vec<String> {
        let mut results = Results::default();
        for (n, pair) in seconds.iter().enumerate() {
            for (bus, value) in ["ide", "virtio"].into_iter().zip(pair) {
                let axes = [("bus", bus.to_owned()), ("cache", format!("c{n}"))];
                results.cells.push(Cell {
                    id: format!("{bus}-{n}"),
                    axes: axes.map(|(axis, word)| (axis.to_owned(), word)).into(),
                    workload: String::from("unpack"),
                    metric: Metric::Seconds,
                    runs: vec![CellRun {
                        value: *value,
                        ..CellRun::default()
                    }],
                    ..Cell::default()
                });
            }
        }
        of(&Comparison::new(&results).rows)
    }

    #[test]
    fn pairs_that_agree_are_told_and_those_that_may_be_chance_are_not() {
        let all: Vec<[f64; 2]> = (1..=8)
            .map(|n| [2.0 * f64::from(n), f64::from(n)])
            .collect();
        assert_eq!(
            told(&all),
            [
                "unpack: bus ide is slower than virtio in all 8 pairs of cells that differ only in that. Its performance relative to virtio: median 50 %, 50 % to 50 %."
            ]
        );
        // Five are too few, and of eight two may go the other way by chance (2 × 37 of 256).
        assert!(told(&all[..5]).is_empty());
        let mut mixed = all;
        for pair in &mut mixed[..2] {
            pair.swap(0, 1);
        }
        assert!(told(&mixed).is_empty());
    }

    #[test]
    fn the_sign_test_is_the_books() {
        let by_chance = |slower: usize, faster: usize| {
            let ratios = [vec![0.5; slower], vec![2.0; faster]].concat();
            let effect = Effect {
                workload: "",
                axis: "",
                words: ["", ""],
                ratios,
            };
            (effect.by_chance() * 1e4).round() / 1e4
        };
        // Dixon and Mood, "The statistical sign test", 1946.
        assert_eq!(by_chance(0, 6), 0.0313);
        assert_eq!(by_chance(1, 9), 0.0215);
        assert_eq!(by_chance(12, 0), 0.0005);
        assert_eq!(by_chance(4, 4), 1.0);
    }
}

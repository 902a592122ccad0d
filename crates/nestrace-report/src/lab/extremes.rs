//! The best and the worst combinations of a workload, by their medians. Figures, and no statement: of many equal cells
//! some are best.

use super::comparison::Row;
use super::statements::{UNLIKELY, any_apart_by_chance, percent};
use super::text::{name, spread};

/// So many of each.
const MOST: usize = 3;

/// The best and the worst.
#[derive(Clone, Debug)]
pub(crate) struct Extremes<'r> {
    /// The best first.
    pub best: Vec<&'r Row>,
    /// The worst first.
    pub worst: Vec<&'r Row>,
    /// Chance alone would not have the first of each so far apart.
    pub is_sure: bool,
}

impl<'r> Extremes<'r> {
    /// Of the combinations that are compared with a baseline; `None` of fewer than four.
    pub(crate) fn of(rows: &[&'r Row]) -> Option<Self> {
        let median = |row: &Row| row.relative.map_or(f64::NAN, |relative| relative.median);
        let nested = rows.iter().copied();
        let mut nested: Vec<&Row> = nested
            .filter(|row| row.baseline.is_some() && row.relative.is_some())
            .collect();
        if nested.len() < 4 {
            return None;
        }
        nested.sort_by(|a, b| median(a).total_cmp(&median(b)));
        let n = MOST.min(nested.len() / 2);
        let (low, high) = (nested.first()?.relative?, nested.last()?.relative?);
        Some(Self {
            worst: nested.iter().take(n).copied().collect(),
            best: nested.iter().rev().take(n).copied().collect(),
            is_sure: any_apart_by_chance(nested.iter().copied()) <= UNLIKELY
                && low.is_apart_from(&high),
        })
    }

    /// Two lines, and one that says what they do not carry.
    pub(crate) fn lines(&self) -> Vec<String> {
        let names = |rows: &[&Row]| {
            let each = rows.iter().filter_map(|row| {
                let relative = row.relative?;
                let median = percent(relative.median);
                Some(format!("{} {median} ({})", name(row), spread(&relative)))
            });
            each.collect::<Vec<_>>().join(", ")
        };
        let mut lines = vec![
            format!(
                "Best, relative to their bare devices: {}.",
                names(&self.best)
            ),
            format!("Worst: {}.", names(&self.worst)),
        ];
        if !self.is_sure {
            lines.push(String::from(
                "With so few repetitions this can be chance: the best and the worst of equal combinations would differ too.",
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cell, CellRun, Comparison, Results};
    use super::*;

    fn comparison<const N: usize>(cells: &[(&str, [f64; N])]) -> Comparison {
        let cell = |id: &str, values: &[f64], baseline: Option<&str>| Cell {
            id: format!("{id}-x"),
            workload: String::from("x"),
            baseline: baseline.map(str::to_owned),
            runs: CellRun::of_values(values),
            ..Cell::default()
        };
        let nested = cells.iter();
        let nested = nested.map(|(id, values)| cell(id, values, Some("bd-x")));
        Comparison::new(&Results {
            cells: std::iter::once(cell("bd", &[1.0; N], None))
                .chain(nested)
                .collect(),
            ..Results::default()
        })
    }

    fn lines(comparison: &Comparison) -> Option<Vec<String>> {
        let rows: Vec<&Row> = comparison.rows.iter().collect();
        Extremes::of(&rows).map(|extremes| extremes.lines())
    }

    #[test]
    fn the_best_and_the_worst_by_their_medians() {
        let medians = [("a", 0.5), ("b", 1.2), ("c", 0.9), ("d", 0.3), ("e", 1.0)];
        let two = medians.map(|(id, median)| (id, [median - 0.02, median + 0.02]));
        assert_eq!(
            lines(&comparison(&two)).unwrap(),
            [
                "Best, relative to their bare devices: b 120 % (118–122 %), e 100 % (98–102 %).",
                "Worst: d 30 % (28–32 %), a 50 % (48–52 %).",
                "With so few repetitions this can be chance: the best and the worst of equal combinations would differ too."
            ]
        );
        assert_eq!(lines(&comparison(&two[..3])), None);
        // Six repetitions of each are enough to tell that they differ.
        let six = medians.map(|(id, median)| (id, [median; 6]));
        assert_eq!(lines(&comparison(&six)).unwrap().len(), 2);
    }
}

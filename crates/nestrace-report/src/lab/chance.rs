//! How often equal cells would seem to differ by chance. The report prints this beside the differences.

use std::collections::BTreeMap;

use super::comparison::{Row, Verdict};

/// How likely it is that of `n` and `m` equal values none lies among the others': of all orders two do so.
pub(super) fn apart(n: usize, m: usize) -> f64 {
    let orders = (1..=n).fold(1.0, |orders, k| orders * (m + k) as f64 / k as f64);
    2.0 / orders
}

/// How likely `k` or more of `n` things that each happen with probability `p` do.
pub(super) fn at_least(k: usize, n: usize, p: f64) -> f64 {
    binomial(n, p).iter().skip(k).sum::<f64>().min(1.0)
}

/// How likely 0, 1, … `k` of `k` cells with `own` repetitions are slower than the one baseline, with `of`, that all share,
/// where all are equal. Cells of one baseline are so together: where its least value lies decides for all of them.
fn slower_of(k: usize, own: usize, of: usize) -> Vec<f64> {
    const STEPS: u32 = 2000;
    let mut chances = vec![0.0; k + 1];
    for step in 0..STEPS {
        // The part of all values that lie below the baseline's least one, and how often it is that.
        let below = (f64::from(step) + 0.5) / f64::from(STEPS);
        let weight = of as f64 * (1.0 - below).powi(of as i32 - 1) / f64::from(STEPS);
        for (n, chance) in binomial(k, below.powi(own as i32)).into_iter().enumerate() {
            chances[n] += weight * chance;
        }
    }
    chances
}

/// How likely 0, 1, … `n` of `n` things that each happen with probability `p` do.
fn binomial(n: usize, p: f64) -> Vec<f64> {
    let mut chances = vec![0.0; n + 1];
    chances[0] = 1.0;
    for so_far in 0..n {
        for k in (0..=so_far).rev() {
            chances[k + 1] += chances[k] * p;
            chances[k] *= 1.0 - p;
        }
    }
    chances
}

/// How likely `k` or more of `rows`, whose baselines are in `all`, are slower if all are equal.
pub(super) fn slower_at_least(k: usize, rows: &[&Row], all: &[Row]) -> f64 {
    // Baseline → cells that were compared with it, and the least repetitions of both.
    let mut groups: BTreeMap<&str, (usize, usize, usize)> = BTreeMap::new();
    for row in rows.iter().filter(|row| is_compared(row)) {
        if let (Some((own, of)), Some(id)) = (repetitions(row, all), &row.baseline) {
            let group = groups.entry(id).or_insert((0, own, of));
            *group = (group.0 + 1, group.1.min(own), of);
        }
    }
    let mut sums = vec![1.0];
    for (n, own, of) in groups.into_values() {
        let mut next = vec![0.0; sums.len() + n];
        for (b, q) in slower_of(n, own, of).into_iter().enumerate() {
            for (a, p) in sums.iter().enumerate() {
                next[a + b] += p * q;
            }
        }
        sums = next;
    }
    sums.iter().skip(k).sum::<f64>().min(1.0)
}

fn is_compared(row: &Row) -> bool {
    [Verdict::Slower, Verdict::Faster, Verdict::NotApart].contains(&row.verdict)
}

/// Rows that were compared with their baseline, by the repetitions of both.
pub(super) struct Comparisons(BTreeMap<(usize, usize), usize>);

impl Comparisons {
    /// Of `rows`, whose baselines are in `all`.
    pub(super) fn of<'r>(rows: impl IntoIterator<Item = &'r Row>, all: &[Row]) -> Self {
        let mut comparisons: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for row in rows {
            if is_compared(row)
                && let Some(repetitions) = repetitions(row, all)
            {
                *comparisons.entry(repetitions).or_default() += 1;
            }
        }
        Self(comparisons)
    }

    /// How many there are.
    pub(super) fn n(&self) -> usize {
        self.0.values().sum()
    }

    /// How many would seem to differ if all were equal, half of them as slower.
    pub(super) fn expected(&self) -> f64 {
        let each = self.0.iter();
        each.map(|((own, other), n)| apart(*own, *other) * *n as f64)
            .sum()
    }

    /// The repetitions that all have, cells and baselines.
    pub(super) fn repetitions(&self) -> Option<usize> {
        let mut kinds = self.0.keys();
        let (own, other) = kinds.next()?;
        (own == other && kinds.next().is_none()).then_some(*own)
    }
}

/// Those of a row and of its baseline.
pub(super) fn repetitions(row: &Row, all: &[Row]) -> Option<(usize, usize)> {
    let baseline = all
        .iter()
        .find(|other| Some(&other.id) == row.baseline.as_ref())?;
    Some((row.value?.n, baseline.value?.n))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_repetitions_are_often_apart() {
        for (n, m, one_of) in [(2, 2, 3.0), (3, 3, 10.0), (5, 5, 126.0), (2, 3, 5.0)] {
            assert!((apart(n, m) * one_of - 1.0).abs() < 1e-9, "{n} {m}");
        }
    }

    #[test]
    fn cells_of_one_baseline_are_slower_together() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-3, "{a} {b}");
        // One of two values is the least of four in one of six orders; of six, all four are in one of 15.
        near(slower_of(1, 2, 2)[1], 1.0 / 6.0);
        near(slower_of(2, 2, 2)[2], 1.0 / 15.0);
        near(slower_of(5, 3, 3).iter().sum(), 1.0);
    }

    #[test]
    fn the_tail_is_the_sum_of_its_ways() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(at_least(0, 4, 0.3), 1.0);
        near(at_least(4, 4, 0.5), 1.0 / 16.0);
        near(at_least(3, 4, 0.5), 5.0 / 16.0);
        near(at_least(6, 7, 1.0 / 6.0), 36.0 / 279_936.0);
        near(at_least(5, 4, 0.5), 0.0);
    }
}

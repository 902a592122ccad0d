//! How often cells that are equal would seem to differ: what is told is told beside it.

use std::collections::BTreeMap;

use super::comparison::{Row, Verdict};

/// How likely it is that of `n` and `m` equal values none lies among the others': of all orders two do so.
pub(super) fn apart(n: usize, m: usize) -> f64 {
    let orders = (1..=n).fold(1.0, |orders, k| orders * (m + k) as f64 / k as f64);
    2.0 / orders
}

/// How likely `k` or more of `n` things that each happen with probability `p` do.
pub(super) fn at_least(k: usize, n: usize, p: f64) -> f64 {
    let mut ways = 1.0;
    let mut tail = 0.0;
    for happened in 0..=n {
        if happened >= k {
            tail += ways * p.powi(happened as i32) * (1.0 - p).powi((n - happened) as i32);
        }
        ways *= (n - happened) as f64 / (happened + 1) as f64;
    }
    tail.min(1.0)
}

/// Rows that were compared with their baseline, by the repetitions of both.
pub(super) struct Comparisons(BTreeMap<(usize, usize), usize>);

impl Comparisons {
    /// Of `rows`, whose baselines are in `all`.
    pub(super) fn of<'r>(rows: impl IntoIterator<Item = &'r Row>, all: &[Row]) -> Self {
        let kinds = [Verdict::Slower, Verdict::Faster, Verdict::NotApart];
        let mut comparisons: BTreeMap<(usize, usize), usize> = BTreeMap::new();
        for row in rows {
            if kinds.contains(&row.verdict)
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

    /// How many would be told apart if all were equal, half of them as slower.
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
    fn the_tail_is_the_sum_of_its_ways() {
        let near = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        near(at_least(0, 4, 0.3), 1.0);
        near(at_least(4, 4, 0.5), 1.0 / 16.0);
        near(at_least(3, 4, 0.5), 5.0 / 16.0);
        near(at_least(6, 7, 1.0 / 6.0), 36.0 / 279_936.0);
        near(at_least(5, 4, 0.5), 0.0);
    }
}

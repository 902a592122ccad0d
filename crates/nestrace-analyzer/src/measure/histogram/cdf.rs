//! A distribution as a curve of few points.

use super::{Histogram, middle};

/// How many samples are at or below a value, for values in ascending order. The last point holds all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cdf {
    /// Samples.
    pub n: u64,
    /// Value, and samples at or below it.
    pub points: Vec<(u64, u64)>,
}

impl Cdf {
    /// Share of samples at or below each value.
    pub fn shares(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        let n = self.n.max(1) as f64;
        let share = move |(value, below): &(u64, u64)| (*value, *below as f64 / n);
        self.points.iter().map(share)
    }

    /// The curve of both together: each keeps its steps, so that it is as exact as they are.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let mut values: Vec<u64> = [self, other]
            .iter()
            .flat_map(|cdf| cdf.points.iter().map(|(value, _)| *value))
            .collect();
        values.sort_unstable();
        values.dedup();
        let below = |cdf: &Self, value: u64| {
            let place = cdf.points.partition_point(|(known, _)| *known <= value);
            place.checked_sub(1).map_or(0, |place| cdf.points[place].1)
        };
        let point = |value: u64| (value, below(self, value) + below(other, value));
        Self {
            n: self.n + other.n,
            points: values.into_iter().map(point).collect(),
        }
    }
}

impl Histogram {
    /// The distribution as a curve: a point wherever another part of `1 / steps` of the samples, or of
    /// what is left at the upper end, is passed. At most some `2 * steps` points.
    #[must_use]
    pub fn cdf(&self, steps: u64) -> Cdf {
        let steps = steps.max(1);
        let mut cdf = Cdf {
            n: self.n,
            points: Vec::new(),
        };
        let (mut below, mut next) = (0, 1);
        for (block, buckets) in self.blocks.iter().enumerate() {
            for (bucket, n) in buckets.filled() {
                below += n;
                if below < next {
                    continue;
                }
                let value = middle(block, bucket).clamp(self.min, self.max);
                cdf.points.push((value, below));
                // The tail is drawn to the last sample although few samples make it.
                let left = self.n - below;
                let tail = if left < self.n / 20 { 20 } else { 1 };
                next = below + (self.n / steps / tail).max(left / steps).max(1);
            }
        }
        match cdf.points.last_mut() {
            Some(last) if last.1 < self.n => cdf.points.push((self.max, self.n)),
            Some(last) => last.0 = self.max,
            None => {}
        }
        cdf
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nothing_has_no_points() {
        assert_eq!(Histogram::default().cdf(10), Cdf::default());
    }

    proptest! {
        #[test]
        fn a_curve_is_short_ascends_and_is_right(
            values in prop::collection::vec(0u64..2_000_000, 1..2_000),
            split in 0usize..2_000,
        ) {
            let (mut all, mut parts) = (Histogram::default(), [Histogram::default(), Histogram::default()]);
            for (i, value) in values.iter().enumerate() {
                all.record(*value);
                parts[usize::from(i >= split)].record(*value);
            }
            let cdf = all.cdf(100);
            prop_assert!(cdf.points.len() <= 250, "{}", cdf.points.len());
            prop_assert_eq!(cdf.points.last().copied(), values.iter().max().map(|max| (*max, values.len() as u64)));
            prop_assert!(cdf.points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 < b.1));
            for (value, below) in &cdf.points {
                let low = (*value as f64 * 0.999) as u64;
                let high = (*value as f64 * 1.001).ceil() as u64;
                let count = |limit: u64| values.iter().filter(|v| **v <= limit).count() as u64;
                prop_assert!((count(low)..=count(high)).contains(below) || low == 0);
            }
            let merged = parts[0].cdf(100).merged(&parts[1].cdf(100));
            prop_assert_eq!(merged.points.last().map(|point| point.1), Some(values.len() as u64));
            prop_assert!(merged.points.is_sorted_by(|a, b| a.0 < b.0 && a.1 <= b.1));
        }
    }
}

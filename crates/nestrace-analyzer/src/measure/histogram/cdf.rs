//! A distribution as a curve of few points.

use super::{Histogram, middle};

use crate::result::cdf::Cdf;

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

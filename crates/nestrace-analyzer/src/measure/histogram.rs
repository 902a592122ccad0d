//! Distributions in bounded memory: log-linear histograms.
//!
//! Values below 1,024 are exact. Above, each power of two is cut into 512 equal buckets, and a
//! quantile is given as the middle of its bucket: the relative error is at most 1/1,024, below
//! 0.1 %. `n`, `min`, `max` and the sum (hence the mean) are exact.

mod buckets;
mod cdf;

use buckets::Buckets;

pub use crate::result::cdf::Cdf;
pub use crate::result::dist::Dist;

/// Buckets of one power of two.
const BUCKETS: usize = 512;
/// log2 of [`BUCKETS`].
const BUCKET_BITS: u32 = 9;

/// Steps of a curve: finer than a screen shows.
pub(crate) const CURVE_STEPS: u64 = 120;

/// A distribution of unsigned integers (here: nanoseconds, or sectors).
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// The buckets of each power of two, up to the largest that occurred.
    blocks: Vec<Buckets>,
    n: u64,
    sum: u128,
    min: u64,
    max: u64,
    /// Quantiles are not asked for: there are no buckets.
    has_sums_only: bool,
}

impl Histogram {
    /// One that keeps no buckets, and so has no quantiles: `n`, `min`, `max` and the sum are all that is known of it.
    /// Buckets are spread over memory, and so cost more than sums to keep up.
    pub(crate) fn of_sums() -> Self {
        Self {
            min: u64::MAX,
            has_sums_only: true,
            ..Self::default()
        }
    }

    /// Adds one sample.
    #[inline]
    pub fn record(&mut self, value: u64) {
        if !self.has_sums_only {
            let (block, bucket) = place(value);
            let buckets = self.blocks.get_mut(block);
            if !buckets.is_some_and(|buckets| buckets.count(bucket)) {
                self.record_seldom(value);
            }
        }
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.n += 1;
        self.sum += u128::from(value);
    }

    /// Adds a sample that occurred `n` times.
    pub(crate) fn record_many(&mut self, value: u64, n: u64) {
        let Some(others) = n.checked_sub(1) else {
            return;
        };
        self.record(value);
        self.n += others;
        self.sum += u128::from(value) * u128::from(others);
        let (block, bucket) = place(value);
        if let Some(buckets) = self.blocks.get_mut(block) {
            buckets.add(bucket, others);
        }
    }

    /// Counts a sample for which there is no memory yet (the very first one is such), or that lies among counts of 64
    /// bits. Apart, because `record` is what an analysis does most.
    #[cold]
    fn record_seldom(&mut self, value: u64) {
        if self.n == 0 {
            self.min = value;
        }
        let (block, bucket) = place(value);
        if self.blocks.len() <= block {
            self.blocks.resize(block + 1, Buckets::Empty);
        }
        self.blocks[block].add(bucket, 1);
    }

    /// Adds every sample of `other`.
    pub fn merge(&mut self, other: &Self) {
        if other.n == 0 {
            return;
        }
        if self.blocks.len() < other.blocks.len() {
            self.blocks.resize(other.blocks.len(), Buckets::Empty);
        }
        for (mine, theirs) in self.blocks.iter_mut().zip(&other.blocks) {
            theirs.filled().for_each(|(bucket, n)| mine.add(bucket, n));
        }
        self.has_sums_only |= other.has_sums_only;
        self.min = if self.n == 0 {
            other.min
        } else {
            self.min.min(other.min)
        };
        self.max = self.max.max(other.max);
        self.n += other.n;
        self.sum += other.sum;
    }

    pub(crate) const fn has_sums_only(&self) -> bool {
        self.has_sums_only
    }

    /// Number of samples.
    #[must_use]
    pub const fn n(&self) -> u64 {
        self.n
    }

    /// Exact sum of all samples.
    #[must_use]
    pub const fn sum(&self) -> u128 {
        self.sum
    }

    /// Number of samples that were exactly 0.
    #[must_use]
    pub fn zeros(&self) -> u64 {
        self.blocks.first().map_or(0, |buckets| buckets.get(0))
    }

    /// The value at quantile `q` (0 to 1) by nearest rank, within 0.1 %; `None` without samples or buckets.
    #[must_use]
    pub fn quantile(&self, q: f64) -> Option<u64> {
        if self.n == 0 || self.has_sums_only {
            return None;
        }
        let rank = ((q * self.n as f64).ceil() as u64).clamp(1, self.n);
        let mut below = 0;
        for (block, buckets) in self.blocks.iter().enumerate() {
            for (bucket, n) in buckets.filled() {
                below += n;
                if below >= rank {
                    return Some(middle(block, bucket).clamp(self.min, self.max));
                }
            }
        }
        Some(self.max)
    }

    /// The summary that reports show.
    #[must_use]
    pub fn dist(&self) -> Dist {
        if self.n == 0 {
            return Dist::default();
        }
        let n = u128::from(self.n);
        Dist {
            n: self.n,
            sum: u64::try_from(self.sum).unwrap_or(u64::MAX),
            min: Some(self.min),
            mean: Some(((self.sum + n / 2) / n) as u64),
            p50: self.quantile(0.5),
            p90: self.quantile(0.9),
            p99: self.quantile(0.99),
            p999: self.quantile(0.999),
            max: Some(self.max),
        }
    }
}

/// Block and bucket of a value.
#[inline]
const fn place(value: u64) -> (usize, usize) {
    if value < BUCKETS as u64 {
        return (0, value as usize);
    }
    let top_bit = value.ilog2();
    let shift = top_bit - BUCKET_BITS;
    (
        (top_bit - BUCKET_BITS + 1) as usize,
        (value >> shift) as usize & (BUCKETS - 1),
    )
}

/// The middle of a bucket.
const fn middle(block: usize, bucket: usize) -> u64 {
    if block == 0 {
        return bucket as u64;
    }
    let shift = block as u32 - 1;
    let low = (BUCKETS as u64 + bucket as u64) << shift;
    low + ((1u64 << shift) >> 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn empty_has_no_values() {
        assert_eq!(Histogram::default().dist(), Dist::default());
    }

    #[test]
    fn small_values_are_exact() {
        let mut histogram = Histogram::default();
        (0..=1000).for_each(|value| histogram.record(value));
        let dist = histogram.dist();
        assert_eq!(
            (dist.n, dist.min, dist.mean, dist.max),
            (1001, Some(0), Some(500), Some(1000))
        );
        assert_eq!(
            (dist.p50, dist.p90, dist.p99),
            (Some(500), Some(900), Some(990))
        );
        assert_eq!(histogram.zeros(), 1);
    }

    #[test]
    fn the_largest_value_fits() {
        let mut histogram = Histogram::default();
        histogram.record(u64::MAX);
        assert_eq!(histogram.dist().p50, Some(u64::MAX));
    }

    #[test]
    fn sums_alone_know_all_but_quantiles() {
        let (mut sums, mut whole) = (Histogram::of_sums(), Histogram::default());
        for value in [7, 3, 1 << 40] {
            sums.record(value);
            whole.record(value);
        }
        let of = |histogram: &Histogram| {
            let dist = histogram.dist();
            (dist.n, dist.sum, dist.min, dist.mean, dist.max)
        };
        assert_eq!(of(&sums), of(&whole));
        assert_eq!((sums.dist().p50, whole.dist().p50), (None, Some(7)));
        let mut both = Histogram::default();
        both.merge(&whole);
        both.merge(&sums);
        assert_eq!(both.dist().n, 6);
        assert_eq!(both.quantile(0.5), None, "half of them are in no bucket");
    }

    #[test]
    fn more_samples_than_32_bits_count_are_counted() {
        let limit = u64::from(u32::MAX);
        let mut histogram = Histogram::default();
        histogram.record_many(7, limit);
        histogram.record(7);
        histogram.record(7);
        histogram.record_many(9, limit + 2);
        assert_eq!(histogram.n(), 2 * limit + 4);
        // The last 7 is the middle one.
        assert_eq!(
            (histogram.quantile(0.5), histogram.quantile(0.51)),
            (Some(7), Some(9))
        );
        let mut twice = histogram.clone();
        twice.merge(&histogram);
        let cdf = twice.cdf(10);
        assert_eq!(cdf.points, [(7, 2 * limit + 4), (9, 4 * limit + 8)]);
    }

    proptest! {
        #[test]
        fn quantiles_are_within_a_thousandth(
            values in prop::collection::vec(prop_oneof![0u64..5_000, 0u64..10_000_000_000, any::<u64>()], 1..300),
            split in 0usize..300,
        ) {
            let mut histogram = Histogram::default();
            let mut other = Histogram::default();
            for (i, value) in values.iter().enumerate() {
                if i < split { histogram.record(*value) } else { other.record(*value) }
            }
            histogram.merge(&other);
            let mut sorted = values.clone();
            sorted.sort_unstable();
            prop_assert_eq!(histogram.sum(), values.iter().map(|v| u128::from(*v)).sum::<u128>());
            prop_assert_eq!(histogram.dist().min, sorted.first().copied());
            prop_assert_eq!(histogram.dist().max, sorted.last().copied());
            for q in [0.0, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0] {
                let rank = ((q * sorted.len() as f64).ceil() as usize).clamp(1, sorted.len());
                let exact = sorted[rank - 1] as f64;
                let got = histogram.quantile(q).unwrap() as f64;
                prop_assert!((got - exact).abs() <= exact * 0.001, "{q}: {got} for {exact}");
            }
        }
    }
}

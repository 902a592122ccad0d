//! Percentiles of latency, by time.

use crate::result::series::Counted;

/// Buckets of a power of two: a percentile is the middle of its bucket, so within 3 %.
const BUCKETS: u32 = 16;
/// Latencies below 2^10 ns are one bucket.
const LEAST_BITS: u32 = 10;
/// Latencies from 2^38 ns (275 s) on are the last.
const MAX_BITS: u32 = 38;
const N: usize = ((MAX_BITS - LEAST_BITS) * BUCKETS) as usize + 2;

/// Latencies of a stretch of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Latencies {
    buckets: Option<Box<[u64; N]>>,
    n: u64,
}

impl Latencies {
    #[inline]
    pub(crate) fn record(&mut self, ns: u64) {
        self.n += 1;
        self.buckets.get_or_insert_with(|| Box::new([0; N]))[place(ns)] += 1;
    }

    pub(crate) const fn n(&self) -> u64 {
        self.n
    }

    /// Samples by bucket; empty where there are none.
    pub(crate) fn counts(&self) -> &[u64] {
        self.buckets.as_ref().map_or(&[], |buckets| &buckets[..])
    }

    /// By nearest rank.
    pub(crate) fn quantile(&self, q: f64) -> u64 {
        let rank = ((q * self.n as f64).ceil() as u64).max(1);
        let mut below = 0;
        let buckets = self.buckets.iter().flat_map(|buckets| buckets.iter());
        let found = buckets.enumerate().find_map(|(place, count)| {
            below += count;
            (below >= rank).then_some(place)
        });
        found.map_or(0, middle)
    }
}

impl Counted for Latencies {
    fn add(&mut self, later: &Self) {
        self.n += later.n;
        let Some(theirs) = &later.buckets else {
            return;
        };
        let mine = self.buckets.get_or_insert_with(|| Box::new([0; N]));
        mine.iter_mut()
            .zip(theirs.iter())
            .for_each(|(to, from)| *to += from);
    }
}

#[inline]
const fn place(ns: u64) -> usize {
    if ns < 1 << LEAST_BITS {
        return 0;
    }
    let top_bit = ns.ilog2();
    if top_bit >= MAX_BITS {
        return N - 1;
    }
    let within = (ns >> (top_bit - BUCKETS.ilog2())) as u32 & (BUCKETS - 1);
    ((top_bit - LEAST_BITS) * BUCKETS + within + 1) as usize
}

fn middle(place: usize) -> u64 {
    let (from, to) = limits(place);
    from + ((to - from) >> 1)
}

/// From where to where a bucket reaches.
fn limits(place: usize) -> (u64, u64) {
    let Some(place) = u32::try_from(place).ok().and_then(|it| it.checked_sub(1)) else {
        return (0, 1 << LEAST_BITS);
    };
    let shift = LEAST_BITS + place / BUCKETS - BUCKETS.ilog2();
    let low = u64::from(BUCKETS + place % BUCKETS) << shift;
    (low, low + (1 << shift))
}

/// From where to where a bucket of [`Latencies::counts`] reaches, nanoseconds.
pub(crate) fn bucket_limits(place: usize) -> (f64, f64) {
    let (from, to) = limits(place);
    (from as f64, to as f64)
}

/// The buckets that hold any latencies: the largest that falls into each, nanoseconds, and how many it holds.
#[cfg(feature = "dataframe")]
pub(crate) fn bucket_ends(latencies: &Latencies) -> Vec<(u64, u64)> {
    let counts = latencies.counts().iter().enumerate();
    counts
        .filter(|(_, n)| **n > 0)
        .map(|(place, n)| match place + 1 {
            N => (u64::MAX, *n),
            _ => (limits(place).1 - 1, *n),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn percentiles_are_within_three_percent(mut values in prop::collection::vec(2_000u64..100_000_000_000, 1..300)) {
            let (mut a, mut b) = (Latencies::default(), Latencies::default());
            for (i, value) in values.iter().enumerate() {
                if i % 3 == 0 { a.record(*value) } else { b.record(*value) }
            }
            a.add(&b);
            values.sort_unstable();
            for q in [0.01, 0.5, 0.99, 1.0] {
                let rank = ((q * values.len() as f64).ceil() as usize).max(1);
                let (got, exact) = (a.quantile(q) as f64, values[rank - 1] as f64);
                prop_assert!((got / exact - 1.0).abs() <= 0.032, "{got} for {exact}");
            }
        }
    }

    #[test]
    fn the_ends_are_caught() {
        let mut latencies = Latencies::default();
        latencies.record(0);
        assert_eq!(latencies.quantile(0.5), 512);
        (0..3).for_each(|_| latencies.record(u64::MAX));
        assert!(latencies.quantile(0.5) >= 1 << MAX_BITS);
    }
}

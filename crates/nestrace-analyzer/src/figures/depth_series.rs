//! How many requests are at a device, by time.

use crate::analysis::DepthSlot;
use crate::block_stats::{Counted, OverTime};

/// A stretch of time from its first change to its last.
#[derive(Debug, Default)]
struct Stretch {
    first: Option<Sum>,
    last: Sum,
    max: u64,
}

/// At a change.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    at_ns: u64,
    /// Sum of depth × time up to here.
    request_ns: u128,
    /// From here on.
    depth: u64,
}

impl Counted for Stretch {
    fn add(&mut self, later: &Self) {
        self.max = self.max.max(later.max);
        if later.first.is_some() {
            self.first = self.first.or(later.first);
            self.last = later.last;
        }
    }
}

/// Sums at the first and the last change of each stretch: their differences are exact means, and between
/// two stretches nothing changes.
#[derive(Debug, Default)]
pub(crate) struct DepthSeries {
    now: Sum,
    stretches: OverTime<Stretch>,
}

impl DepthSeries {
    #[inline]
    pub(super) fn changed(&mut self, ts_ns: u64, by: i64) {
        let before = self.now;
        let passed = ts_ns.saturating_sub(before.at_ns);
        self.now = Sum {
            at_ns: ts_ns.max(before.at_ns),
            request_ns: before.request_ns + u128::from(before.depth) * u128::from(passed),
            depth: before.depth.saturating_add_signed(by),
        };
        let stretch = self.stretches.at(ts_ns);
        stretch.first.get_or_insert(self.now);
        stretch.last = self.now;
        stretch.max = stretch.max.max(self.now.depth);
    }

    /// Times are the clock's.
    pub(super) fn slots(&self) -> impl Iterator<Item = DepthSlot> + '_ {
        self.stretches.slots().filter_map(|(_, slot)| {
            let (first, last) = (slot.first?, slot.last);
            let passed = last.at_ns.saturating_sub(first.at_ns);
            let sum = last.request_ns.saturating_sub(first.request_ns);
            Some(DepthSlot {
                from_ns: first.at_ns,
                until_ns: last.at_ns,
                mean: if passed == 0 {
                    last.depth as f64
                } else {
                    sum as f64 / passed as f64
                },
                max: slot.max,
                then: last.depth,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn means_are_weighted_by_time() {
        let mut series = DepthSeries::default();
        // Two at once for 50 ms, one for 50 ms, then nothing for 200 ms and one for 100 ms.
        for (at_ms, by) in [(1, 1), (1, 1), (51, -1), (100, -1), (301, 1), (400, -1)] {
            series.changed(at_ms * MS, by);
        }
        let slots: Vec<_> = series.slots().collect();
        assert_eq!(slots.len(), 2);
        assert!((slots[0].mean - (2.0 * 50.0 + 49.0) / 99.0).abs() < 1e-9);
        assert_eq!(
            (slots[0].until_ns, slots[0].max, slots[0].then),
            (100 * MS, 2, 0)
        );
        assert_eq!((slots[1].from_ns, slots[1].mean), (301 * MS, 1.0));
    }

    #[test]
    fn a_long_series_keeps_its_mean() {
        let mut series = DepthSeries::default();
        for i in 0..10_000u64 {
            series.changed(1 + i * 100 * MS, 1);
            series.changed(1 + (i * 100 + 50) * MS, -1);
        }
        let slots: Vec<_> = series.slots().collect();
        assert!(slots.len() <= 64);
        // A stretch ends with its last change: the shorter, the more that is. The last one is cut short.
        let whole = &slots[..slots.len() - 1];
        assert!(whole.iter().all(|slot| (slot.mean - 0.5).abs() < 0.01));
    }
}

//! How many requests are at a device, by time.

use crate::analysis::DepthSlot;
use crate::block_stats::{Counted, OverTime};
use crate::compare::{DepthSums, FIRST_STEP_NS, Series};

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
    /// Time with at least one up to here.
    busy_ns: u64,
    /// From here on.
    depth: u64,
}

impl Sum {
    /// The same at a later time, up to which nothing changes.
    fn until(self, ts_ns: u64) -> Self {
        let passed = ts_ns.saturating_sub(self.at_ns);
        let busy_ns = if self.depth > 0 { passed } else { 0 };
        Self {
            at_ns: ts_ns.max(self.at_ns),
            request_ns: self.request_ns + u128::from(self.depth) * u128::from(passed),
            busy_ns: self.busy_ns.saturating_add(busy_ns),
            depth: self.depth,
        }
    }

    /// What came since `earlier`.
    fn since(self, earlier: Self) -> DepthSums {
        let request_ns = self.request_ns.saturating_sub(earlier.request_ns);
        DepthSums {
            request_ns: u64::try_from(request_ns).unwrap_or(u64::MAX),
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
        }
    }
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
#[derive(Debug)]
pub(crate) struct DepthSeries {
    now: Sum,
    stretches: OverTime<Stretch>,
}

impl Default for DepthSeries {
    fn default() -> Self {
        Self {
            now: Sum::default(),
            stretches: OverTime::with_step(FIRST_STEP_NS),
        }
    }
}

impl DepthSeries {
    #[inline]
    pub(super) fn changed(&mut self, ts_ns: u64, by: i64) {
        self.now = self.now.until(ts_ns);
        self.now.depth = self.now.depth.saturating_add_signed(by);
        let stretch = self.stretches.at(ts_ns);
        stretch.first.get_or_insert(self.now);
        stretch.last = self.now;
        stretch.max = stretch.max.max(self.now.depth);
    }

    /// The sums of each stretch, from the first change to the last: between two changes they grow evenly, so
    /// they are known wherever a stretch begins. What is at the device at last stays there until `end_ns`.
    pub(super) fn series(&self, end_ns: u64) -> Series<DepthSums> {
        let last_ns = match self.now.depth {
            0 => self.now.at_ns,
            _ => self.now.at_ns.max(end_ns),
        };
        let mut known = Sum::default();
        let mut slots = self.stretches.slots().peekable();
        let mut stretches = Vec::new();
        while let Some((from_ns, slot)) = slots.next() {
            let until_ns = slots.peek().map_or(last_ns, |(next_ns, _)| *next_ns);
            let begin = known.until(from_ns);
            if slot.first.is_some() && slot.last.at_ns >= known.at_ns {
                known = slot.last;
            }
            let sums = known.until(until_ns).since(begin);
            stretches.push((until_ns.saturating_sub(from_ns), sums));
        }
        Series { stretches }
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
        // In tenths of milliseconds: two at once for 50, one for 49, then nothing for 201 and one for 99.
        for (at, by) in [(1, 1), (1, 1), (51, -1), (100, -1), (301, 1), (400, -1)] {
            series.changed(at * MS / 10, by);
        }
        let slots: Vec<_> = series.slots().collect();
        assert_eq!(slots.len(), 2);
        assert!((slots[0].mean - (2.0 * 50.0 + 49.0) / 99.0).abs() < 1e-9);
        assert_eq!(
            (slots[0].until_ns, slots[0].max, slots[0].then),
            (10 * MS, 2, 0)
        );
        assert_eq!((slots[1].from_ns, slots[1].mean), (301 * MS / 10, 1.0));
    }

    #[test]
    fn sums_of_stretches_are_those_of_the_whole() {
        let mut series = DepthSeries::default();
        // Two at once from 15 to 35 ms, one up to 95 ms, and one from 200 ms on that stays.
        for (at_ms, by) in [(15, 1), (15, 1), (35, -1), (95, -1), (200, 1)] {
            series.changed(at_ms * MS, by);
        }
        let stretches = series.series(225 * MS).stretches;
        let sums = stretches.iter().map(|(_, sums)| *sums);
        let request_ns: u64 = sums.clone().map(|it| it.request_ns).sum();
        let busy_ns: u64 = sums.map(|it| it.busy_ns).sum();
        assert_eq!((request_ns, busy_ns), (125 * MS, 105 * MS));
        // The first three: two for 10 ms, two for 10 ms, one for 10 ms.
        let first: Vec<u64> = stretches.iter().map(|it| it.1.request_ns / MS).collect();
        assert_eq!(first[..3], [20, 20, 10]);
        let whole_ns: u64 = stretches.iter().map(|(ns, _)| ns).sum();
        assert_eq!(whole_ns, 210 * MS);
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

//! How many requests are at a device, by time.

use crate::measure::depth::DepthMeter;
use crate::measure::over_time::OverTime;
use crate::measure::series::FIRST_STEP_NS;
use crate::result::analysis::DepthSlot;
use crate::result::series::{Counted, Period, Series};
use crate::result::sums::DepthSums;

/// A stretch of time from its first change to its last.
#[derive(Debug, Default)]
struct Stretch {
    first: Option<DepthMeter>,
    last: DepthMeter,
    max: u64,
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
    now: DepthMeter,
    stretches: OverTime<Stretch>,
}

impl Default for DepthSeries {
    fn default() -> Self {
        Self {
            now: DepthMeter::default(),
            stretches: OverTime::with_step(FIRST_STEP_NS),
        }
    }
}

impl DepthSeries {
    /// A request came, or left.
    #[inline]
    pub(crate) fn changed(&mut self, ts_ns: u64, comes: bool) {
        self.changed_only(ts_ns, comes);
        let stretch = self.stretches.at(ts_ns);
        stretch.first.get_or_insert(self.now);
        stretch.last = self.now;
        stretch.max = stretch.max.max(self.now.depth());
    }

    /// The same for [`Self::now`] alone.
    #[inline]
    pub(super) fn changed_only(&mut self, ts_ns: u64, comes: bool) {
        if comes {
            self.now.enter(ts_ns);
        } else {
            self.now.leave(ts_ns);
        }
    }

    /// Up to the last change.
    pub(crate) const fn now(&self) -> DepthMeter {
        self.now
    }

    /// The sums of each stretch, from the first change to the last: between two changes they grow evenly, so
    /// they are known wherever a stretch begins. What is at the device at last stays there until `end_ns`.
    pub(super) fn series(&self, end_ns: u64) -> Series<DepthSums> {
        let last_ns = match self.now.depth() {
            0 => self.now.since_ns(),
            _ => self.now.since_ns().max(end_ns),
        };
        let mut known = DepthMeter::default();
        let mut slots = self.stretches.slots().peekable();
        let mut stretches = Vec::new();
        while let Some((from_ns, slot)) = slots.next() {
            let until_ns = slots.peek().map_or(last_ns, |(next_ns, _)| *next_ns);
            let begin = known.until(from_ns);
            if slot.first.is_some() && slot.last.since_ns() >= known.since_ns() {
                known = slot.last;
            }
            let sums = known.until(until_ns).after(begin);
            let period = Period {
                from_ns,
                ns: until_ns.saturating_sub(from_ns),
            };
            stretches.push((period, sums));
        }
        Series { stretches }
    }

    /// Times are the clock's.
    pub(super) fn slots(&self) -> impl Iterator<Item = DepthSlot> + '_ {
        self.stretches.slots().filter_map(|(_, slot)| {
            let (first, last) = (slot.first?, slot.last);
            let passed = last.since_ns().saturating_sub(first.since_ns());
            let sums = last.after(first);
            Some(DepthSlot {
                from_ns: first.since_ns(),
                until_ns: last.since_ns(),
                mean: if passed == 0 {
                    last.depth() as f64
                } else {
                    sums.request_ns as f64 / passed as f64
                },
                max: slot.max,
                then: last.depth(),
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
        for (at, comes) in [
            (1, true),
            (1, true),
            (51, false),
            (100, false),
            (301, true),
            (400, false),
        ] {
            series.changed(at * MS / 10, comes);
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
        for (at_ms, comes) in [
            (15, true),
            (15, true),
            (35, false),
            (95, false),
            (200, true),
        ] {
            series.changed(at_ms * MS, comes);
        }
        let stretches = series.series(225 * MS).stretches;
        let sums = stretches.iter().map(|(_, sums)| *sums);
        let request_ns: u64 = sums.clone().map(|it| it.request_ns).sum();
        let busy_ns: u64 = sums.map(|it| it.busy_ns).sum();
        assert_eq!((request_ns, busy_ns), (125 * MS, 105 * MS));
        // The first three: two for 10 ms, two for 10 ms, one for 10 ms.
        let first: Vec<u64> = stretches.iter().map(|it| it.1.request_ns / MS).collect();
        assert_eq!(first[..3], [20, 20, 10]);
        let whole_ns: u64 = stretches.iter().map(|(period, _)| period.ns).sum();
        assert_eq!(whole_ns, 210 * MS);
    }

    #[test]
    fn a_long_series_keeps_its_mean() {
        let mut series = DepthSeries::default();
        for i in 0..10_000u64 {
            series.changed(1 + i * 100 * MS, true);
            series.changed(1 + (i * 100 + 50) * MS, false);
        }
        let slots: Vec<_> = series.slots().collect();
        assert!(slots.len() <= 64);
        // A stretch ends with its last change: the shorter, the more that is. The last one is cut short.
        let whole = &slots[..slots.len() - 1];
        assert!(whole.iter().all(|slot| (slot.mean - 0.5).abs() < 0.01));
    }
}

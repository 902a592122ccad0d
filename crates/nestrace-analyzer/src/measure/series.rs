//! What is kept of a recording for comparisons: sums over short stretches of time, in bounded memory.
//!
//! The bootstrap draws these stretches again and again, so a value's spread is that of the stretches.
//! There are at most 64 of them: they begin with 10 ms and become twice as long whenever time runs beyond
//! the last one.

use crate::measure::over_time::OverTime;
use crate::result::series::{Counted, Period, Series};

/// What a stretch stands for at first: a recording of a third of a second has 32 of them.
pub(crate) const FIRST_STEP_NS: u64 = 10_000_000;

/// Collects a [`Series`].
#[derive(Clone, Debug)]
pub(crate) struct SeriesMeter<T> {
    slots: OverTime<T>,
    last_ns: u64,
}

impl<T> Default for SeriesMeter<T> {
    fn default() -> Self {
        Self {
            slots: OverTime::with_step(FIRST_STEP_NS),
            last_ns: 0,
        }
    }
}

impl<T: Counted + Clone> SeriesMeter<T> {
    /// The sums at this time.
    #[inline]
    pub(crate) fn at(&mut self, ts_ns: u64) -> &mut T {
        self.last_ns = self.last_ns.max(ts_ns);
        self.slots.at(ts_ns)
    }

    /// From the first event to the last: the last stretch is shorter.
    pub(crate) fn finish(&self) -> Series<T> {
        let step_ns = self.slots.step_ns();
        let period = |from_ns: u64| Period {
            from_ns,
            ns: step_ns.min(self.last_ns.saturating_sub(from_ns)),
        };
        let slots = self.slots.slots();
        Series {
            stretches: slots
                .map(|(from_ns, sums)| (period(from_ns), sums.clone()))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::series::{MAX_STRETCHES, joined};
    use crate::result::sums::QemuSums;

    #[test]
    fn a_series_is_bounded_and_keeps_its_sums_and_its_time() {
        let mut meter = SeriesMeter::<QemuSums>::default();
        for i in 0..100_000u64 {
            let sums = meter.at(5_000_000 + i * 1_000_000);
            sums.latency[0].record(1_000 + i % 7);
            sums.bytes[0] += 512;
        }
        let series = meter.finish();
        assert!((32..=64).contains(&series.stretches.len()));
        let total_ns: u64 = series.stretches.iter().map(|(period, _)| period.ns).sum();
        assert_eq!(total_ns, 99_999 * 1_000_000);
        let bytes: u64 = series.stretches.iter().map(|(_, sums)| sums.bytes[0]).sum();
        assert_eq!(bytes, 100_000 * 512);
        let many = (0..40).fold(Series::default(), |all, _| joined(all, series.clone()));
        assert!(many.stretches.len() <= MAX_STRETCHES);
        let n: u64 = many
            .stretches
            .iter()
            .map(|(_, sums)| sums.latency[0].sum().n)
            .sum();
        assert_eq!(n, 4_000_000);
    }
}

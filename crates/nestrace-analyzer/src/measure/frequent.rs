//! The most frequent values of a sequence, in bounded memory.

use crate::measure::histogram::Histogram;
use crate::model::pointer::PointerMap;
use crate::result::analysis::Modes;

/// Values that are counted at once.
const MAX_VALUES: usize = 1 << 14;
/// Modes that are named; that there are more is said.
const MAX_MODES: usize = 16;

/// Counts values exactly as long as there are not more than 16,384 different ones. After that the
/// rarest half is dropped whenever there is no room, and counts are lower bounds.
#[derive(Debug, Default)]
pub(crate) struct Frequent {
    /// Of 0, which is most of what is counted in sequential I/O.
    zeros: u64,
    counts: PointerMap<u64, u64>,
    /// The largest count that was dropped: what is above it by more cannot have been missed.
    dropped: u64,
}

impl Frequent {
    /// Counts a value; `full` is called before something is dropped for it.
    #[inline]
    pub(crate) fn count(&mut self, value: u64, full: impl FnOnce(&Self)) {
        if value == 0 {
            self.zeros += 1;
            return;
        }
        if let Some(count) = self.counts.get_mut(&value) {
            *count += 1;
            return;
        }
        if self.counts.len() >= MAX_VALUES {
            full(self);
            self.drop_rarest();
        }
        self.counts.insert(value, 1);
    }

    #[cold]
    fn drop_rarest(&mut self) {
        let mut counts: Vec<u64> = self.counts.values().copied().collect();
        let middle = counts.len() / 2;
        let (_, median, _) = counts.select_nth_unstable(middle);
        let limit = *median;
        self.counts.retain(|_, count| *count > limit);
        self.dropped = self.dropped.max(limit);
    }

    pub(crate) fn zeros(&self) -> u64 {
        self.zeros
    }

    /// Everything that is counted.
    pub(crate) fn histogram(&self) -> Histogram {
        let mut histogram = Histogram::default();
        histogram.record_many(0, self.zeros);
        for (value, count) in &self.counts {
            histogram.record_many(*value, *count);
        }
        histogram
    }

    /// The median (nearest rank) of everything that was counted and `more`; `None` where counts are not exact, or
    /// without values.
    pub(crate) fn median(&self, more: Option<u64>) -> Option<u64> {
        if self.dropped > 0 {
            return None;
        }
        let counted = self.counts.iter().map(|(value, count)| (*value, *count));
        let mut values: Vec<(u64, u64)> = counted
            .chain((self.zeros > 0).then_some((0, self.zeros)))
            .chain(more.map(|value| (value, 1)))
            .collect();
        values.sort_unstable();
        let n: u64 = values.iter().map(|(_, count)| count).sum();
        let mut below = 0;
        let mut median = values.iter().filter(|(_, count)| {
            below += count;
            2 * below >= n
        });
        median.next().map(|(value, _)| *value)
    }

    /// The values that occurred most often, ascending.
    pub(crate) fn modes(&self) -> Modes {
        let zeros = (self.zeros > 0).then_some((0, self.zeros));
        let all = || {
            zeros
                .into_iter()
                .chain(self.counts.iter().map(|(value, count)| (*value, *count)))
        };
        let most = all().map(|(_, count)| count).max().unwrap_or(0);
        let mut values: Vec<u64> = all()
            .filter(|(_, count)| *count == most)
            .map(|(value, _)| value)
            .collect();
        values.sort_unstable();
        let n = values.len() as u64;
        values.truncate(MAX_MODES);
        Modes {
            count: most,
            n,
            values,
            exact: self.dropped == 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn modes(values: impl IntoIterator<Item = u64>) -> Modes {
        let mut frequent = Frequent::default();
        values
            .into_iter()
            .for_each(|value| frequent.count(value, |_| {}));
        frequent.modes()
    }

    #[test]
    fn few_values_are_counted_exactly() {
        assert_eq!(modes([]).n, 0);
        let one = modes([5, 0, 5, 7, 0, 5]);
        assert_eq!(
            (one.count, one.values.as_slice(), one.exact),
            (3, &[5][..], true)
        );
        let two = modes([9, 0, 9, 0]);
        assert_eq!((two.count, two.values.as_slice()), (2, &[0, 9][..]));
        let many = modes(1..=40);
        assert_eq!((many.count, many.n, many.values.len()), (1, 40, MAX_MODES));
    }

    #[test]
    fn the_median_is_exact_as_long_as_counts_are() {
        let mut frequent = Frequent::default();
        assert_eq!(
            (frequent.median(None), frequent.median(Some(7))),
            (None, Some(7))
        );
        [3000, 0, 1000, 2000]
            .iter()
            .for_each(|value| frequent.count(*value, |_| {}));
        assert_eq!(frequent.median(None), Some(1000));
        assert_eq!(frequent.median(Some(5000)), Some(2000));
        (0..100_000).for_each(|value| frequent.count(value, |_| {}));
        assert_eq!(frequent.median(None), None);
    }

    #[test]
    fn a_mode_survives_any_number_of_other_values() {
        let noise = (0..1_000_000_u64).map(|n| if n % 10 == 0 { 42 } else { 1000 + n });
        let found = modes(noise);
        assert_eq!(
            (found.count, found.values.as_slice(), found.exact),
            (100_000, &[42][..], false)
        );
    }
}

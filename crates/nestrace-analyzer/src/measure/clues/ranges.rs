//! A set of ranges: what was read before, when write-back was under way.

use std::collections::BTreeMap;

/// Half-open ranges, start to end. Those that touch or overlap are one.
#[derive(Clone, Debug, Default)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// How much of a range is in the set.
    pub(super) fn common(&self, start: u64, end: u64) -> u64 {
        let earlier = self.0.range(..end).rev();
        let touched = earlier.take_while(|(_, to)| **to > start);
        touched
            .map(|(from, to)| (*to).min(end) - (*from).max(start))
            .sum()
    }

    /// Adds a range. Says whether there was room for it: there are never more than `most` ranges.
    pub(super) fn add(&mut self, start: u64, end: u64, most: usize) -> bool {
        if start >= end {
            return true;
        }
        let earlier = self.0.range(..=end).rev();
        let touched: Vec<(u64, u64)> = earlier
            .take_while(|(_, to)| **to >= start)
            .map(|(from, to)| (*from, *to))
            .collect();
        if touched.is_empty() && self.0.len() >= most {
            return false;
        }
        let (mut from, mut to) = (start, end);
        for (start, end) in touched {
            self.0.remove(&start);
            from = from.min(start);
            to = to.max(end);
        }
        self.0.insert(from, to);
        true
    }

    /// Drops the ranges that end before this.
    pub(super) fn forget_before(&mut self, start: u64) {
        while let Some(first) = self.0.first_entry() {
            if *first.get() >= start {
                return;
            }
            first.remove();
        }
    }

    /// Length of all ranges.
    pub(super) fn covered(&self) -> u64 {
        self.0.iter().map(|(from, to)| to - from).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn as_a_set_of_numbers(
            added in prop::collection::vec((0u64..64, 0u64..12), 0..24),
            asked in (0u64..64, 0u64..32),
        ) {
            let mut ranges = Ranges::default();
            let mut numbers = std::collections::BTreeSet::new();
            for (start, length) in added {
                prop_assert!(ranges.add(start, start + length, usize::MAX));
                numbers.extend(start..start + length);
            }
            let (start, end) = (asked.0, asked.0 + asked.1);
            prop_assert_eq!(ranges.common(start, end), numbers.range(start..end).count() as u64);
            prop_assert_eq!(ranges.covered(), numbers.len() as u64);
        }
    }

    #[test]
    fn there_is_room_for_so_many() {
        let mut ranges = Ranges::default();
        assert!(ranges.add(0, 1, 2) && ranges.add(10, 11, 2));
        assert!(!ranges.add(20, 21, 2), "a third one");
        assert!(ranges.add(1, 5, 2), "one that goes on");
        ranges.forget_before(6);
        assert_eq!(ranges.covered(), 1);
    }
}

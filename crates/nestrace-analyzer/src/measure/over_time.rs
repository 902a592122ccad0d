//! Something counted by time, in bounded memory.

use crate::result::series::Counted;

/// Slots of a series: when time runs beyond the last one, neighbours are put together and each slot
/// stands for twice as long.
const MAX_SLOTS: usize = 64;
/// What a slot stands for at first.
const FIRST_STEP_NS: u64 = 100_000_000;

/// Up to 64 slots of equal length from the first event on.
#[derive(Clone, Debug)]
pub(crate) struct OverTime<T> {
    start_ns: u64,
    step_ns: u64,
    slots: Vec<T>,
    /// Where the last event fell: most events fall there again.
    current: usize,
    current_from_ns: u64,
}

impl<T> Default for OverTime<T> {
    fn default() -> Self {
        Self::with_step(FIRST_STEP_NS)
    }
}

impl<T> OverTime<T> {
    /// A series whose slots stand for this much at first.
    pub(crate) const fn with_step(step_ns: u64) -> Self {
        Self {
            start_ns: 0,
            step_ns,
            slots: Vec::new(),
            current: 0,
            current_from_ns: 0,
        }
    }
}

impl<T: Counted> OverTime<T> {
    /// The slot of this time. What comes before the first event counts with it.
    #[inline]
    pub(crate) fn at(&mut self, ts_ns: u64) -> &mut T {
        let within = ts_ns.wrapping_sub(self.current_from_ns) < self.step_ns;
        if !within || self.slots.is_empty() {
            self.seek(ts_ns);
        }
        &mut self.slots[self.current]
    }

    /// The slot of this time, and the time at which it ends.
    pub(crate) fn at_until(&mut self, ts_ns: u64) -> (&mut T, u64) {
        self.at(ts_ns);
        let until_ns = self.current_from_ns.saturating_add(self.step_ns);
        (&mut self.slots[self.current], until_ns)
    }

    #[cold]
    fn seek(&mut self, ts_ns: u64) {
        if self.slots.is_empty() {
            self.start_ns = ts_ns;
        }
        let mut place = ts_ns.saturating_sub(self.start_ns) / self.step_ns;
        while place >= MAX_SLOTS as u64 {
            self.halve();
            place /= 2;
        }
        self.current = place as usize;
        if self.slots.len() <= self.current {
            self.slots.resize_with(self.current + 1, T::default);
        }
        self.current_from_ns = self.begin_of(place);
    }

    fn halve(&mut self) {
        self.step_ns = self.step_ns.saturating_mul(2);
        let mut halves = std::mem::take(&mut self.slots).into_iter();
        while let Some(mut slot) = halves.next() {
            if let Some(later) = halves.next() {
                slot.add(&later);
            }
            self.slots.push(slot);
        }
    }

    pub(crate) const fn step_ns(&self) -> u64 {
        self.step_ns
    }

    /// Time of each slot's beginning, and the slot.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (u64, &T)> {
        (0..).map(|place| self.begin_of(place)).zip(&self.slots)
    }

    /// Time at which a slot begins; stamps of damaged recordings reach to the end of what fits.
    fn begin_of(&self, place: u64) -> u64 {
        self.start_ns
            .saturating_add(place.saturating_mul(self.step_ns))
    }

    /// Everything.
    pub(crate) fn total(&self) -> T {
        let mut total = T::default();
        self.slots.iter().for_each(|slot| total.add(slot));
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    impl Counted for u64 {
        fn add(&mut self, later: &Self) {
            *self += later;
        }
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_everything_is_near_its_time(mut times in prop::collection::vec(0u64..1 << 44, 1..200)) {
            times.sort_unstable();
            let mut series = OverTime::<u64>::default();
            times.iter().for_each(|ts| *series.at(*ts) += 1);
            prop_assert_eq!(series.total(), times.len() as u64);
            prop_assert!(series.slots.len() <= MAX_SLOTS);
            for (from_ns, n) in series.slots() {
                let until_ns = from_ns + series.step_ns();
                let there = times.iter().filter(|ts| (from_ns..until_ns).contains(ts)).count();
                prop_assert_eq!(there as u64, *n);
            }
        }
    }

    #[test]
    fn a_late_event_counts_with_the_first() {
        let mut series = OverTime::<u64>::default();
        *series.at(1_000_000_000) += 1;
        *series.at(5) += 1;
        assert_eq!(series.slots().collect::<Vec<_>>(), [(1_000_000_000, &2)]);
    }
}

//! The largest of many values that each lose a little with distance in time.

use std::cell::Cell;

/// A value at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Anchor {
    at_ns: u64,
    value: i64,
}

/// `value(t) = max over i of (value_i - rho * |t - t_i|)`, exactly, in integers.
///
/// Only values that no other one exceeds at their own time are kept, and among those the neighbours of
/// `t` decide: one push costs O(1) over many. With 500 ppm a value stands for everything within
/// 0.1 s that is 50 µs worse, so a second of trace holds a few of them.
#[derive(Clone, Debug)]
pub(super) struct Envelope {
    rho_ppm: u64,
    anchors: Vec<Anchor>,
    /// Anchors at the front that are not needed any more.
    forgotten: usize,
    /// Where the last question was answered: the next one is nearly always beside it.
    last: Cell<usize>,
}

/// How much a value loses over a time: rounded up, so that a bound never becomes too narrow.
pub(super) const fn loss_ns(rho_ppm: u64, distance_ns: u64) -> i64 {
    match distance_ns.checked_mul(rho_ppm) {
        Some(product) => product.div_ceil(1_000_000).cast_signed(),
        // Half a day at the fastest, a year at 500 ppm: everything is lost, which is true as well.
        None if distance_ns < 1 << 63 => distance_ns.cast_signed(),
        None => i64::MAX,
    }
}

impl Envelope {
    pub(super) const fn new(rho_ppm: u64) -> Self {
        Self {
            rho_ppm,
            anchors: Vec::new(),
            forgotten: 0,
            last: Cell::new(0),
        }
    }

    /// The anchors that count.
    fn kept(&self) -> &[Anchor] {
        &self.anchors[self.forgotten..]
    }

    /// Whether `a` is at least `b` at the time of `b`.
    fn covers(&self, a: Anchor, b: Anchor) -> bool {
        if a.value < b.value {
            return false;
        }
        let lost = i128::from(self.rho_ppm) * i128::from(a.at_ns.abs_diff(b.at_ns));
        (i128::from(a.value) - i128::from(b.value)) * 1_000_000 >= lost
    }

    /// Index of the first anchor after `at_ns`, looked for from the last answer on in steps that double: the next question
    /// is nearly always a few anchors away.
    fn after(&self, at_ns: u64) -> usize {
        let anchors = self.kept();
        let end = anchors.len();
        let is_after = |index: usize| anchors[index].at_ns > at_ns;
        let last = self.last.get().min(end);
        // All before `low` are not after it, all from `high` on are.
        let (mut low, mut high) = (last, last);
        let mut step = 1;
        if low > 0 && is_after(low - 1) {
            while low > 0 && is_after(low - 1) {
                high = low - 1;
                low = low.saturating_sub(step);
                step *= 2;
            }
        } else {
            while high < end && !is_after(high) {
                low = high + 1;
                high = (high + step).min(end);
                step *= 2;
            }
        }
        while low < high {
            let middle = usize::midpoint(low, high);
            if is_after(middle) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        self.last.set(low);
        low
    }

    pub(super) fn push(&mut self, at_ns: u64, value: i64) {
        let new = Anchor { at_ns, value };
        let mut index = self.after(at_ns);
        let anchors = self.kept();
        let left = index.checked_sub(1).and_then(|left| anchors.get(left));
        let covered = |anchor: Option<&Anchor>| anchor.is_some_and(|old| self.covers(*old, new));
        if covered(left) || covered(anchors.get(index)) {
            return;
        }
        index += self.forgotten;
        while index > self.forgotten && self.covers(new, self.anchors[index - 1]) {
            self.anchors.remove(index - 1);
            index -= 1;
        }
        while index < self.anchors.len() && self.covers(new, self.anchors[index]) {
            self.anchors.remove(index);
        }
        self.anchors.insert(index, new);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.kept().is_empty()
    }

    /// The value at a time; `None` without any.
    pub(super) fn at(&self, at_ns: u64) -> Option<i64> {
        let index = self.after(at_ns);
        let value = |anchor: &Anchor| {
            let lost_ns = loss_ns(self.rho_ppm, anchor.at_ns.abs_diff(at_ns));
            anchor.value.saturating_sub(lost_ns)
        };
        let anchors = self.kept();
        let left = index.checked_sub(1).map(|left| value(&anchors[left]));
        let right = anchors.get(index).map(value);
        left.max(right)
    }

    /// Drops what only times before `at_ns` need.
    pub(super) fn forget_before(&mut self, at_ns: u64) {
        let before = self.forgotten;
        while self.kept().get(1).is_some_and(|next| next.at_ns <= at_ns) {
            self.forgotten += 1;
        }
        let gone = self.forgotten - before;
        self.last.set(self.last.get().saturating_sub(gone));
        // Moved seldom enough that each is moved once on average.
        if self.forgotten > self.anchors.len() / 2 {
            self.anchors.drain(..self.forgotten);
            self.forgotten = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn times_that_no_clock_shows_lose_everything() {
        let mut envelope = Envelope::new(500);
        envelope.push(0, -5);
        assert_eq!(envelope.at(1_000_000), Some(-505));
        for at_ns in [1 << 62, i64::MAX as u64, 1 << 63, (1 << 63) + 1, u64::MAX] {
            let value = envelope.at(at_ns).expect("a value");
            assert!(value < -(1 << 61), "{value} at {at_ns}");
        }
        envelope.push(u64::MAX, i64::MIN);
        assert_eq!(envelope.at(u64::MAX), Some(i64::MIN));
    }

    proptest! {
        #[test]
        fn is_what_all_values_say(
            values in prop::collection::vec((0u64..3_000_000_000, -200_000i64..200_000), 1..200),
            asked in prop::collection::vec(0u64..3_000_000_000, 1..50),
            rho_ppm in prop_oneof![0u64..2_000, 0u64..400_000],
        ) {
            let mut envelope = Envelope::new(rho_ppm);
            values.iter().for_each(|(at, value)| envelope.push(*at, *value));
            for at in asked {
                let all = values.iter().map(|(t, value)| value - loss_ns(rho_ppm, t.abs_diff(at))).max();
                prop_assert_eq!(envelope.at(at), all);
            }
        }

        #[test]
        fn forgetting_changes_nothing_later(
            values in prop::collection::vec((0u64..3_000_000_000, -200_000i64..200_000), 1..200),
            from in 0u64..3_000_000_000,
            later in 0u64..1_000_000_000,
            more in prop::collection::vec((0u64..1_000_000_000, -200_000i64..200_000), 0..50),
        ) {
            let mut envelope = Envelope::new(500);
            values.iter().for_each(|(at, value)| envelope.push(*at, *value));
            let mut whole = envelope.clone();
            envelope.forget_before(from);
            prop_assert_eq!(envelope.at(from + later), whole.at(from + later));
            for (at, value) in more {
                envelope.push(from + at, value);
                whole.push(from + at, value);
                prop_assert_eq!(envelope.at(from + later), whole.at(from + later));
            }
        }
    }
}

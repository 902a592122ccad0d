//! The requests of the last seconds, in slots: what has left the window is forgotten a slot at a time.

use std::collections::VecDeque;

use nestrace_sums::histogram::{BUCKETS, bucket_of, upper_bound_ns};

use crate::expression::{Comparison, Limit, Relation, Statistic};

/// How often a condition is evaluated, in nanoseconds.
pub(crate) const TICK_NS: u64 = 100_000_000;
/// Slots of a window: one is a tick long in windows of up to ten seconds.
const MAX_SLOTS: u64 = 100;

/// What of a window has ended: latencies of one slot, or of all.
#[derive(Clone, Debug)]
struct Latencies {
    n: u64,
    /// Those on the lower side of the limit: exact, where the buckets are an eighth wide.
    low: u64,
    sum_ns: u128,
    max_ns: u64,
    /// Of percentiles only; else empty.
    buckets: Vec<u64>,
}

impl Latencies {
    fn new(has_buckets: bool) -> Self {
        let n_buckets = if has_buckets { BUCKETS } else { 0 };
        Self {
            n: 0,
            low: 0,
            sum_ns: 0,
            max_ns: 0,
            buckets: vec![0; n_buckets],
        }
    }

    fn add(&mut self, ns: u64, is_low: bool) {
        self.n = self.n.saturating_add(1);
        self.low = self.low.saturating_add(u64::from(is_low));
        self.sum_ns = self.sum_ns.saturating_add(u128::from(ns));
        self.max_ns = self.max_ns.max(ns);
        if let Some(bucket) = self.buckets.get_mut(bucket_of(ns)) {
            *bucket = bucket.saturating_add(1);
        }
    }

    fn join(&mut self, other: &Self) {
        self.n = self.n.saturating_add(other.n);
        self.low = self.low.saturating_add(other.low);
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns);
        for (to, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *to = to.saturating_add(*from);
        }
    }

    fn leave(&mut self, other: &Self) {
        self.n = self.n.saturating_sub(other.n);
        self.low = self.low.saturating_sub(other.low);
        self.sum_ns = self.sum_ns.saturating_sub(other.sum_ns);
        for (to, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *to = to.saturating_sub(*from);
        }
    }
}

/// The window of one comparison of latencies or counts.
pub(crate) struct Window {
    statistic: Statistic,
    relation: Relation,
    limit: Limit,
    ticks_per_slot: u64,
    ticks: u64,
    n_slots: usize,
    ended: VecDeque<Latencies>,
    /// Of all slots that have ended; its `max_ns` is not kept.
    all: Latencies,
    now: Latencies,
}

/// What a statistic is, and whether the comparison holds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Value {
    pub value: Option<Limit>,
    pub holds: bool,
}

impl Value {
    /// Of no request.
    pub const NONE: Self = Self {
        value: None,
        holds: false,
    };

    /// A value held against its limit. What has no value does not hold.
    pub fn of(value: Option<Limit>, relation: Relation, limit: Limit) -> Self {
        let holds = match (value, limit) {
            (Some(Limit::Time(value)), Limit::Time(limit))
            | (Some(Limit::Count(value)), Limit::Count(limit)) => relation.holds(value, limit),
            (Some(Limit::Rate(value)), Limit::Rate(limit)) => relation.holds(value, limit),
            _ => false,
        };
        Self { value, holds }
    }
}

impl Window {
    pub fn new(comparison: &Comparison) -> Self {
        let ticks = comparison.window_ns().div_ceil(TICK_NS).max(1);
        let ticks_per_slot = ticks.div_ceil(MAX_SLOTS);
        let n_slots = ticks.div_ceil(ticks_per_slot);
        let has_buckets = matches!(comparison.statistic, Statistic::P50 | Statistic::P99);
        Self {
            statistic: comparison.statistic,
            relation: comparison.relation,
            limit: comparison.limit,
            ticks_per_slot,
            ticks: 0,
            n_slots: usize::try_from(n_slots).unwrap_or(1),
            ended: VecDeque::new(),
            all: Latencies::new(has_buckets),
            now: Latencies::new(has_buckets),
        }
    }

    /// The length in nanoseconds: what was written, up to a whole slot.
    pub fn length_ns(&self) -> u64 {
        (self.n_slots as u64)
            .saturating_mul(self.ticks_per_slot)
            .saturating_mul(TICK_NS)
    }

    pub fn ended(&mut self, latency_ns: u64) {
        let is_low = match (self.limit, self.relation) {
            (Limit::Time(limit_ns), Relation::Above | Relation::AtMost) => latency_ns <= limit_ns,
            (Limit::Time(limit_ns), _) => latency_ns < limit_ns,
            _ => false,
        };
        self.now.add(latency_ns, is_low);
    }

    /// A tick is over. The value where a slot is over with it and the window has been watched for its whole length.
    pub fn tick(&mut self) -> Option<Value> {
        self.ticks += 1;
        if self.ticks < self.ticks_per_slot {
            return None;
        }
        self.ticks = 0;
        let has_buckets = !self.all.buckets.is_empty();
        let slot = std::mem::replace(&mut self.now, Latencies::new(has_buckets));
        self.all.join(&slot);
        self.ended.push_back(slot);
        if self.ended.len() > self.n_slots
            && let Some(gone) = self.ended.pop_front()
        {
            self.all.leave(&gone);
        }
        (self.ended.len() == self.n_slots).then(|| self.value())
    }

    fn value(&self) -> Value {
        let n = self.all.n;
        let compared = |value| Value::of(value, self.relation, self.limit);
        let of_some = |ns: u64| (n > 0).then_some(Limit::Time(ns));
        match self.statistic {
            Statistic::Count => compared(Some(Limit::Count(n))),
            Statistic::Rate => {
                let seconds = self.length_ns() as f64 / 1e9;
                compared(Some(Limit::Rate(n as f64 / seconds)))
            }
            Statistic::Max => compared(of_some(self.max_ns())),
            Statistic::Mean => {
                let mean_ns = self.all.sum_ns.checked_div(u128::from(n)).unwrap_or(0);
                compared(of_some(u64::try_from(mean_ns).unwrap_or(u64::MAX)))
            }
            Statistic::P50 => self.percentile(50),
            Statistic::P99 => self.percentile(99),
            Statistic::Oldest => compared(None),
        }
    }

    fn max_ns(&self) -> u64 {
        self.ended.iter().map(|slot| slot.max_ns).max().unwrap_or(0)
    }

    /// Whether it holds is exact: requests on either side of the limit are counted. The value is the upper bound of its
    /// bucket, which is at most an eighth too much.
    fn percentile(&self, percent: u64) -> Value {
        let n = self.all.n;
        if n == 0 {
            return Value::NONE;
        }
        let rank = n.saturating_mul(percent).div_ceil(100).max(1);
        let is_low = self.all.low >= rank;
        let holds = match self.relation {
            Relation::Above | Relation::AtLeast => !is_low,
            Relation::Below | Relation::AtMost => is_low,
        };
        let mut before = 0u64;
        let bucket = self.all.buckets.iter().position(|bucket| {
            before = before.saturating_add(*bucket);
            before >= rank
        });
        let bound_ns = bucket
            .and_then(upper_bound_ns)
            .map(|ns| ns.saturating_sub(1));
        let max_ns = self.max_ns();
        let mut value_ns = bound_ns.unwrap_or(max_ns).min(max_ns);
        if let Limit::Time(limit_ns) = self.limit {
            // The bucket that holds the limit lies on both sides of it.
            value_ns = match (self.relation, is_low) {
                (Relation::Above | Relation::AtMost, true) => value_ns.min(limit_ns),
                (_, true) => value_ns.min(limit_ns.saturating_sub(1)),
                (Relation::Above | Relation::AtMost, false) => {
                    value_ns.max(limit_ns.saturating_add(1))
                }
                (_, false) => value_ns.max(limit_ns),
            };
        }
        Value {
            value: Some(Limit::Time(value_ns)),
            holds,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Expression;

    fn window(text: &str) -> Window {
        let expression = Expression::parse(text).unwrap();
        Window::new(expression.comparisons()[0])
    }

    /// The value after one full window of these latencies in milliseconds.
    fn check(text: &str, latencies_ms: &[u64], expected: Option<Limit>, holds: bool) {
        let mut window = window(text);
        let mut last = None;
        for tick in 0..window.n_slots {
            if tick == 0 {
                for ms in latencies_ms {
                    window.ended(ms * 1_000_000);
                }
            }
            last = window.tick();
            assert_eq!(last.is_some(), tick + 1 == window.n_slots, "tick {tick}");
        }
        let last = last.unwrap();
        assert_eq!((last.value, last.holds), (expected, holds), "{text}");
    }

    #[test]
    fn each_statistic_is_what_its_name_says() {
        let ms = |ms: u64| Some(Limit::Time(ms * 1_000_000));
        let some: Vec<u64> = (1..=100).collect();
        check("max(any) > 99ms", &some, ms(100), true);
        check("max(any) > 100ms", &some, ms(100), false);
        check("max(any) >= 100ms", &some, ms(100), true);
        check(
            "mean(any) > 50ms",
            &some,
            Some(Limit::Time(50_500_000)),
            true,
        );
        check("count(any) >= 100", &some, Some(Limit::Count(100)), true);
        check(
            "rate(any) > 49 for 2s",
            &some,
            Some(Limit::Rate(50.0)),
            true,
        );
        check("rate(any) < 1", &[], Some(Limit::Rate(0.0)), true);
        check("count(any) < 1", &[], Some(Limit::Count(0)), true);
        for text in [
            "p99(any) > 1ms",
            "p99(any) < 1ms",
            "max(any) < 1ms",
            "mean(any) < 1ms",
        ] {
            check(text, &[], None, false);
        }
    }

    #[test]
    fn a_percentile_is_compared_exactly() {
        // 100 requests of 1 to 100 ms: the 99th is 99 ms, the 50th 50 ms.
        let some: Vec<u64> = (1..=100).collect();
        for (text, holds) in [
            ("p99(any) > 98ms", true),
            ("p99(any) > 99ms", false),
            ("p99(any) >= 99ms", true),
            ("p99(any) < 99ms", false),
            ("p99(any) <= 99ms", true),
            ("p50(any) > 49ms", true),
            ("p50(any) > 50ms", false),
        ] {
            let mut window = window(text);
            some.iter().for_each(|ms| window.ended(ms * 1_000_000));
            let last = (0..window.n_slots)
                .filter_map(|_| window.tick())
                .next_back();
            let last = last.unwrap();
            assert_eq!(last.holds, holds, "{text}");
            let Some(Limit::Time(ns)) = last.value else {
                panic!("{text}: {last:?}")
            };
            let exact = if text.starts_with("p99") { 99e6 } else { 50e6 };
            assert!(
                (exact..exact * 1.126).contains(&(ns as f64)),
                "{text}: {ns}"
            );
        }
    }

    #[test]
    fn what_has_left_the_window_is_forgotten() {
        let mut window = window("max(any) > 1ms for 300ms");
        let mut held = Vec::new();
        for tick in 0..10 {
            if tick == 3 {
                window.ended(5_000_000);
            }
            held.push(window.tick().is_some_and(|value| value.holds));
        }
        let expected: Vec<bool> = (0..10).map(|tick| (3..6).contains(&tick)).collect();
        assert_eq!(held, expected);
        assert_eq!(window.all.sum_ns, 0);
        assert!(window.ended.len() <= 3);
    }

    #[test]
    fn a_long_window_has_no_more_slots_than_a_short_one() {
        let window = window("count(any) > 1 for 3600s");
        assert_eq!((window.n_slots, window.ticks_per_slot), (100, 360));
        assert_eq!(window.length_ns(), 3_600_000_000_000);
    }

    proptest! {
        #[test]
        fn a_percentile_is_that_of_the_sorted_list(
            latencies in proptest::collection::vec(0u64..200_000, 1..200),
            limit in 0u64..200_000,
        ) {
            let mut sorted = latencies.clone();
            sorted.sort_unstable();
            let exact = sorted[(sorted.len() * 99).div_ceil(100) - 1];
            for (relation, holds) in [
                (">", exact > limit),
                (">=", exact >= limit),
                ("<", exact < limit),
                ("<=", exact <= limit),
            ] {
                let mut window = window(&format!("p99(any) {relation} {limit}ns for 100ms"));
                latencies.iter().for_each(|ns| window.ended(*ns));
                let value = window.tick().unwrap();
                prop_assert_eq!(value.holds, holds);
                let Some(Limit::Time(ns)) = value.value else { panic!() };
                prop_assert!(ns <= (exact + exact / 8).max(1 << 10));
            }
        }
    }
}

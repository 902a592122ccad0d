//! How many requests are at a device, weighted by time.

use std::collections::VecDeque;

use crate::measure::over_time::OverTime;
use crate::measure::series::FIRST_STEP_NS;
use crate::result::analysis::QueueDepth;
use crate::result::series::{Period, Series};
use crate::result::sums::DepthSums;

/// Requests between D and C, up to the last change of their number.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct DepthMeter {
    depth: u64,
    max: u64,
    since_ns: u64,
    /// Sum of depth × time.
    request_ns: u128,
    /// Time with at least one.
    busy_ns: u64,
}

impl DepthMeter {
    #[inline]
    fn advance(&mut self, ts_ns: u64) {
        let passed = ts_ns.saturating_sub(self.since_ns);
        if self.depth > 0 {
            self.request_ns += u128::from(self.depth) * u128::from(passed);
            self.busy_ns = self.busy_ns.saturating_add(passed);
        }
        self.since_ns = self.since_ns.max(ts_ns);
    }

    #[inline]
    pub(crate) fn enter(&mut self, ts_ns: u64) {
        self.advance(ts_ns);
        self.depth += 1;
        self.max = self.max.max(self.depth);
    }

    #[inline]
    pub(crate) fn leave(&mut self, ts_ns: u64) {
        self.advance(ts_ns);
        self.depth = self.depth.saturating_sub(1);
    }

    /// How many there are.
    #[inline]
    pub(crate) const fn depth(&self) -> u64 {
        self.depth
    }

    /// When that changed at last.
    #[inline]
    pub(crate) const fn since_ns(&self) -> u64 {
        self.since_ns
    }

    /// The same at a later time, up to which nothing changes.
    pub(crate) fn until(mut self, ts_ns: u64) -> Self {
        self.advance(ts_ns);
        self
    }

    /// What came since `earlier`.
    pub(crate) fn after(self, earlier: Self) -> DepthSums {
        let request_ns = self.request_ns.saturating_sub(earlier.request_ns);
        DepthSums {
            request_ns: u64::try_from(request_ns).unwrap_or(u64::MAX),
            busy_ns: self.busy_ns.saturating_sub(earlier.busy_ns),
        }
    }

    /// Sum of depth × time, and time with at least one, up to `ts_ns`.
    pub(crate) fn so_far(&mut self, ts_ns: u64) -> (u128, u64) {
        self.advance(ts_ns);
        (self.request_ns, self.busy_ns)
    }

    pub(crate) fn finish(&mut self, end_ns: u64, duration_ns: u64) -> QueueDepth {
        self.advance(end_ns);
        if duration_ns == 0 {
            return QueueDepth {
                max: self.max,
                ..QueueDepth::default()
            };
        }
        let duration = duration_ns as f64;
        QueueDepth {
            mean: self.request_ns as f64 / duration,
            max: self.max,
            busy_share: (self.busy_ns as f64 / duration).min(1.0),
            busy_ns: self.busy_ns,
        }
    }
}

/// The depth of requests that are known by their whole interval only (light recordings), and of bios on
/// devices without requests, which are at the device from Q on. They arrive in the order of their ends, so a late, long one still counts for those it covers.
#[derive(Debug)]
pub(crate) struct IntervalDepth {
    request_ns: u128,
    max: u64,
    /// Start, end, and how many requests were there at the start.
    recent: VecDeque<(u64, u64, u64)>,
    /// Disjoint busy spans, oldest first; those that fell out are summed in `settled_ns`.
    spans: VecDeque<(u64, u64)>,
    settled_ns: u64,
    sums: OverTime<DepthSums>,
    last_ns: u64,
}

impl Default for IntervalDepth {
    fn default() -> Self {
        Self {
            request_ns: 0,
            max: 0,
            recent: VecDeque::new(),
            spans: VecDeque::new(),
            settled_ns: 0,
            sums: OverTime::with_step(FIRST_STEP_NS),
            last_ns: 0,
        }
    }
}

impl IntervalDepth {
    /// Requests and spans kept to meet a late one: several times the depth of any queue.
    const KEPT: usize = 512;

    pub(crate) fn interval(&mut self, start_ns: u64, end_ns: u64) {
        // Of a damaged recording, one may end before it began.
        let end_ns = end_ns.max(start_ns);
        self.request_ns += u128::from(end_ns - start_ns);
        self.last_ns = self.last_ns.max(end_ns);
        self.spread((start_ns, end_ns), |sums| &mut sums.request_ns);
        self.cover(start_ns, end_ns);
        let mut depth = 1;
        for (start, end, there) in &mut self.recent {
            if *start >= start_ns && *start < end_ns {
                *there += 1;
                self.max = self.max.max(*there);
            } else if *end > start_ns {
                depth += 1;
            }
        }
        self.max = self.max.max(depth);
        self.recent.push_back((start_ns, end_ns, depth));
        if self.recent.len() > Self::KEPT {
            self.recent.pop_front();
        }
    }

    fn cover(&mut self, mut start_ns: u64, mut end_ns: u64) {
        // What of it no other one covers, from its end backwards.
        let mut fresh_until_ns = end_ns;
        while let Some((start, end)) = self.spans.back().copied() {
            if end < start_ns {
                break;
            }
            self.spread((end, fresh_until_ns), |sums| &mut sums.busy_ns);
            fresh_until_ns = fresh_until_ns.min(start);
            start_ns = start_ns.min(start);
            end_ns = end_ns.max(end);
            self.spans.pop_back();
        }
        self.spread((start_ns, fresh_until_ns), |sums| &mut sums.busy_ns);
        self.spans.push_back((start_ns, end_ns));
        if self.spans.len() > Self::KEPT
            && let Some((start, end)) = self.spans.pop_front()
        {
            self.settled_ns = self.settled_ns.saturating_add(end - start);
        }
    }

    /// Adds a stretch of time to what is counted by time.
    fn spread(&mut self, (from_ns, to_ns): (u64, u64), sum: impl Fn(&mut DepthSums) -> &mut u64) {
        if from_ns >= to_ns {
            return;
        }
        // Slots are never too short for its end then.
        self.sums.at(from_ns);
        self.sums.at(to_ns);
        let mut at_ns = from_ns;
        while at_ns < to_ns {
            let (sums, until_ns) = self.sums.at_until(at_ns);
            let until_ns = until_ns.clamp(at_ns + 1, to_ns);
            let sum = sum(sums);
            *sum = sum.saturating_add(until_ns - at_ns);
            at_ns = until_ns;
        }
    }

    /// The sums of each stretch, from the first start to the last end.
    pub(crate) fn series(&self) -> Series<DepthSums> {
        let step_ns = self.sums.step_ns();
        let period = |from_ns: u64| Period {
            from_ns,
            ns: step_ns.min(self.last_ns.saturating_sub(from_ns)),
        };
        let slots = self.sums.slots();
        Series {
            stretches: slots
                .map(|(from_ns, sums)| (period(from_ns), *sums))
                .collect(),
        }
    }

    pub(crate) fn finish(&self, duration_ns: u64) -> QueueDepth {
        if duration_ns == 0 {
            return QueueDepth {
                max: self.max,
                ..QueueDepth::default()
            };
        }
        let lasted = self.spans.iter().map(|(start, end)| end - start);
        let busy_ns = lasted.fold(self.settled_ns, u64::saturating_add);
        QueueDepth {
            mean: self.request_ns as f64 / duration_ns as f64,
            max: self.max,
            busy_share: (busy_ns as f64 / duration_ns as f64).min(1.0),
            busy_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn sums_by_time_are_those_of_the_whole(
            mut ends in prop::collection::vec((0u64..3_000_000_000, 1u64..200_000_000), 1..80)
        ) {
            ends.sort_unstable();
            let mut depth = IntervalDepth::default();
            ends.iter().for_each(|(end, took)| depth.interval(end.saturating_sub(*took), *end));
            let series = depth.series();
            let busy: u64 = series.stretches.iter().map(|(_, sums)| sums.busy_ns).sum();
            let request: u64 = series.stretches.iter().map(|(_, sums)| sums.request_ns).sum();
            prop_assert!(series.stretches.len() <= 64);
            prop_assert_eq!(busy, depth.finish(1).busy_ns);
            prop_assert_eq!(u128::from(request), depth.request_ns);
        }

        #[test]
        fn intervals_and_edges_agree(ios in prop::collection::vec((0u64..1000, 1u64..200), 1..80)) {
            let mut edges: Vec<(u64, i8)> = ios.iter().flat_map(|(s, l)| [(*s, 1), (s + l, -1)]).collect();
            edges.sort_unstable();
            let mut by_edges = DepthMeter::default();
            for (ts, step) in edges {
                if step > 0 { by_edges.enter(ts) } else { by_edges.leave(ts) }
            }
            let mut ends: Vec<(u64, u64)> = ios.iter().map(|(s, l)| (s + l, *s)).collect();
            ends.sort_unstable();
            let mut by_interval = IntervalDepth::default();
            ends.iter().for_each(|(end, start)| by_interval.interval(*start, *end));
            let depth = by_interval.finish(1200);
            prop_assert_eq!(by_edges.finish(1200, 1200), depth);
            let series = by_interval.series();
            let sum = |of: fn(&DepthSums) -> u64| -> u64 {
                series.stretches.iter().map(|(_, sums)| of(sums)).sum()
            };
            prop_assert_eq!(u128::from(sum(|sums| sums.request_ns)), by_interval.request_ns);
            prop_assert_eq!(sum(|sums| sums.busy_ns), depth.busy_ns);
        }
    }
}

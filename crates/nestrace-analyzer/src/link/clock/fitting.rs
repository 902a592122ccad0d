//! Whether any of many host requests of one key lies in a window: asked for each of as many guest requests.

use super::corridor::Window;
use super::request::HostRequest;
use crate::model::clocks::HostBound;

/// Host requests in the order of their starts, with what decides over a stretch of them.
///
/// A window has three sides: start, end and length. Of what starts early enough in it, whatever is short
/// enough ends in time; of what starts later, whatever ends in time is short enough. So two questions for a
/// minimum answer it, each in O(log n).
#[derive(Debug)]
pub(super) struct Fitting {
    starts: Vec<HostBound>,
    /// Of this one and all after it the earliest end.
    earliest_end: Vec<HostBound>,
    /// Shortest of stretches: a binary tree in an array, the leaves in its second half.
    shortest: Vec<i64>,
}

impl Fitting {
    pub(super) fn new<'a>(hosts: impl Iterator<Item = &'a HostRequest>) -> Self {
        let signed = |host: &HostRequest| (host.start_ns.bound(), host.end_ns.bound());
        let mut times: Vec<(HostBound, HostBound)> = hosts.map(signed).collect();
        times.sort_unstable();
        let mut earliest_end: Vec<HostBound> = times.iter().map(|(_, end)| *end).collect();
        for i in (1..earliest_end.len()).rev() {
            earliest_end[i - 1] = earliest_end[i - 1].min(earliest_end[i]);
        }
        let mut shortest = vec![i64::MAX; times.len()];
        shortest.extend(times.iter().map(|(start, end)| end.0 - start.0));
        for i in (1..times.len()).rev() {
            shortest[i] = shortest[2 * i].min(shortest[2 * i + 1]);
        }
        Self {
            starts: times.iter().map(|(start, _)| *start).collect(),
            earliest_end,
            shortest,
        }
    }

    /// Whether one of them lies in the window.
    pub(super) fn any_in(&self, window: Window) -> bool {
        #[cfg(test)]
        super::effort::spend(2 + 4 * u64::from(usize::BITS - self.starts.len().leading_zeros()));
        let from = self.first_from(window.from_ns);
        // What starts here or later and ends in time is short enough.
        let late_ns = window.to_ns.saturating_sub(window.longest_ns);
        let late = self.first_from(late_ns).max(from);
        let ends = self.earliest_end.get(late);
        ends.is_some_and(|end| *end <= window.to_ns)
            || from < late && self.shortest_of(from, late) <= window.longest_ns
    }

    /// The first that starts at this time or later.
    fn first_from(&self, at_ns: HostBound) -> usize {
        self.starts.partition_point(|start| *start < at_ns)
    }

    /// Shortest of `from..to`, which is not empty.
    fn shortest_of(&self, from: usize, to: usize) -> i64 {
        let n = self.starts.len();
        let (mut from, mut to) = (from + n, to + n);
        let mut shortest = i64::MAX;
        while from < to {
            if from % 2 == 1 {
                shortest = shortest.min(self.shortest[from]);
                from += 1;
            }
            if to % 2 == 1 {
                to -= 1;
                shortest = shortest.min(self.shortest[to]);
            }
            (from, to) = (from / 2, to / 2);
        }
        shortest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::clock::{Key, OpClass};
    use crate::model::clocks::HostNs;
    use proptest::prelude::*;

    fn host(start_ns: u64, length_ns: u64) -> HostRequest {
        HostRequest {
            serial: 0,
            disk: 0,
            key: Key {
                class: OpClass::Flush,
                offset: 0,
                bytes: 0,
            },
            buffer: 0,
            lane: HostRequest::ANY_LANE,
            start_ns: HostNs(start_ns),
            end_ns: HostNs(start_ns + length_ns),
        }
    }

    fn side() -> impl Strategy<Value = i64> {
        prop_oneof![
            8 => -20i64..120,
            1 => Just(i64::MIN),
            1 => Just(i64::MAX),
        ]
    }

    proptest! {
        #[test]
        fn is_what_looking_at_each_says(
            hosts in prop::collection::vec((0u64..100, 0u64..40), 0..40),
            windows in prop::collection::vec((side(), side(), prop_oneof![8 => 0i64..60, 1 => Just(i64::MAX)]), 1..40),
        ) {
            let hosts: Vec<_> = hosts.into_iter().map(|(start, length)| host(start, length)).collect();
            let fitting = Fitting::new(hosts.iter());
            for (from_ns, to_ns, longest_ns) in windows {
                let window = Window { from_ns: HostBound(from_ns), to_ns: HostBound(to_ns), longest_ns };
                prop_assert_eq!(fitting.any_in(window), hosts.iter().any(|host| window.holds(host)), "{:?}", window);
            }
        }
    }
}

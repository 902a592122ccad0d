//! One stream in time order out of one queue per processor.
//!
//! Each ring is nearly in order (an interrupt between a probe's stamp and its reservation swaps
//! neighbours); the rings among themselves are not. Records younger than the horizon wait, because a
//! slower processor may still deliver an older one.

use std::collections::VecDeque;

use nestrace_abi::OwnedRecord;

/// Queues of records that wait for their turn.
pub struct Merge {
    queues: Vec<VecDeque<OwnedRecord>>,
    last_ns: u64,
    late: u64,
}

impl Merge {
    /// One queue for each of `n` rings.
    #[must_use]
    pub fn new(n: usize) -> Self {
        Self {
            queues: vec![VecDeque::new(); n],
            last_ns: 0,
            late: 0,
        }
    }

    /// Adds a record of ring `ring`, keeping that queue in order.
    pub fn push(&mut self, ring: usize, record: OwnedRecord) {
        let Some(queue) = self.queues.get_mut(ring) else {
            return;
        };
        let mut at = queue.len();
        while at > 0
            && queue
                .get(at - 1)
                .is_some_and(|other| other.record.ts_ns > record.record.ts_ns)
        {
            at -= 1;
        }
        if at == queue.len() {
            queue.push_back(record);
        } else {
            queue.insert(at, record);
        }
    }

    /// Hands over, in time order, what is older than `horizon_ns`.
    pub fn drain_until(&mut self, horizon_ns: u64, mut sink: impl FnMut(&OwnedRecord)) {
        loop {
            let oldest = self
                .queues
                .iter()
                .enumerate()
                .filter_map(|(index, queue)| Some((queue.front()?.record.ts_ns, index)))
                .min();
            let Some((ts_ns, index)) = oldest else { return };
            if ts_ns >= horizon_ns {
                return;
            }
            // The next-oldest head of the other rings bounds a run that needs no further comparison.
            let bound = self
                .queues
                .iter()
                .enumerate()
                .filter(|(other, _)| *other != index)
                .filter_map(|(_, queue)| Some(queue.front()?.record.ts_ns))
                .min()
                .unwrap_or(u64::MAX)
                .min(horizon_ns.saturating_sub(1));
            let queue = &mut self.queues[index];
            while let Some(record) = queue.front() {
                if record.record.ts_ns > bound {
                    break;
                }
                self.late += u64::from(record.record.ts_ns < self.last_ns);
                self.last_ns = self.last_ns.max(record.record.ts_ns);
                sink(record);
                queue.pop_front();
            }
        }
    }

    /// Records that came after a younger one had been handed over.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.late
    }

    /// Records that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use nestrace_abi::Record;
    use proptest::prelude::*;

    use super::*;

    fn at(ts_ns: u64) -> OwnedRecord {
        OwnedRecord {
            record: Record {
                ts_ns,
                ..Record::default()
            },
            ..OwnedRecord::default()
        }
    }

    #[test]
    fn records_at_the_horizon_wait() {
        let mut merge = Merge::new(2);
        for ts in [10, 30, 20] {
            merge.push(0, at(ts));
        }
        merge.push(1, at(15));
        let mut seen = Vec::new();
        merge.drain_until(30, |r| seen.push(r.record.ts_ns));
        assert_eq!(
            (seen, merge.waiting(), merge.late()),
            (vec![10, 15, 20], 1, 0)
        );
    }

    #[test]
    fn a_late_record_is_counted_and_still_handed_over() {
        let mut merge = Merge::new(1);
        merge.push(0, at(10));
        merge.drain_until(20, |_| {});
        merge.push(0, at(5));
        let mut seen = Vec::new();
        merge.drain_until(20, |r| seen.push(r.record.ts_ns));
        assert_eq!((seen, merge.late()), (vec![5], 1));
    }

    proptest! {
        #[test]
        fn any_interleaving_comes_out_sorted(times in prop::collection::vec((0usize..4, 0u64..1000), 0..300)) {
            let mut merge = Merge::new(4);
            for (ring, ts) in &times {
                merge.push(*ring, at(*ts));
            }
            let mut seen = Vec::new();
            merge.drain_until(u64::MAX, |r| seen.push(r.record.ts_ns));
            let mut expected: Vec<u64> = times.iter().map(|(_, ts)| *ts).collect();
            expected.sort_unstable();
            prop_assert_eq!(seen, expected);
        }
    }
}

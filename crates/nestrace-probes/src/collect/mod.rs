//! From rings to a stream of events: drain, put in order, translate.

pub mod merge;
pub mod translate;

use aya::maps::{MapData, RingBuf};
use nestrace_abi::{OwnedRecord, Owner, Record};
use nestrace_trace::Event;
use nestrace_wire::kernel_buffers::Translation;

use merge::Merge;

/// How long a record may take from its stamp to its ring before it counts as late. A probe of QEMU
/// can be preempted between the two.
pub const SLACK_NS: u64 = 25_000_000;
/// Records taken from a ring before the others have their turn. After a pause the rings are full; taken
/// as a whole, they would need their size twice over, and no cache would hold what is put in order.
const PORTION: usize = 8192;

/// Drains rings into one ordered sequence of events.
pub struct Collector {
    merge: Merge,
    translation: Translation,
    malformed: u64,
}

impl Collector {
    /// For so many rings.
    #[must_use]
    pub fn new(n_rings: usize, translation: Translation) -> Self {
        Self {
            merge: Merge::new(n_rings),
            translation,
            malformed: 0,
        }
    }

    /// Takes what the rings hold, and hands over what is old enough to be in order. `now_ns` is
    /// `CLOCK_MONOTONIC` read *before* this call; what is stamped later may wait for the next one.
    pub fn drain(&mut self, rings: &mut [RingBuf<MapData>], now_ns: u64, sink: impl FnMut(Event)) {
        self.drain_portions(rings, now_ns, now_ns.saturating_sub(SLACK_NS), sink);
    }

    /// Takes everything and hands over everything: the last drain.
    pub fn drain_all(&mut self, rings: &mut [RingBuf<MapData>], sink: impl FnMut(Event)) {
        self.drain_portions(rings, u64::MAX, u64::MAX, sink);
    }

    fn drain_portions(
        &mut self,
        rings: &mut [RingBuf<MapData>],
        until_ns: u64,
        horizon_ns: u64,
        mut sink: impl FnMut(Event),
    ) {
        while let Some(last_ns) = self.take(rings, until_ns) {
            let in_order_ns = last_ns.saturating_sub(SLACK_NS);
            self.hand_over(in_order_ns.min(horizon_ns), &mut sink);
        }
        self.hand_over(horizon_ns, sink);
    }

    /// Takes at most [`PORTION`] records from each ring, none after the first that is stamped
    /// `until_ns` or later. `None`: that was all. Otherwise the stamp that all rings with more have
    /// come to.
    fn take(&mut self, rings: &mut [RingBuf<MapData>], until_ns: u64) -> Option<u64> {
        let mut come_to = None;
        for (index, ring) in rings.iter_mut().enumerate() {
            let mut last_ns = 0;
            let mut n_taken = 0;
            while n_taken < PORTION && last_ns < until_ns {
                let Some(item) = ring.next() else { break };
                n_taken += 1;
                match parse(&item) {
                    Some(record) => {
                        last_ns = last_ns.max(record.record.ts_ns);
                        self.merge.push(index, record);
                    }
                    None => self.malformed += 1,
                }
            }
            if n_taken == PORTION && last_ns < until_ns {
                come_to = Some(come_to.map_or(last_ns, |other: u64| other.min(last_ns)));
            }
        }
        come_to
    }

    fn hand_over(&mut self, horizon_ns: u64, mut sink: impl FnMut(Event)) {
        let translation = &self.translation;
        self.merge
            .drain_until(horizon_ns, |record| sink(translation.event(record)));
    }

    /// Events that were handed over after a younger one.
    #[must_use]
    pub fn late(&self) -> u64 {
        self.merge.late()
    }

    /// Ring entries of a length that no record has.
    #[must_use]
    pub fn malformed(&self) -> u64 {
        self.malformed
    }
}

/// A ring entry is a [`Record`], or a record and its [`Owner`].
fn parse(bytes: &[u8]) -> Option<OwnedRecord> {
    match bytes.len() {
        n if n == size_of::<Record>() => {
            // SAFETY: the length was checked, every bit pattern is a valid record of integers, and the
            // read does not assume alignment.
            let record = unsafe { bytes.as_ptr().cast::<Record>().read_unaligned() };
            Some(OwnedRecord {
                record,
                owner: Owner::default(),
            })
        }
        n if n == size_of::<OwnedRecord>() => {
            // SAFETY: as above.
            Some(unsafe { bytes.as_ptr().cast::<OwnedRecord>().read_unaligned() })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_records_parse() {
        for (length, parses) in [
            (0, false),
            (55, false),
            (56, true),
            (57, false),
            (112, true),
            (113, false),
        ] {
            assert_eq!(
                parse(&vec![1u8; length]).is_some(),
                parses,
                "{length} bytes"
            );
        }
        let parsed = parse(&[1u8; 56]).unwrap();
        assert_eq!((parsed.record.kind, parsed.owner), (1, Owner::default()));
    }
}

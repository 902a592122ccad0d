//! Sums of a guest's disks: what an agent sends once a second instead of events, and the bounds of it.
//!
//! Sums count from the beginning of a session, so a message that is missing costs nothing but its moment.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use nestrace_abi::histogram::BUCKETS;
use nestrace_abi::maps::SUM_OPS;
use serde::{Deserialize, Serialize};

/// Disks of one message: with all buckets of all operations they are shorter than [`crate::MAX_JSON`].
pub const MAX_DISKS: usize = 8;

/// Asks an agent for sums. An agent that does not know it answers pings alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AskSums {
    /// [`crate::VERSION`] of the recorder.
    pub protocol: u16,
    /// A number that the answer, a Hello, repeats.
    pub session: u64,
}

/// What disks have done since the session began.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sums {
    /// Requests that could not be summed.
    pub lost: u64,
    /// At most [`MAX_DISKS`].
    pub disks: Vec<DiskSums>,
}

/// What one disk has done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskSums {
    /// Device number of the disk, as the Hello lists it.
    pub dev: u32,
    /// Reads, writes, flushes, discards, in the order of [`nestrace_abi::maps::sum_op`]. What is missing at the end is 0.
    pub ops: Vec<OpSums>,
}

/// Requests of one operation, from their start to their completion in the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct OpSums {
    /// Bytes of what has ended.
    pub bytes: u64,
    /// Latencies together, in nanoseconds.
    pub sum_ns: u64,
    /// The longest since the message before, in nanoseconds.
    pub max_ns: u64,
    /// How many are in flight.
    pub in_flight: u64,
    /// How long ago the oldest of them was issued, in nanoseconds; 0 without any.
    pub oldest_ns: u64,
    /// What has ended in each bucket of [`nestrace_abi::histogram`]: its number and how many, those without any left out.
    pub buckets: Vec<(u8, u64)>,
}

impl Sums {
    /// Whether it is what an agent may send: no list is longer than it can be, and buckets follow one another.
    #[must_use]
    pub fn is_bounded(&self) -> bool {
        self.disks.len() <= MAX_DISKS && self.disks.iter().all(DiskSums::is_bounded)
    }
}

impl DiskSums {
    fn is_bounded(&self) -> bool {
        self.ops.len() <= SUM_OPS && self.ops.iter().all(OpSums::is_bounded)
    }
}

impl OpSums {
    /// Of all buckets of a histogram, those in which something has ended.
    #[must_use]
    pub fn buckets_of(all: &[u64]) -> Vec<(u8, u64)> {
        let numbered = (0..=u8::MAX).zip(all);
        numbered
            .filter(|(_, n)| **n > 0)
            .map(|(bucket, n)| (bucket, *n))
            .collect()
    }

    fn is_bounded(&self) -> bool {
        let numbers = self.buckets.iter().map(|(bucket, _)| usize::from(*bucket));
        numbers.clone().is_sorted_by(|one, next| one < next) && numbers.max() < Some(BUCKETS)
    }
}

const _: () = assert!(
    BUCKETS <= u8::MAX as usize,
    "a bucket's number has one byte"
);

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::indexing_slicing)]

    use super::*;
    use crate::{AgentMessage, FrameReader, MAX_JSON, MessageError};

    fn through(sums: Sums) -> Result<Option<Sums>, MessageError> {
        let mut bytes = Vec::new();
        AgentMessage::Sums(sums).encode_to(&mut bytes);
        let mut reader = FrameReader::new();
        assert_eq!(reader.feed(&bytes), bytes.len());
        let frame = reader.next_frame().unwrap().unwrap();
        Ok(match AgentMessage::parse(frame)? {
            Some(AgentMessage::Sums(sums)) => Some(sums),
            _ => None,
        })
    }

    fn of(buckets: Vec<(u8, u64)>) -> Sums {
        let op = OpSums {
            buckets,
            ..OpSums::default()
        };
        let disk = DiskSums {
            dev: 1,
            ops: vec![op],
        };
        Sums {
            lost: 0,
            disks: vec![disk],
        }
    }

    #[test]
    fn the_longest_message_fits() {
        let op = OpSums {
            bytes: u64::MAX,
            sum_ns: u64::MAX,
            max_ns: u64::MAX,
            in_flight: u64::MAX,
            oldest_ns: u64::MAX,
            buckets: OpSums::buckets_of(&[u64::MAX; BUCKETS]),
        };
        assert_eq!(op.buckets.len(), BUCKETS);
        let disk = DiskSums {
            dev: u32::MAX,
            ops: vec![op; SUM_OPS],
        };
        let sums = Sums {
            lost: u64::MAX,
            disks: vec![disk; MAX_DISKS],
        };
        assert!(serde_json::to_vec(&sums).unwrap().len() <= MAX_JSON);
        assert_eq!(through(sums.clone()).unwrap(), Some(sums));
    }

    #[test]
    fn what_no_agent_sends_is_refused() {
        let last = u8::try_from(BUCKETS - 1).unwrap();
        let good = [vec![], vec![(0, 1)], vec![(0, 0), (last, u64::MAX)]];
        for buckets in good {
            assert!(through(of(buckets.clone())).is_ok(), "{buckets:?}");
        }
        let bad = [
            vec![(last + 1, 1)],
            vec![(3, 1), (3, 1)],
            vec![(4, 1), (3, 1)],
        ];
        for buckets in bad {
            assert!(through(of(buckets.clone())).is_err(), "{buckets:?}");
        }
        let disk = DiskSums::default();
        let many = Sums {
            lost: 0,
            disks: vec![disk; MAX_DISKS + 1],
        };
        assert!(through(many).is_err());
        let mut ops = of(Vec::new());
        ops.disks[0].ops = vec![OpSums::default(); SUM_OPS + 1];
        assert!(through(ops).is_err());
    }
}

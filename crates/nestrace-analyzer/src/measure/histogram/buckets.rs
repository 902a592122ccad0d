//! Counts of a distribution's buckets.

use super::BUCKETS;

/// The buckets of one power of two. A sample touches one of them, wherever that is: they are half as large as the counts that
/// they may come to hold, so that more of them lie in a processor's cache.
#[derive(Clone, Debug)]
pub(super) enum Buckets {
    /// There was no sample.
    Empty,
    Narrow(Box<[u32; BUCKETS]>),
    /// One of them passed what 32 bits hold.
    Wide(Box<[u64; BUCKETS]>),
}

impl Buckets {
    /// Counts a sample, if there is memory for it and 32 bits are enough; whether it was counted.
    #[inline]
    pub(super) fn count(&mut self, bucket: usize) -> bool {
        if let Self::Narrow(counts) = self
            && let Some(more) = counts[bucket].checked_add(1)
        {
            counts[bucket] = more;
            return true;
        }
        false
    }

    /// Counts `n` samples.
    pub(super) fn add(&mut self, bucket: usize, n: u64) {
        if let Self::Empty = self {
            *self = Self::Narrow(Box::new([0; BUCKETS]));
        }
        if let Self::Narrow(counts) = self {
            if let Ok(sum) = u32::try_from(u64::from(counts[bucket]) + n) {
                counts[bucket] = sum;
                return;
            }
            *self = Self::Wide(Box::new(counts.map(u64::from)));
        }
        if let Self::Wide(counts) = self {
            counts[bucket] += n;
        }
    }

    /// Samples in a bucket.
    #[inline]
    pub(super) fn get(&self, bucket: usize) -> u64 {
        match self {
            Self::Empty => 0,
            Self::Narrow(counts) => counts[bucket].into(),
            Self::Wide(counts) => counts[bucket],
        }
    }

    /// Buckets that hold any samples, and how many.
    pub(super) fn filled(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let last = match self {
            Self::Empty => 0,
            Self::Narrow(_) | Self::Wide(_) => BUCKETS,
        };
        let counts = (0..last).map(|bucket| (bucket, self.get(bucket)));
        counts.filter(|(_, n)| *n > 0)
    }
}

//! The log-linear histogram that the probes keep where they sum instead of sending events: fixed bounds, the same for each disk,
//! operation and layer.

/// log2 of the buckets of one power of two: a bucket is at most an eighth wide.
pub const BUCKET_BITS: u32 = 3;
/// log2 of the first power of two that has buckets of its own; what is shorter (1,024 ns) shares the first bucket.
pub const FIRST_POWER: u32 = 10;
/// Powers of two with buckets of their own, from 1,024 ns to 275 s; what is longer shares the last bucket.
pub const POWERS: u32 = 28;
/// Buckets of a histogram: one for what is shorter, those of each power, one for what is longer.
pub const BUCKETS: usize = 2 + ((POWERS as usize) << BUCKET_BITS);

/// The bucket of a latency in nanoseconds.
#[must_use]
#[inline(always)]
pub const fn bucket_of(ns: u64) -> usize {
    let power = 63_u32.saturating_sub(ns.leading_zeros());
    if power < FIRST_POWER {
        return 0;
    }
    if power >= FIRST_POWER + POWERS {
        return BUCKETS - 1;
    }
    let within = (ns >> (power - BUCKET_BITS)) & ((1 << BUCKET_BITS) - 1);
    1 + (((power - FIRST_POWER) as usize) << BUCKET_BITS) + within as usize
}

/// The upper bound of a bucket in nanoseconds, which no latency in it reaches; `None` for the last one, which has no bound.
#[must_use]
pub fn upper_bound_ns(bucket: usize) -> Option<u64> {
    let Some(index) = bucket.checked_sub(1) else {
        return Some(1 << FIRST_POWER);
    };
    if bucket >= BUCKETS - 1 {
        return None;
    }
    let power = FIRST_POWER + u32::try_from(index >> BUCKET_BITS).ok()?;
    let within = (index & ((1 << BUCKET_BITS) - 1)) as u64;
    Some((1 << power) + ((within + 1) << (power - BUCKET_BITS)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bucket_ends_where_the_next_begins() {
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(u64::MAX), BUCKETS - 1);
        for bucket in 0..BUCKETS - 1 {
            let bound = upper_bound_ns(bucket).unwrap();
            assert_eq!(bucket_of(bound - 1), bucket, "below {bound}");
            assert_eq!(bucket_of(bound), bucket + 1, "at {bound}");
        }
    }
}

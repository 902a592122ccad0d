//! Prometheus' native buckets of a histogram.
//!
//! The bounds of native buckets are powers of 2^(2^-schema) seconds; those of the probes divide each power of two of nanoseconds
//! into eight equal parts. No bound is in both, so a bucket of the probes goes as a whole to the native bucket that its
//! geometric middle is in. Nothing is split, so counters only grow, and nothing is lost: the native buckets add up to the count.

use nestrace_abi::histogram::{BUCKETS, FIRST_POWER, upper_bound_ns};

use crate::series::counts;
use crate::snapshot::LayerSums;

/// 16 buckets for a power of two: the coarsest schema with narrower buckets than the probes, so that no two share one.
pub const SCHEMA: i8 = 4;
/// What is shorter counts in the zero bucket: it is the first bucket of the probes.
pub const ZERO_THRESHOLD_NS: u64 = 1 << FIRST_POWER;
/// Empty buckets that are written out, rather than a further span begun: as Prometheus' own libraries do.
const MAX_GAP: i32 = 2;

/// Native buckets that follow one another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Buckets between this one and the one before; of the first one its index.
    pub offset: i32,
    /// Buckets in it.
    pub length: u32,
}

/// The native buckets of a histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Native {
    /// Requests that were shorter than [`ZERO_THRESHOLD_NS`].
    pub zero_count: u64,
    /// Which buckets there are.
    pub spans: Vec<Span>,
    /// The requests in the first bucket, then how many more are in each than in the one before.
    pub deltas: Vec<i64>,
}

impl Native {
    /// Of the buckets of the probes.
    pub fn of(sums: &LayerSums) -> Self {
        let mut native = Self::default();
        let mut next = 0;
        let mut before = 0;
        for (bucket, n) in counts(sums).enumerate().filter(|(_, n)| *n > 0) {
            let Some(index) = index_of(bucket) else {
                native.zero_count += n;
                continue;
            };
            let gap = index - next;
            match native.spans.last_mut() {
                Some(span) if gap <= MAX_GAP => {
                    for _ in 0..gap {
                        native.deltas.push(-before);
                        before = 0;
                    }
                    span.length += gap.unsigned_abs() + 1;
                }
                _ => native.spans.push(Span {
                    offset: gap,
                    length: 1,
                }),
            }
            let n = n.cast_signed();
            native.deltas.push(n - before);
            before = n;
            next = index + 1;
        }
        native
    }
}

/// The native bucket that a bucket of the probes goes to; none of the first one, which is the zero bucket. The last one, which has
/// no upper bound, goes to the first native bucket that is longer than all others.
fn index_of(bucket: usize) -> Option<i32> {
    let log2_of = |ns: u64| (ns as f64 / 1e9).log2();
    let lower = log2_of(upper_bound_ns(bucket.checked_sub(1)?)?);
    let upper = upper_bound_ns(bucket).filter(|_| bucket < BUCKETS - 1);
    let per_power = f64::from(1_u32 << SCHEMA);
    Some(match upper {
        Some(upper) => (f64::midpoint(lower, log2_of(upper)) * per_power).ceil() as i32,
        None => (lower * per_power).ceil() as i32 + 1,
    })
}

#[cfg(test)]
mod tests {
    use nestrace_abi::histogram::bucket_of;

    use super::*;

    /// Of latencies in nanoseconds.
    fn sums_of(latencies: &[u64]) -> LayerSums {
        let mut buckets = vec![0; BUCKETS];
        for ns in latencies {
            buckets[bucket_of(*ns)] += 1;
        }
        LayerSums {
            buckets,
            ..LayerSums::default()
        }
    }

    /// Index and count of each bucket, as a reader of the format finds them.
    fn read(native: &Native) -> Vec<(i32, i64)> {
        let mut deltas = native.deltas.iter();
        let (mut index, mut n, mut found) = (0, 0, Vec::new());
        for span in &native.spans {
            index += span.offset;
            for _ in 0..span.length {
                n += deltas.next().unwrap();
                found.push((index, n));
                index += 1;
            }
        }
        assert_eq!(deltas.next(), None);
        found
    }

    /// The bounds of a native bucket, in nanoseconds.
    fn bounds(index: i32, schema: i8) -> (f64, f64) {
        let bound = |index: i32| (f64::from(index) / f64::from(1 << schema)).exp2() * 1e9;
        (bound(index - 1), bound(index))
    }

    #[test]
    fn an_empty_histogram_has_no_buckets() {
        assert_eq!(Native::of(&sums_of(&[])), Native::default());
        assert_eq!(Native::of(&LayerSums::default()), Native::default());
    }

    #[test]
    fn the_shortest_are_in_the_zero_bucket() {
        let native = Native::of(&sums_of(&[0, 500, 1023]));
        assert_eq!(native.zero_count, 3);
        assert_eq!((native.spans.len(), native.deltas.len()), (0, 0));
    }

    #[test]
    fn spans_and_deltas() {
        let mut latencies = vec![1_000_000; 5];
        // The next bucket of the probes, and one far from it.
        latencies.extend([1_100_000; 2]);
        latencies.extend([3_000_000_000; 7]);
        let native = Native::of(&sums_of(&latencies));
        // 1 ms is in 2^(-160/16) = 0.977 ms to 2^(-159/16) = 1.020 ms; its bucket ends at 1.049 ms.
        let found = read(&native);
        let filled: Vec<_> = found.iter().filter(|(_, n)| *n > 0).collect();
        assert_eq!(filled, [&(-159, 5), &(-156, 2), &(26, 7)]);
        let expected = [
            Span {
                offset: -159,
                length: 4,
            },
            Span {
                offset: 181,
                length: 1,
            },
        ];
        assert_eq!(native.spans, expected);
        assert_eq!(native.deltas, [5, -5, 0, 2, 5]);
    }

    #[test]
    fn no_two_buckets_share_one_and_none_is_lost() {
        let mut sums = sums_of(&[]);
        for (bucket, n) in sums.buckets.iter_mut().enumerate() {
            *n = bucket as u64 + 1;
        }
        let native = Native::of(&sums);
        let filled: Vec<i64> = read(&native)
            .into_iter()
            .map(|(_, n)| n)
            .filter(|n| *n > 0)
            .collect();
        let expected: Vec<i64> = (2..=BUCKETS as i64).collect();
        assert_eq!(filled, expected);
        assert_eq!(native.zero_count, 1);
        let n: i64 = filled.iter().sum();
        assert_eq!(n as u64 + native.zero_count, crate::series::count(&sums));
    }

    #[test]
    fn what_a_guest_claims_adds_up() {
        let sums = LayerSums {
            buckets: vec![u64::MAX; BUCKETS],
            ..LayerSums::default()
        };
        let native = Native::of(&sums);
        let n: i64 = read(&native).iter().map(|(_, n)| n).sum();
        assert_eq!(n as u64 + native.zero_count, crate::series::count(&sums));
    }

    /// How far a value of the native bucket may be from one of the bucket that went there, by a schema.
    fn error(schema: i8) -> f64 {
        let mut most: f64 = 1.0;
        for bucket in 1..BUCKETS - 1 {
            let lower = upper_bound_ns(bucket - 1).unwrap() as f64;
            let upper = upper_bound_ns(bucket).unwrap() as f64;
            let middle = f64::midpoint(lower.log2(), upper.log2()) - 1e9_f64.log2();
            let index = (middle * f64::from(1 << schema)).ceil() as i32;
            let (from, to) = bounds(index, schema);
            most = most.max(to / lower).max(upper / from);
        }
        most - 1.0
    }

    /// docs/live.md states these.
    #[test]
    fn the_bound_of_the_error() {
        assert!(error(SCHEMA) < 0.11, "{}", error(SCHEMA));
        assert!(error(SCHEMA) > 0.10, "{}", error(SCHEMA));
        // One coarser loses more, one finer wins little.
        assert!(error(3) > 0.13, "{}", error(3));
        assert!(error(5) > 0.08, "{}", error(5));
        for bucket in 1..BUCKETS - 1 {
            let (from, to) = bounds(index_of(bucket).unwrap(), SCHEMA);
            let lower = upper_bound_ns(bucket - 1).unwrap() as f64;
            let upper = upper_bound_ns(bucket).unwrap() as f64;
            assert!(to / from < upper / lower, "{bucket} is wider");
            assert!(
                from >= ZERO_THRESHOLD_NS as f64,
                "{bucket} is not near zero"
            );
        }
        // What is longer than all: its bucket is above theirs, and says what is known.
        let (from, _) = bounds(index_of(BUCKETS - 1).unwrap(), SCHEMA);
        assert!(from >= upper_bound_ns(BUCKETS - 2).unwrap() as f64);
    }
}

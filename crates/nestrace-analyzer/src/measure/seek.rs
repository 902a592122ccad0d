//! Distances between neighbours in time, in sectors.

use crate::measure::frequent::Frequent;
use crate::measure::histogram::Histogram;
use crate::result::analysis::{FirstSeek, Seek};
use crate::result::cdf::Cdf;

/// Bytes of a sector in the kernel's terms.
const SECTOR: u64 = 512;

/// Collects the distances of one sequence of I/Os.
///
/// The rule is btt's: an I/O that touches or overlaps the one before it is no seek; otherwise the
/// distance is from the end of that one forwards, or from its start backwards. Unlike btt, the
/// first I/O of a recording has no distance (btt takes it from sector 0).
#[derive(Debug)]
pub(crate) struct SeekMeter {
    last: Option<(u64, u64)>,
    first: Option<u64>,
    /// Sums only, as long as `modes` has all of them.
    distances: Histogram,
    modes: Frequent,
}

impl Default for SeekMeter {
    fn default() -> Self {
        Self {
            last: None,
            first: None,
            distances: Histogram::of_sums(),
            modes: Frequent::default(),
        }
    }
}

impl SeekMeter {
    /// Whether it was a seek.
    pub(crate) fn io(&mut self, offset: u64, bytes: u64) -> bool {
        let start = offset / SECTOR;
        let end = start.saturating_add(bytes / SECTOR);
        let distance = if let Some((last_start, last_end)) = self.last {
            let touches = start <= last_end && last_start <= end;
            let distance = match (touches, start > last_end) {
                (true, _) => 0,
                (false, true) => start - last_end,
                (false, false) => last_start - start,
            };
            let distances = &mut self.distances;
            self.modes.count(distance, |all| {
                if distances.has_sums_only() {
                    *distances = all.histogram();
                }
            });
            self.distances.record(distance);
            distance
        } else {
            self.first = Some(start);
            0
        };
        self.last = Some((start, end));
        distance > 0
    }

    /// The first I/O as a seek from sector 0.
    pub(crate) fn first(&self) -> Option<FirstSeek> {
        let distance = self.first?;
        Some(FirstSeek {
            distance,
            median: self.median(Some(distance)).unwrap_or(distance),
        })
    }

    /// Exact for up to 16,384 different distances, else within 0.1 %.
    fn median(&self, more: Option<u64>) -> Option<u64> {
        let exact = self.modes.median(more);
        exact.or_else(|| self.distances.quantile(0.5))
    }

    fn zeros(&self) -> u64 {
        if self.distances.has_sums_only() {
            return self.modes.zeros();
        }
        self.distances.zeros()
    }

    /// The distances as a curve.
    pub(crate) fn cdf(&self, steps: u64) -> Cdf {
        if self.distances.has_sums_only() {
            return self.modes.histogram().cdf(steps);
        }
        self.distances.cdf(steps)
    }

    pub(crate) fn seek(&self) -> Seek {
        let n = self.distances.n();
        Seek {
            n,
            sum: u64::try_from(self.distances.sum()).unwrap_or(u64::MAX),
            mean: self.distances.dist().mean,
            median: self.median(None),
            sequential_share: (n > 0).then(|| self.zeros() as f64 / n as f64),
            modes: self.modes.modes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances(ios: &[(u64, u64)]) -> Seek {
        let mut meter = SeekMeter::default();
        ios.iter().for_each(|(sector, sectors)| {
            meter.io(sector * SECTOR, sectors * SECTOR);
        });
        meter.seek()
    }

    #[test]
    fn more_distances_than_are_counted_exactly_are_a_curve_all_the_same() {
        let mut meter = SeekMeter::default();
        let mut whole = Histogram::default();
        let mut start = 0;
        meter.io(0, 0);
        for n in 0..50_000_u64 {
            // Every other one goes on where the one before ended.
            let distance = if n % 2 == 0 { 0 } else { 1 + n * 7 % 40_009 };
            start += distance;
            meter.io(start * SECTOR, 0);
            whole.record(distance);
            if [10, 49_999].contains(&n) {
                assert_eq!(
                    format!("{:?}", meter.cdf(64)),
                    format!("{:?}", whole.cdf(64)),
                    "{n}"
                );
                let seek = meter.seek();
                assert_eq!(
                    (seek.n, u128::from(seek.sum)),
                    (whole.n(), whole.sum()),
                    "{n}"
                );
                assert_eq!(meter.zeros(), whole.zeros(), "{n}");
            }
        }
        assert_eq!(meter.seek().median, whole.quantile(0.5));
    }

    #[test]
    fn one_io_has_no_distance() {
        assert_eq!(distances(&[(100, 8)]), Seek::default());
    }

    #[test]
    fn sequential_forward_backward_overlap() {
        let seek = distances(&[(100, 8), (108, 8), (216, 8), (100, 8), (104, 8)]);
        assert_eq!(
            (seek.n, seek.mean, seek.median),
            (4, Some((100 + 116) / 4), Some(0))
        );
        assert_eq!(seek.sequential_share, Some(0.5));
    }
}

//! Distances between neighbours in time, in sectors.

use crate::analysis::Seek;
use crate::histogram::Histogram;

/// Bytes of a sector in the kernel's terms.
const SECTOR: u64 = 512;

/// Collects the distances of one sequence of I/Os.
///
/// The rule is btt's: an I/O that touches or overlaps the one before it is no seek; otherwise the
/// distance is from the end of that one forwards, or from its start backwards. Unlike btt, the
/// first I/O of a recording has no distance (btt takes it from sector 0).
#[derive(Debug, Default)]
pub(crate) struct SeekMeter {
    last: Option<(u64, u64)>,
    distances: Histogram,
}

impl SeekMeter {
    pub(crate) fn io(&mut self, offset: u64, bytes: u64) {
        let start = offset / SECTOR;
        let end = start.saturating_add(bytes / SECTOR);
        if let Some((last_start, last_end)) = self.last {
            let touches = start <= last_end && last_start <= end;
            let distance = match (touches, start > last_end) {
                (true, _) => 0,
                (false, true) => start - last_end,
                (false, false) => last_start - start,
            };
            self.distances.record(distance);
        }
        self.last = Some((start, end));
    }

    pub(crate) fn seek(&self) -> Seek {
        let n = self.distances.n();
        Seek {
            n,
            mean: self.distances.dist().mean,
            median: self.distances.quantile(0.5),
            sequential_share: (n > 0).then(|| self.distances.zeros() as f64 / n as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn distances(ios: &[(u64, u64)]) -> Seek {
        let mut meter = SeekMeter::default();
        ios.iter()
            .for_each(|(sector, sectors)| meter.io(sector * SECTOR, sectors * SECTOR));
        meter.seek()
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

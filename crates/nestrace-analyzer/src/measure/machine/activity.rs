//! When something happened: stretches of time without long gaps.

/// Events no further apart than this are one stretch (btt's default).
const GAP_NS: u64 = 100_000_000;
/// Stretches that are kept; beyond it the gaps that separate them grow.
const MAX_STRETCHES: usize = 1 << 12;

/// Stretches of activity.
#[derive(Clone, Debug)]
pub(crate) struct Activity {
    gap_ns: u64,
    stretches: Vec<(u64, u64)>,
}

impl Default for Activity {
    fn default() -> Self {
        Self {
            gap_ns: GAP_NS,
            stretches: Vec::new(),
        }
    }
}

impl Activity {
    #[inline]
    pub(crate) fn at(&mut self, ts_ns: u64) {
        match self.stretches.last_mut() {
            Some((_, end_ns)) if ts_ns.saturating_sub(*end_ns) < self.gap_ns => {
                *end_ns = ts_ns.max(*end_ns);
            }
            _ => self.begin(ts_ns),
        }
    }

    #[cold]
    fn begin(&mut self, ts_ns: u64) {
        self.stretches.push((ts_ns, ts_ns));
        while self.stretches.len() > MAX_STRETCHES {
            self.gap_ns = self.gap_ns.saturating_mul(2);
            let gap_ns = self.gap_ns;
            self.stretches.dedup_by(|next, last| {
                let near = next.0.saturating_sub(last.1) < gap_ns;
                if near {
                    last.1 = next.1.max(last.1);
                }
                near
            });
        }
    }

    /// Begin and end of each.
    pub(crate) fn into_stretches(self) -> Vec<(u64, u64)> {
        self.stretches
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_separate() {
        let mut activity = Activity::default();
        [0, 99_999_999, 199_999_999, 300_000_000]
            .iter()
            .for_each(|ts| activity.at(*ts));
        assert_eq!(
            activity.into_stretches(),
            [
                (0, 99_999_999),
                (199_999_999, 199_999_999),
                (300_000_000, 300_000_000)
            ]
        );
    }

    /// The end of all time is no later than itself: it once was, and no gap was wide enough.
    #[test]
    fn stamps_at_the_end_of_all_time_are_one_stretch() {
        let mut activity = Activity::default();
        let stamps = [0, u64::MAX].into_iter().cycle();
        stamps.take(100_000).for_each(|ts| activity.at(ts));
        assert_eq!(activity.into_stretches(), [(0, 0), (u64::MAX, u64::MAX)]);
    }

    #[test]
    fn any_number_of_stretches_fits() {
        let mut activity = Activity::default();
        (0..100_000).for_each(|n| activity.at(n * GAP_NS));
        let stretches = activity.into_stretches();
        assert!(stretches.len() <= MAX_STRETCHES);
        assert_eq!(
            (stretches[0].0, stretches[stretches.len() - 1].1),
            (0, 99_999 * GAP_NS)
        );
    }
}

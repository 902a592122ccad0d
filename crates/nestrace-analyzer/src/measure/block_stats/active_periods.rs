//! When a device had work, and when it had none.

use crate::measure::at_device::Change;
use crate::result::analysis::ActivePeriods;

/// The time in which at least one request with data was between D and C, as periods.
///
/// Periods that touch are one, as in btt.
#[derive(Clone, Debug, Default)]
pub(crate) struct ActivePeriodsMeter {
    at_device: u64,
    since_ns: u64,
    /// The last C; of a period that goes on, too.
    last_end_ns: Option<u64>,
    periods: u64,
    active_ns: u64,
}

impl ActivePeriodsMeter {
    #[inline]
    pub(crate) fn changed(&mut self, change: Change) {
        if change.comes {
            self.enter(change.ts_ns);
        } else {
            self.leave(change.ts_ns);
        }
    }

    /// D.
    #[inline]
    fn enter(&mut self, ts_ns: u64) {
        if self.at_device == 0 {
            self.since_ns = ts_ns;
            let touches = self.last_end_ns.is_some_and(|end_ns| end_ns >= ts_ns);
            self.periods += u64::from(!touches);
        }
        self.at_device += 1;
    }

    /// C, or R.
    #[inline]
    fn leave(&mut self, ts_ns: u64) {
        if self.at_device == 0 {
            return;
        }
        self.at_device -= 1;
        self.last_end_ns = Some(ts_ns);
        if self.at_device == 0 {
            // Stamps of damaged recordings can leap over all of time, again and again.
            let lasted_ns = ts_ns.saturating_sub(self.since_ns);
            self.active_ns = self.active_ns.saturating_add(lasted_ns);
        }
    }

    /// A period that has no end yet lasts to its last C. Idle time counts from `start_ns` to the last C.
    pub(crate) fn finish(&self, start_ns: u64) -> ActivePeriods {
        let (mut periods, mut active_ns) = (self.periods, self.active_ns);
        if self.at_device > 0 {
            match self.last_end_ns.filter(|end_ns| *end_ns > self.since_ns) {
                Some(end_ns) => active_ns = active_ns.saturating_add(end_ns - self.since_ns),
                None => periods = periods.saturating_sub(1),
            }
        }
        let end_ns = self.last_end_ns.unwrap_or(start_ns);
        let idle_ns = end_ns.saturating_sub(start_ns).saturating_sub(active_ns);
        let all_ns = active_ns.saturating_add(idle_ns);
        ActivePeriods {
            n: periods,
            active_ns,
            idle_ns,
            mean_active_ns: (periods > 0).then(|| active_ns as f64 / periods as f64),
            mean_idle_ns: (periods > 1).then(|| idle_ns as f64 / (periods - 1) as f64),
            active_share: (all_ns > 0).then(|| active_ns as f64 / all_ns as f64),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// D and C of each request, in the order of time.
    fn periods(edges: &[(u64, char)]) -> (u64, u64, u64) {
        let mut meter = ActivePeriodsMeter::default();
        for (ts_ns, what) in edges {
            match what {
                'D' => meter.enter(*ts_ns),
                _ => meter.leave(*ts_ns),
            }
        }
        let active = meter.finish(0);
        (active.n, active.active_ns, active.idle_ns)
    }

    #[test]
    fn overlapping_and_touching_requests_are_one_period() {
        assert_eq!(periods(&[]), (0, 0, 0));
        assert_eq!(periods(&[(10, 'D'), (30, 'C')]), (1, 20, 10));
        assert_eq!(
            periods(&[(10, 'D'), (20, 'D'), (30, 'C'), (40, 'C')]),
            (1, 30, 10)
        );
        assert_eq!(
            periods(&[(10, 'D'), (30, 'C'), (30, 'D'), (40, 'C')]),
            (1, 30, 10)
        );
        assert_eq!(
            periods(&[(10, 'D'), (30, 'C'), (50, 'D'), (60, 'C')]),
            (2, 30, 30)
        );
    }

    #[test]
    fn what_never_completes_makes_no_period() {
        assert_eq!(periods(&[(10, 'D'), (30, 'C'), (50, 'D')]), (1, 20, 10));
        assert_eq!(periods(&[(10, 'D'), (20, 'D'), (30, 'C')]), (1, 20, 10));
    }
}

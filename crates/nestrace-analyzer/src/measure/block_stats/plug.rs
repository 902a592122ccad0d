//! How long a queue was plugged, and how much each unplug let go.

use crate::result::analysis::Plug;

/// Plugs of one device.
///
/// A plug belongs to a thread, the events to the device: like btt, this takes the device for plugged
/// from the first P to the next U or UT, whoever made them, and passes over a U without a P.
#[derive(Debug, Default)]
pub(crate) struct PlugMeter {
    plugged_since_ns: Option<u64>,
    plugged_ns: u64,
    unplugs: Unplugs,
    timer_unplugs: Unplugs,
    /// The first and the last event of I/O: what the share is of.
    seen_ns: Option<(u64, u64)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Unplugs {
    n: u64,
    requests: u64,
}

impl Unplugs {
    fn requests_each(self) -> Option<f64> {
        (self.n > 0).then(|| self.requests as f64 / self.n as f64)
    }
}

impl PlugMeter {
    /// An event of I/O with data.
    #[inline]
    pub(crate) fn seen(&mut self, ts_ns: u64) {
        match &mut self.seen_ns {
            Some((_, last_ns)) => *last_ns = ts_ns,
            None => self.seen_ns = Some((ts_ns, ts_ns)),
        }
    }

    pub(crate) fn plug(&mut self, ts_ns: u64) {
        // Before its first I/O a device is not known to btt.
        if self.seen_ns.is_some() {
            self.plugged_since_ns.get_or_insert(ts_ns);
        }
    }

    /// U, or UT with `by_timer`, of so many requests.
    pub(crate) fn unplug(&mut self, ts_ns: u64, requests: u64, by_timer: bool) {
        let Some(since_ns) = self.plugged_since_ns.take() else {
            return;
        };
        // Stamps of damaged recordings can leap over all of time, again and again.
        let lasted_ns = ts_ns.saturating_sub(since_ns);
        self.plugged_ns = self.plugged_ns.saturating_add(lasted_ns);
        let unplugs = if by_timer {
            &mut self.timer_unplugs
        } else {
            &mut self.unplugs
        };
        unplugs.n += 1;
        unplugs.requests = unplugs.requests.saturating_add(requests);
    }

    /// Whether it is plugged is not known any more.
    pub(crate) fn forget(&mut self) {
        self.plugged_since_ns = None;
    }

    /// A queue that is still plugged is unplugged by the end.
    pub(crate) fn finish(&mut self) -> Plug {
        let (first_ns, last_ns) = self.seen_ns.unwrap_or_default();
        self.unplug(last_ns, 0, false);
        let lasted_ns = last_ns.saturating_sub(first_ns);
        Plug {
            unplugs: self.unplugs.n,
            timer_unplugs: self.timer_unplugs.n,
            plugged_share: (lasted_ns > 0).then(|| self.plugged_ns as f64 / lasted_ns as f64),
            requests_per_unplug: self.unplugs.requests_each(),
            requests_per_timer_unplug: self.timer_unplugs.requests_each(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugs_count_from_the_first_io_to_the_last() {
        let mut meter = PlugMeter::default();
        meter.plug(50);
        meter.seen(100);
        meter.unplug(110, 9, false);
        meter.plug(120);
        meter.plug(130);
        meter.unplug(140, 2, true);
        meter.plug(150);
        meter.unplug(160, 4, false);
        meter.plug(190);
        meter.seen(200);
        let plug = meter.finish();
        assert_eq!((plug.unplugs, plug.timer_unplugs), (2, 1));
        assert_eq!(plug.plugged_share, Some(0.4));
        assert_eq!(plug.requests_per_unplug, Some(2.0));
        assert_eq!(plug.requests_per_timer_unplug, Some(2.0));
    }
}

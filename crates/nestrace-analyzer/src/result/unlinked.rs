//! Events that name an object whose beginning was not seen, and why that may be.

use std::collections::BTreeMap;

/// An I/O that was in flight when recording began has ended by then, or it hangs.
const IN_FLIGHT_AT_START_NS: u64 = 10_000_000_000;

/// Decides which reason applies at a time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Reasons {
    /// The recording's own beginning (all sources live).
    pub live_ns: u64,
    /// Losses of block events were reported by the stream so far.
    pub lost_so_far: bool,
    /// The manifest reports losses, at times unknown.
    pub lost_sometime: bool,
}

impl Reasons {
    pub(crate) fn at(self, ts_ns: u64) -> Reason {
        if self.lost_so_far {
            Reason::LostEvents
        } else if ts_ns < self.live_ns.saturating_add(IN_FLIGHT_AT_START_NS) {
            Reason::BeforeStart
        } else if self.lost_sometime {
            Reason::LostEvents
        } else {
            Reason::NoMatch
        }
    }
}

/// Why an event has no partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reason {
    LostEvents,
    BeforeStart,
    NoMatch,
}

/// Counts by reason.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Unlinked {
    lost_events: u64,
    before_start: u64,
    no_match: u64,
}

impl Unlinked {
    pub(crate) fn count(&mut self, reason: Reason) {
        match reason {
            Reason::LostEvents => self.lost_events += 1,
            Reason::BeforeStart => self.before_start += 1,
            Reason::NoMatch => self.no_match += 1,
        }
    }

    pub(crate) fn by_reason(self) -> BTreeMap<&'static str, u64> {
        [
            ("lost_events", self.lost_events),
            ("before_start", self.before_start),
            ("no_match", self.no_match),
        ]
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .collect()
    }
}

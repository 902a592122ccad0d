//! Events that name an object whose beginning was not seen, and why that may be.

use std::collections::BTreeMap;

use crate::result::word::words;

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

words! {
    /// Why something was not followed. The order is that of the words, so that counts by reason have it in the JSON too.
    #[non_exhaustive]
    pub enum UnlinkedReason {
        /// The recording had ended.
        AfterEnd = "after_end",
        /// Several could be it, and which one is not certain.
        Ambiguous = "ambiguous",
        /// The recording had not begun.
        BeforeStart = "before_start",
        /// A layer between was not recorded.
        LayerNotRecorded = "layer_not_recorded",
        /// Events were lost at about that time.
        LostEvents = "lost_events",
        /// It did not end.
        NoEnd = "no_end",
        /// The other side has nothing that fits.
        NoMatch = "no_match",
        /// The clock forbids all that would fit, or no clock was found.
        OutsideClockBound = "outside_clock_bound",
    }
}

/// Why an event of the block layer has no partner.
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

    pub(crate) fn by_reason(self) -> BTreeMap<UnlinkedReason, u64> {
        [
            (UnlinkedReason::LostEvents, self.lost_events),
            (UnlinkedReason::BeforeStart, self.before_start),
            (UnlinkedReason::NoMatch, self.no_match),
        ]
        .into_iter()
        .filter(|(_, n)| *n > 0)
        .collect()
    }
}

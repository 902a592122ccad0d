//! What a stream itself says of its losses. An agent counts anew with every session; the totals in its
//! stream go on, and where one session follows another in the same stream, a loss stands between them.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use nestrace_abi::{Kind, Source};
use nestrace_trace::Event;

/// Totals by source, as the stream's `Loss` events have them.
#[derive(Clone, Copy, Debug, Default)]
pub struct StreamLosses {
    before: [u64; Source::ALL.len()],
    /// Of the session that runs.
    now: [u64; Source::ALL.len()],
}

impl StreamLosses {
    /// Turns the total of a session into that of the stream; other events stay as they are.
    pub fn go_on(&mut self, event: &mut Event) {
        let place = usize::from(event.sub);
        if event.kind() == Some(Kind::Loss)
            && let (Some(before), Some(now)) = (self.before.get(place), self.now.get_mut(place))
        {
            *now = event.lost_so_far().max(*now);
            event.object = before.saturating_add(*now);
        }
    }

    /// Another session goes on with the stream. What happened in between was not counted.
    pub fn interrupted(&mut self, ts_ns: u64) -> Event {
        for (before, now) in self.before.iter_mut().zip(&mut self.now) {
            *before = before.saturating_add(std::mem::take(now));
        }
        self.missing(ts_ns)
    }

    /// Events are missing after this time of the guest. Whatever they were, they stand for one event of the
    /// block layer.
    pub fn missing(&mut self, ts_ns: u64) -> Event {
        let mut event = Event {
            ts_ns,
            kind: Kind::Loss as u8,
            sub: Source::Block as u8,
            ..Event::default()
        };
        let place = usize::from(event.sub);
        if let (Some(before), Some(now)) = (self.before.get_mut(place), self.now.get(place)) {
            *before = before.saturating_add(1);
            event.object = before.saturating_add(*now);
        }
        event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn totals_go_on_over_sessions() {
        let mut losses = StreamLosses::default();
        let total = |losses: &mut StreamLosses, source: Source, object| {
            let mut event = Event {
                kind: Kind::Loss as u8,
                sub: source as u8,
                object,
                ..Event::default()
            };
            losses.go_on(&mut event);
            event.object
        };
        assert_eq!(total(&mut losses, Source::Block, 7), 7);
        assert_eq!(total(&mut losses, Source::File, 3), 3);
        let between = losses.interrupted(5);
        assert_eq!((between.ts_ns, between.object), (5, 8));
        assert_eq!(total(&mut losses, Source::Block, 2), 10);
        assert_eq!(total(&mut losses, Source::File, 1), 4);
        // Within a session.
        assert_eq!(losses.missing(6).object, 11);
        assert_eq!(total(&mut losses, Source::Block, 3), 12);
        assert_eq!(losses.interrupted(6).object, 13);
        assert_eq!(total(&mut losses, Source::Block, u64::MAX), u64::MAX);
        let mut other = Event {
            kind: Kind::Queue as u8,
            object: 4,
            ..Event::default()
        };
        losses.go_on(&mut other);
        assert_eq!(other.object, 4);
    }
}

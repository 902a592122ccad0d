//! Events with identities, as an iterator.

use std::collections::VecDeque;

use nestrace_trace::Event;

use super::SectorIdentity;

/// Gives the block events of one machine the identities that blktrace does not record; events that have
/// one pass as they are. Takes and gives events in the order of time.
///
/// ```
/// use nestrace_analyzer::Identified;
/// use nestrace_trace::{Event, Kind};
///
/// let at = |ts_ns, kind: Kind| Event { ts_ns, kind: kind as u8, bytes: 512, ..Event::default() };
/// let events = [at(1, Kind::Queue), at(2, Kind::GetRequest), at(3, Kind::Issue)];
/// let events: Vec<Event> = Identified::new(events.into_iter()).collect();
/// assert_eq!(events[0].object, events[1].object);
/// assert_eq!(events[2].related, events[0].object);
/// ```
#[derive(Debug)]
pub struct Identified<I> {
    events: I,
    identity: SectorIdentity,
    /// What one event became, but for the first.
    ready: VecDeque<Event>,
}

impl<I: Iterator<Item = Event>> Identified<I> {
    /// Identifies `events`.
    pub fn new(events: I) -> Self {
        Self {
            events,
            identity: SectorIdentity::default(),
            ready: VecDeque::new(),
        }
    }
}

impl<I: Iterator<Item = Event>> Iterator for Identified<I> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        if let Some(event) = self.ready.pop_front() {
            return Some(event);
        }
        // Most events stay one.
        let mut first = None;
        while first.is_none() {
            let event = self.events.next()?;
            let ready = &mut self.ready;
            self.identity.identify(&event, |event| match first {
                None => first = Some(*event),
                Some(_) => ready.push_back(*event),
            });
        }
        first
    }
}

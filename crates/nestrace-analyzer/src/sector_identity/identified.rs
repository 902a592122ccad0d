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
    /// Links that come after the event that was given last.
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
        let mut next = self.events.next();
        let event = next.as_mut()?;
        let ready = &mut self.ready;
        self.identity.identify(event, |link| ready.push_back(link));
        next
    }
}

//! Events with identities, as an iterator and in batches.

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

/// Gives identities as [`Identified`] does, to events that are in memory already: faster, because an event is large, and
/// stays where it is.
///
/// ```
/// use nestrace_analyzer::Identities;
/// use nestrace_trace::{Event, Kind};
///
/// let at = |ts_ns, kind: Kind| Event { ts_ns, kind: kind as u8, bytes: 512, ..Event::default() };
/// let mut batch = vec![at(1, Kind::Queue), at(2, Kind::GetRequest)];
/// let mut identities = Identities::default();
/// identities.identify(&mut batch);
/// let mut next = vec![at(3, Kind::Issue)];
/// identities.identify(&mut next);
/// assert_eq!((batch[0].object, next[0].related), (batch[1].object, batch[0].object));
/// ```
#[derive(Debug, Default)]
pub struct Identities {
    identity: SectorIdentity,
    /// Links, each with the place of the event that it comes after.
    links: Vec<(usize, Event)>,
}

impl Identities {
    /// Identifies the events of a batch, which follow those of the batch before. Links of requests to their bios are put
    /// between them.
    pub fn identify(&mut self, batch: &mut Vec<Event>) {
        let Self { identity, links } = self;
        for (place, event) in batch.iter_mut().enumerate() {
            identity.identify(event, |link| links.push((place, link)));
        }
        insert_after(batch, links);
    }
}

/// Puts links behind their events, from the end on: what lies behind all that are left moves once, to where it stays.
fn insert_after(batch: &mut Vec<Event>, links: &mut Vec<(usize, Event)>) {
    let mut from = batch.len();
    batch.resize(from + links.len(), Event::default());
    let mut to = batch.len();
    while let Some((place, link)) = links.pop() {
        let behind = place + 1;
        to -= from - behind;
        batch.copy_within(behind..from, to);
        from = behind;
        to -= 1;
        batch[to] = link;
    }
}

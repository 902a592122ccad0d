//! Several streams as one: the host's and one for each guest session, merged by time as well as it
//! is known.
//!
//! The guests' clocks are not the host's; how they lie to each other becomes known while reading.
//! Until then wall clocks and round trips must do. An error of seconds costs memory (the clock holds
//! back what has no partner yet), not links.

use nestrace_trace::Event;

use super::Analyzer;
use crate::model::clocks::{GuestNs, HostNs};

/// Host events between two looks at the clocks.
const LOOK_AGAIN: u64 = 64;

/// One guest session's events in the order of time.
#[non_exhaustive]
pub struct GuestEvents<'a> {
    /// Index into `Manifest::guest_sides`.
    pub side: usize,
    /// Its events.
    pub events: &'a mut dyn Iterator<Item = Event>,
}

impl<'a> GuestEvents<'a> {
    /// The events of `Manifest::guest_sides[side]`.
    pub fn new(side: usize, events: &'a mut dyn Iterator<Item = Event>) -> Self {
        Self { side, events }
    }
}

/// The next event of a stream.
struct Head<'a> {
    side: usize,
    events: &'a mut dyn Iterator<Item = Event>,
    next: Event,
    /// Its time on the host's clock.
    host_ns: HostNs,
}

/// Streams that are read side by side.
pub(super) struct SideBySide<'a, 'g> {
    analyzer: &'a mut Analyzer,
    /// Of the guests' streams that have not ended.
    heads: Vec<Head<'g>>,
}

impl<'a, 'g> SideBySide<'a, 'g> {
    /// Reads the first event of each guest session.
    pub(super) fn new(analyzer: &'a mut Analyzer, guests: Vec<GuestEvents<'g>>) -> Self {
        let mut heads: Vec<Head<'_>> = Vec::new();
        for guest in guests {
            match guest.events.next() {
                Some(next) => heads.push(Head {
                    side: guest.side,
                    host_ns: analyzer.place_of(guest.side, GuestNs(next.ts_ns)),
                    events: guest.events,
                    next,
                }),
                None => analyzer.guest_ended(guest.side),
            }
        }
        Self { analyzer, heads }
    }

    /// Gives the analyzer all events of the host, and the guests' between them.
    pub(super) fn push(mut self, host: impl IntoIterator<Item = Event>) {
        let mut first = oldest(&self.heads);
        for (event, n) in host.into_iter().zip(0u64..) {
            // What is known of the clocks changes, and with it which stream is behind.
            if n.is_multiple_of(LOOK_AGAIN) && !self.heads.is_empty() {
                for head in &mut self.heads {
                    head.host_ns = self.analyzer.place_of(head.side, GuestNs(head.next.ts_ns));
                }
                first = oldest(&self.heads);
            }
            let now_ns = HostNs(event.ts_ns);
            if !self.heads.is_empty() {
                self.analyzer.host_reached(now_ns);
            }
            while let Some((_, place)) = first.filter(|(host_ns, _)| *host_ns < now_ns) {
                self.push_head(place);
                first = oldest(&self.heads);
            }
            self.analyzer.push(&event);
        }
        self.analyzer.host_ended();
        while let Some((_, place)) = oldest(&self.heads) {
            self.push_head(place);
        }
    }

    /// Takes the first event of a stream.
    fn push_head(&mut self, place: usize) {
        let Some(head) = self.heads.get_mut(place) else {
            return;
        };
        self.analyzer.push_guest(head.side, &head.next);
        match head.events.next() {
            Some(next) => {
                head.next = next;
                head.host_ns = self.analyzer.place_of(head.side, GuestNs(next.ts_ns));
            }
            None => {
                let ended = self.heads.remove(place);
                self.analyzer.guest_ended(ended.side);
            }
        }
    }
}

/// Time and place of the head that comes first.
fn oldest(heads: &[Head<'_>]) -> Option<(HostNs, usize)> {
    let heads = heads.iter().enumerate();
    heads.map(|(place, head)| (head.host_ns, place)).min()
}

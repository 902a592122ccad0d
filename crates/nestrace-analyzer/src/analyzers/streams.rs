//! Several streams as one: the host's and one for each guest session, merged by time as well as it
//! is known.
//!
//! The guests' clocks are not the host's; how they lie to each other becomes known while reading.
//! Until then wall clocks and round trips must do. An error of seconds costs memory (the clock holds
//! back what has no partner yet), not links.

use nestrace_trace::Event;

use crate::Analyzer;

/// Host events between two looks at the clocks.
const LOOK_AGAIN: u64 = 64;

/// One guest session's events in the order of time.
pub struct GuestEvents<'a> {
    /// Index into `Manifest::guest_sides`.
    pub side: usize,
    /// Its events.
    pub events: &'a mut dyn Iterator<Item = Event>,
}

/// The next event of a stream.
struct Head<'a> {
    side: usize,
    events: &'a mut dyn Iterator<Item = Event>,
    next: Event,
    /// Its time on the host's clock.
    host_ns: u64,
}

impl Analyzer {
    /// Takes all events of the host and of its guests; each stream is in the order of time.
    ///
    /// ```
    /// use nestrace_analyzer::{Analyzer, GuestEvents, Options};
    /// use nestrace_trace::{Event, Kind, Manifest, manifest::GuestSide};
    ///
    /// let mut manifest = Manifest::default();
    /// manifest.guest_sides = vec![GuestSide::default()];
    /// let queue = Event { ts_ns: 7, kind: Kind::Queue as u8, object: 1, bytes: 512, ..Event::default() };
    /// let mut analyzer = Analyzer::new(&manifest, Options::default());
    /// let mut of_guest = [queue].into_iter();
    /// analyzer.push_streams([queue], vec![GuestEvents { side: 0, events: &mut of_guest }]);
    /// let analysis = analyzer.finish();
    /// assert_eq!(analysis.devices.len(), 2);
    /// ```
    pub fn push_streams(
        &mut self,
        host: impl IntoIterator<Item = Event>,
        guests: Vec<GuestEvents<'_>>,
    ) {
        let mut heads: Vec<Head<'_>> = Vec::new();
        for guest in guests {
            match guest.events.next() {
                Some(next) => heads.push(Head {
                    side: guest.side,
                    host_ns: self.guest_time(guest.side, next.ts_ns),
                    events: guest.events,
                    next,
                }),
                None => self.guest_ended(guest.side),
            }
        }
        let mut first = oldest(&heads);
        for (event, n) in host.into_iter().zip(0u64..) {
            // What is known of the clocks changes, and with it which stream is behind.
            if n.is_multiple_of(LOOK_AGAIN) && !heads.is_empty() {
                for head in &mut heads {
                    head.host_ns = self.guest_time(head.side, head.next.ts_ns);
                }
                first = oldest(&heads);
            }
            if !heads.is_empty() {
                self.host_reached(event.ts_ns);
            }
            while let Some((_, place)) = first.filter(|(host_ns, _)| *host_ns < event.ts_ns) {
                self.push_head(&mut heads, place);
                first = oldest(&heads);
            }
            self.push(&event);
        }
        self.host_ended();
        while let Some((_, place)) = oldest(&heads) {
            self.push_head(&mut heads, place);
        }
    }

    /// Takes the first event of a stream.
    fn push_head(&mut self, heads: &mut Vec<Head<'_>>, place: usize) {
        let Some(head) = heads.get_mut(place) else {
            return;
        };
        self.push_guest(head.side, &head.next);
        match head.events.next() {
            Some(next) => {
                head.next = next;
                head.host_ns = self.guest_time(head.side, next.ts_ns);
            }
            None => {
                let ended = heads.remove(place);
                self.guest_ended(ended.side);
            }
        }
    }
}

/// Time and place of the head that comes first.
fn oldest(heads: &[Head<'_>]) -> Option<(u64, usize)> {
    let heads = heads.iter().enumerate();
    heads.map(|(place, head)| (head.host_ns, place)).min()
}

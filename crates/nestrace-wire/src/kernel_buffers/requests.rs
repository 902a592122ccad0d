//! Light detail: one event for a request, made of its D and its C.
//!
//! A record names no request. A C belongs to the D of the same disk, place and operation, whose length is what it completes,
//! or begins with that; of several that are the same and in flight at once, to the oldest. Which of those had which time
//! may be wrong then; how many there were and what they took together is not.

#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::collections::{BTreeMap, BTreeSet};

use nestrace_abi::{Kind, flags};

use nestrace_trace::Event;

/// More are not in flight in a guest whose events are whole.
const MAX_AT_DEVICE: usize = 65_536;
/// Flushes in flight at a disk without a recorded C of any flush: a kernel has one at a time for each hardware queue.
const MAX_UNTOLD_FLUSHES: usize = 64;
/// A guest has fewer disks.
const MAX_DISKS: usize = 1 << 10;

/// Requests that are at their devices.
#[derive(Debug, Default)]
pub struct Requests {
    at_device: BTreeMap<Key, Issued>,
    n_issued: u64,
    /// Events of before say nothing of what is in flight.
    whole_since_ns: u64,
    /// Disks with a recorded C of a flush request. Before Linux 3.18 most disks have none; their flushes are left out.
    tell_flush_ends: BTreeSet<u32>,
}

/// Where a request goes on, and its number: the oldest of a place comes first.
type Key = (Place, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Place {
    dev: u32,
    op: u32,
    offset: u64,
}

impl Place {
    fn of(event: &Event) -> Self {
        Self {
            dev: event.dev,
            op: event.op(),
            offset: event.offset,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Issued {
    at_ns: u64,
    offset: u64,
    bytes: u64,
    /// Of these, what no C has completed yet.
    left: u64,
}

impl Requests {
    /// Takes an event; gives what there is to say then. Events come in the order of their times.
    pub fn take(&mut self, event: &Event) -> Option<Event> {
        match event.kind()? {
            Kind::Issue => self.issue(event),
            Kind::Requeue => drop(self.remove(event)),
            Kind::Complete => return self.complete(event),
            Kind::Thread => return Some(*event),
            _ => {}
        }
        None
    }

    /// Events of before this time may be missing: what is in flight is not known.
    pub fn forget_before(&mut self, now_ns: u64) {
        self.at_device.clear();
        self.whole_since_ns = now_ns;
    }

    fn issue(&mut self, event: &Event) {
        if event.ts_ns < self.whole_since_ns {
            return;
        }
        if self.at_device.len() >= MAX_AT_DEVICE {
            self.at_device.clear();
        }
        if event.op() == flags::OP_FLUSH
            && !self.tell_flush_ends.contains(&event.dev)
            && self.at(Place::of(event)).count() >= MAX_UNTOLD_FLUSHES
        {
            let _oldest = self.remove(event);
        }
        self.n_issued = self.n_issued.wrapping_add(1);
        let issued = Issued {
            at_ns: event.ts_ns,
            offset: event.offset,
            bytes: event.bytes,
            left: event.bytes,
        };
        let key = (Place::of(event), self.n_issued);
        self.at_device.insert(key, issued);
    }

    /// Those at a place, the oldest first.
    fn at(&self, place: Place) -> impl Iterator<Item = (&Key, &Issued)> {
        self.at_device.range((place, 0)..=(place, u64::MAX))
    }

    /// Takes out the request that an event at its place is of.
    fn remove(&mut self, event: &Event) -> Option<(Key, Issued)> {
        let place = Place::of(event);
        let find = |is_it: fn(u64, u64) -> bool| {
            let mut there = self.at(place);
            let found = there.find(|(_, issued)| is_it(issued.left, event.bytes));
            found.map(|(key, _)| *key)
        };
        let key = find(|left, bytes| left == bytes).or_else(|| find(|left, bytes| left > bytes))?;
        self.at_device.remove_entry(&key)
    }

    fn complete(&mut self, event: &Event) -> Option<Event> {
        let done = Event {
            kind: Kind::RequestDone as u8,
            ..*event
        };
        if event.op() == flags::OP_FLUSH && self.tell_flush_ends.len() < MAX_DISKS {
            self.tell_flush_ends.insert(event.dev);
        }
        if event.bytes == 0 && event.op() != flags::OP_FLUSH {
            // The flush machinery ends a bio. One of data, which was completed before, ends behind it; a flush without
            // data has no place, and no D.
            return Some(done).filter(|_| event.offset == 0);
        }
        let Some(((place, number), mut issued)) = self.remove(event) else {
            return Some(done);
        };
        issued.left = issued.left.saturating_sub(event.bytes);
        if issued.left > 0 {
            let offset = place.offset.saturating_add(event.bytes);
            let key = (Place { offset, ..place }, number);
            self.at_device.insert(key, issued);
            return None;
        }
        Some(Event {
            related: issued.at_ns,
            offset: issued.offset,
            bytes: issued.bytes,
            ..done
        })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::arithmetic_side_effects)]

    use super::*;

    const READ: u32 = flags::OP_READ;
    const WRITE: u32 = flags::OP_WRITE;

    fn event(kind: Kind, ts_ns: u64, op: u32, offset: u64, bytes: u64) -> Event {
        Event {
            kind: kind as u8,
            ts_ns,
            flags: op,
            offset,
            bytes,
            ..Event::default()
        }
    }

    /// D, C, offset and bytes of what comes out.
    fn requests(requests: &mut Requests, events: &[Event]) -> Vec<(u64, u64, u64, u64)> {
        let done = events.iter().filter_map(|event| requests.take(event));
        let done = done.inspect(|event| assert_eq!(event.kind(), Some(Kind::RequestDone)));
        done.map(|event| (event.related, event.ts_ns, event.offset, event.bytes))
            .collect()
    }

    #[test]
    fn an_end_finds_the_beginning_of_its_place_length_and_operation() {
        let events = [
            event(Kind::Issue, 1, READ, 4096, 4096),
            event(Kind::Issue, 2, WRITE, 4096, 4096),
            event(Kind::Issue, 3, READ, 4096, 8192),
            event(Kind::Issue, 4, READ, 4096, 4096),
            event(Kind::Complete, 5, READ, 4096, 8192),
            event(Kind::Complete, 6, READ, 4096, 4096),
            event(Kind::Complete, 7, READ, 4096, 4096),
            event(Kind::Complete, 8, WRITE, 4096, 4096),
            event(Kind::Complete, 9, READ, 4096, 4096),
        ];
        let expected = [
            (3, 5, 4096, 8192),
            (1, 6, 4096, 4096),
            (4, 7, 4096, 4096),
            (2, 8, 4096, 4096),
            (0, 9, 4096, 4096),
        ];
        assert_eq!(requests(&mut Requests::default(), &events), expected);
    }

    #[test]
    fn a_request_that_ends_in_parts_is_one() {
        let events = [
            event(Kind::Issue, 1, READ, 0, 12288),
            event(Kind::Complete, 2, READ, 0, 4096),
            event(Kind::Complete, 3, READ, 4096, 4096),
            event(Kind::Complete, 4, READ, 8192, 4096),
        ];
        let mut all = Requests::default();
        assert_eq!(requests(&mut all, &events), [(1, 4, 0, 12288)]);
        assert!(all.at_device.is_empty());
    }

    #[test]
    fn a_request_that_was_put_back_begins_anew() {
        let events = [
            event(Kind::Issue, 1, READ, 0, 4096),
            event(Kind::Requeue, 2, READ, 0, 4096),
            event(Kind::Issue, 3, READ, 0, 4096),
            event(Kind::Complete, 4, READ, 0, 4096),
        ];
        let done = requests(&mut Requests::default(), &events);
        assert_eq!(done, [(3, 4, 0, 4096)]);
    }

    #[test]
    fn what_the_flush_machinery_ends_is_told_once() {
        let events = [
            // A bio without data.
            event(Kind::Issue, 1, flags::OP_FLUSH, 0, 0),
            event(Kind::Complete, 2, flags::OP_FLUSH, 0, 0),
            event(Kind::Complete, 3, WRITE | flags::PREFLUSH, 0, 0),
            // One with data.
            event(Kind::Issue, 4, WRITE, 4096, 4096),
            event(Kind::Complete, 5, WRITE, 4096, 4096),
            event(Kind::Complete, 6, WRITE | flags::PREFLUSH, 8192, 0),
        ];
        let done = requests(&mut Requests::default(), &events);
        assert_eq!(done, [(1, 2, 0, 0), (0, 3, 0, 0), (4, 5, 4096, 4096)]);
    }

    #[test]
    fn flushes_whose_ends_are_never_told_are_none_and_take_no_room() {
        let mut all = Requests::default();
        let told = (0..100).flat_map(|at| {
            [
                event(Kind::Issue, 3 * at, flags::OP_FLUSH, Event::NOWHERE, 0),
                event(Kind::Complete, 3 * at + 1, WRITE, 0, 0),
            ]
        });
        let done = requests(&mut all, &told.collect::<Vec<_>>());
        assert_eq!(done.len(), 100);
        assert!(done.iter().all(|(begin, ..)| *begin == 0));
        assert_eq!(all.at_device.len(), MAX_UNTOLD_FLUSHES);
        // Two at once on a kernel that does tell.
        let flush = |kind, at| event(kind, at, flags::OP_FLUSH, Event::NOWHERE, 0);
        let told = [
            flush(Kind::Issue, 1),
            flush(Kind::Issue, 2),
            flush(Kind::Complete, 3),
            flush(Kind::Complete, 4),
        ];
        let done = requests(&mut Requests::default(), &told);
        assert_eq!(done, [(1, 3, Event::NOWHERE, 0), (2, 4, Event::NOWHERE, 0)]);
    }

    #[test]
    fn where_events_are_missing_no_end_finds_a_beginning() {
        let mut all = Requests::default();
        assert_eq!(
            requests(&mut all, &[event(Kind::Issue, 1, READ, 0, 4096)]),
            []
        );
        all.forget_before(10);
        let events = [
            event(Kind::Issue, 5, READ, 0, 4096),
            event(Kind::Complete, 6, READ, 0, 4096),
            event(Kind::Issue, 11, READ, 0, 4096),
            event(Kind::Complete, 12, READ, 0, 4096),
        ];
        let done = requests(&mut all, &events);
        assert_eq!(done, [(0, 6, 0, 4096), (11, 12, 0, 4096)]);
    }

    #[test]
    fn what_never_ends_is_bounded() {
        let mut all = Requests::default();
        for number in 0..2 * MAX_AT_DEVICE as u64 + 3 {
            all.take(&event(Kind::Issue, number, READ, number * 512, 512));
        }
        assert_eq!(all.at_device.len(), 3);
    }
}

//! Which requests had an equal one beside them: nothing but their data may tell such apart, and every other
//! one has to be linked (docs/clock.md).

use std::collections::HashMap;

use nestrace_trace::flags::OP_MASK;
use nestrace_trace::{Event, Kind};

/// A request of the guest between D and C, on the guest's clock.
#[derive(Clone, Copy, Debug)]
struct Flight {
    issued_ns: u64,
    completed_ns: u64,
    n_bios: u64,
}

/// The guest's bios with data, and how many of its bios may stay without a link: their request was on its way, give or
/// take `room_ns`, together with another of the same operation, place and length.
pub fn bios_and_those_beside_an_equal(events: &[Event], room_ns: u64) -> (u64, u64) {
    let queued = || events.iter().filter(|e| e.kind() == Some(Kind::Queue));
    let n_flushes = queued().filter(|bio| bio.bytes == 0).count() as u64;
    let mut beside = 0;
    for ((_, _, bytes), flights) in flights(events) {
        let crowded = crowded(flights, room_ns);
        // A flush of the device serves any number of flush bios.
        beside += match (bytes, crowded) {
            (0, 1..) => n_flushes,
            _ => crowded,
        };
    }
    (queued().count() as u64 - n_flushes, beside)
}

/// Requests by operation, place and length.
fn flights(events: &[Event]) -> HashMap<(u32, u64, u64), Vec<Flight>> {
    let mut open: HashMap<u64, ((u32, u64, u64), Flight)> = HashMap::new();
    let mut flights: HashMap<(u32, u64, u64), Vec<Flight>> = HashMap::new();
    for event in events {
        match event.kind() {
            Some(Kind::Issue) => {
                let key = (event.flags & OP_MASK, event.offset, event.bytes);
                let flight = Flight {
                    issued_ns: event.ts_ns,
                    completed_ns: u64::MAX,
                    n_bios: 1 + u64::from(event.sub),
                };
                // One that was put back goes out a second time.
                open.entry(event.object).or_insert((key, flight));
            }
            Some(Kind::Complete) if event.related == 0 => {
                if let Some((key, mut flight)) = open.remove(&event.object) {
                    flight.completed_ns = event.ts_ns;
                    flights.entry(key).or_default().push(flight);
                }
            }
            _ => {}
        }
    }
    for (key, flight) in open.into_values() {
        flights.entry(key).or_default().push(flight);
    }
    flights
}

/// How many bios were on their way, from Q to the end of the request that carried them, together with another of the
/// same operation, place and length. Where no event names a bio, these may be taken for each other.
pub fn bios_equal_from_their_q_on(events: &[Event]) -> u64 {
    let mut queued: HashMap<u64, ((u32, u64, u64), u64)> = HashMap::new();
    let mut carried: HashMap<u64, Vec<u64>> = HashMap::new();
    let mut flights: HashMap<(u32, u64, u64), Vec<Flight>> = HashMap::new();
    let flight = |issued_ns, completed_ns| Flight {
        issued_ns,
        completed_ns,
        n_bios: 1,
    };
    for event in events {
        match event.kind() {
            Some(Kind::Queue) => {
                let key = (event.flags & OP_MASK, event.offset, event.bytes);
                queued.insert(event.object, (key, event.ts_ns));
            }
            Some(Kind::Issue) => _ = carried.insert(event.object, vec![event.related]),
            Some(Kind::Link) => {
                let bios = carried.entry(event.object).or_default();
                bios.extend([event.related, event.offset, event.bytes]);
            }
            Some(Kind::Complete) if event.related == 0 => {
                for bio in carried.remove(&event.object).unwrap_or_default() {
                    if let Some((key, queued_ns)) = queued.remove(&bio) {
                        let flight = flight(queued_ns, event.ts_ns);
                        flights.entry(key).or_default().push(flight);
                    }
                }
            }
            _ => {}
        }
    }
    for (key, queued_ns) in queued.into_values().filter(|((.., bytes), _)| *bytes > 0) {
        flights
            .entry(key)
            .or_default()
            .push(flight(queued_ns, u64::MAX));
    }
    flights
        .into_values()
        .map(|flights| crowded(flights, 0))
        .sum()
}

/// Bios of those equal requests that were not alone.
fn crowded(mut flights: Vec<Flight>, room_ns: u64) -> u64 {
    flights.sort_unstable_by_key(|flight| flight.issued_ns);
    let mut last_end_ns = None;
    let mut bios = 0;
    for (i, flight) in flights.iter().enumerate() {
        let before =
            last_end_ns.is_some_and(|end: u64| end.saturating_add(room_ns) >= flight.issued_ns);
        let next = flights.get(i + 1);
        let end_ns = flight.completed_ns.saturating_add(room_ns);
        if before || next.is_some_and(|next| next.issued_ns <= end_ns) {
            bios += flight.n_bios;
        }
        last_end_ns = last_end_ns.max(Some(flight.completed_ns));
    }
    bios
}

#[cfg(test)]
mod tests {
    use super::*;

    fn issue(object: u64, ts_ns: u64, offset: u64, sub: u8) -> Event {
        let kind = Kind::Issue as u8;
        Event {
            kind,
            object,
            ts_ns,
            offset,
            bytes: 4096,
            sub,
            ..Event::default()
        }
    }

    fn complete(object: u64, ts_ns: u64) -> Event {
        let kind = Kind::Complete as u8;
        Event {
            kind,
            object,
            ts_ns,
            ..Event::default()
        }
    }

    #[test]
    fn equal_bios_at_once_are_not_alone_from_their_q_on() {
        let queue = |object, ts_ns, offset| Event {
            kind: Kind::Queue as u8,
            ..issue(object, ts_ns, offset, 0)
        };
        let carry = |object, ts_ns, bio| Event {
            related: bio,
            ..issue(object, ts_ns, 0, 0)
        };
        let events = [
            queue(11, 90, 0),
            carry(1, 100, 11),
            // Queued while the first is at the device, issued when that has ended.
            queue(12, 150, 0),
            // Another place.
            queue(13, 160, 8192),
            complete(1, 200),
            carry(1, 210, 12),
            complete(1, 250),
            // Alone.
            queue(11, 300, 0),
            carry(1, 310, 11),
            complete(1, 350),
        ];
        assert_eq!(bios_equal_from_their_q_on(&events), 2);
    }

    #[test]
    fn equal_requests_at_once_are_not_alone() {
        let events = [
            issue(1, 100, 0, 0),
            issue(2, 150, 0, 2),
            // Another place.
            issue(3, 160, 8192, 0),
            complete(1, 200),
            complete(2, 210),
            complete(3, 220),
            // Later, by more than the clock may be wrong.
            issue(1, 300, 0, 0),
            complete(1, 350),
        ];
        assert_eq!(bios_and_those_beside_an_equal(&events, 80), (0, 4));
        assert_eq!(bios_and_those_beside_an_equal(&events, 90), (0, 5));
    }
}

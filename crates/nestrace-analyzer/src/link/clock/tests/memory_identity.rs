//! Equal requests in flight at once are distinguished by the memory that they move.

use crate::link::clock::{ClockStart, GuestRequest, HostRequest, Key, OpClass, Outcome, Pairing};
use crate::model::clocks::{GuestNs, HostNs};

const BUFFER: u64 = 0x7f00_0000_0000;

fn key(offset: u64) -> Key {
    Key {
        class: OpClass::Write,
        offset,
        bytes: 4096,
    }
}

/// Three hundred requests of their own places, each followed by two at one place that swap on their way: which is which, and
/// how many of these 600 are linked and right. The guest's clock is the host's.
fn linked_of_equal(buffer_of: impl Fn(u64) -> u64) -> (usize, usize) {
    let mut pairing = Pairing::new(ClockStart::default());
    for i in 0..300u64 {
        let at_ns = 1_000_000_000 + i * 1_000_000;
        let mut both = |serial, offset, guest: (u64, u64), host: (u64, u64)| {
            pairing.host_request(HostRequest {
                serial,
                disk: 0,
                key: key(offset),
                buffer: buffer_of(serial),
                lane: HostRequest::ANY_LANE,
                start_ns: HostNs(at_ns + host.0),
                end_ns: HostNs(at_ns + host.1),
            });
            pairing.guest_request(GuestRequest {
                serial,
                device: 0,
                key: key(offset),
                buffer: buffer_of(serial),
                may_be_alone: false,
                flushed_with: 0,
                lane: GuestRequest::ANY_LANE,
                issued_ns: GuestNs(at_ns + guest.0),
                completed_ns: GuestNs(at_ns + guest.1),
            });
        };
        both(3 * i, (i + 1) * 8192, (0, 50_000), (10_000, 40_000));
        both(3 * i + 1, 0, (100_000, 300_000), (180_000, 250_000));
        both(3 * i + 2, 0, (110_000, 310_000), (130_000, 200_000));
        pairing.advance(GuestNs(at_ns + 400_000), HostNs(at_ns + 400_000));
    }
    pairing.finish();
    let outcomes = std::iter::from_fn(|| pairing.next_outcome());
    let paired = outcomes.filter_map(|outcome| match outcome {
        Outcome::Paired(paired) if !paired.guest.is_multiple_of(3) => {
            Some(paired.guest == paired.host)
        }
        _ => None,
    });
    let paired: Vec<bool> = paired.collect();
    let right = paired.iter().filter(|right| **right).count();
    (paired.len(), right)
}

#[test]
fn equal_requests_are_ambiguous_without_their_memory() {
    assert_eq!(linked_of_equal(|_| 0), (0, 0));
}

#[test]
fn equal_requests_are_told_apart_by_their_memory() {
    let told = linked_of_equal(|serial| BUFFER + serial % 3 * 4096);
    assert_eq!(told, (600, 600));
}

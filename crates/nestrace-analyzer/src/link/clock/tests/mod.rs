//! The pairing against clocks that are known, and against what a hostile side can make of its time.

mod absurd_stamps;
mod alike_disks;
mod bent_clocks;
mod clock_world;
mod hardware_queues;
mod known_clocks;
mod memory_identity;
mod pairing_speed;
mod same_sector;

use super::{ClockStart, GuestRequest, HostRequest, Key, OpClass, Outcome, Pairing};
use crate::model::clocks::{GuestNs, HostNs};

#[test]
fn requests_with_places_of_their_own_are_linked_whatever_the_offset() {
    let mut pairing = Pairing::new(ClockStart::default());
    for serial in 0..200 {
        let key = Key {
            class: OpClass::Write,
            offset: serial * serial * 4096,
            bytes: 4096,
        };
        let at_ns = serial * serial * 10_000;
        // The guest's clock is 5 s behind.
        pairing.host_request(HostRequest {
            serial,
            disk: 0,
            key,
            buffer: 0,
            lane: HostRequest::ANY_LANE,
            start_ns: HostNs(6_000_040_000 + at_ns),
            end_ns: HostNs(6_000_100_000 + at_ns),
        });
        pairing.guest_request(GuestRequest {
            serial,
            device: 0,
            key,
            buffer: 0,
            may_be_alone: false,
            flushed_with: 0,
            lane: GuestRequest::ANY_LANE,
            issued_ns: GuestNs(1_000_000_000 + at_ns),
            completed_ns: GuestNs(1_000_130_000 + at_ns),
        });
        pairing.advance(
            GuestNs(1_000_130_000 + at_ns),
            HostNs(6_000_130_000 + at_ns),
        );
    }
    let clock = pairing.finish().clock;
    let outcomes = std::iter::from_fn(|| pairing.next_outcome());
    let linked = outcomes.filter(|outcome| matches!(outcome, Outcome::Paired(_)));
    assert_eq!(linked.count(), 200);
    let offset_ns = clock.offset_ns.expect("linked requests tell it");
    assert!((offset_ns + 5_000_000_000).abs() <= 35_000);
}

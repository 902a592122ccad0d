//! Stamps that no clock shows, in turn: nothing overflows, and every request is counted.

use crate::link::clock::{ClockStart, GuestRequest, HostRequest, Key, OpClass, Outcome, Pairing};
use crate::model::clocks::{GuestNs, HostNs};
use crate::stamps::PATTERNS;

/// The clock alone, with all of its time in the hands of both sides.
#[test]
fn of_requests_that_are_paired() {
    const REQUESTS: u64 = 3000;
    for pattern in PATTERNS {
        let mut pairing = Pairing::new(ClockStart::default());
        let mut stamps = pattern.iter().copied().cycle();
        let mut stamp = || stamps.next().unwrap_or(0);
        for serial in 0..REQUESTS {
            let key = Key {
                class: OpClass::Write,
                offset: serial % 50 * 4096,
                bytes: 4096,
            };
            let (a, b, c, d) = (stamp(), stamp(), stamp(), stamp());
            pairing.host_request(HostRequest {
                serial,
                disk: 0,
                key,
                buffer: 0,
                lane: 0,
                start_ns: HostNs(a.min(b)),
                end_ns: HostNs(a.max(b)),
            });
            pairing.guest_request(GuestRequest {
                serial,
                device: 0,
                key,
                buffer: 0,
                may_be_alone: false,
                flushed_with: 0,
                lane: 0,
                issued_ns: GuestNs(c.min(d)),
                completed_ns: GuestNs(c.max(d)),
            });
            pairing.advance(GuestNs(c), HostNs(a));
        }
        let clock = pairing.finish().clock;
        let (mut guests, mut hosts) = (0, 0);
        while let Some(outcome) = pairing.next_outcome() {
            guests += u64::from(!matches!(outcome, Outcome::Unclaimed(_)));
            hosts += u64::from(!matches!(outcome, Outcome::Unpaired(_)));
        }
        assert_eq!(
            (guests, hosts),
            (REQUESTS, REQUESTS),
            "{pattern:?} {clock:?}"
        );
    }
}

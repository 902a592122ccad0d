//! The pairing while NTP bends the clocks of host and guest: the truth lies inside a band that knows by how much.

use super::clock_world::{Change, HOST_NS, Load, TrueClock, check, fraction, loads};
use crate::link::clock::ClockStart;
use nestrace_trace::Manifest;
use nestrace_trace::manifest::GuestSide;
use proptest::prelude::*;

/// What a manifest says of the corrections of both.
fn start(host_ppm: Option<u32>, guest_ppm: Option<u32>) -> ClockStart {
    let mut manifest = Manifest::default();
    manifest.host_clock_correction_ppm = host_ppm;

    let side = GuestSide {
        clock_correction_ppm: guest_ppm,
        ..GuestSide::default()
    };
    ClockStart::of(&manifest, &side)
}

#[test]
fn what_is_known_of_corrections_makes_rho() {
    for (host, guest, expected) in [
        (None, None, 500),
        (Some(30), None, 530),
        (Some(30), Some(5_000), 5_530),
        // No kernel does that.
        (Some(30), Some(u32::MAX), 110_530),
    ] {
        assert_eq!(start(host, guest).rho_ppm, expected);
    }
}

/// chrony makes up for a large error at 83,333 ppm, unless it is configured otherwise.
#[test]
fn a_clock_that_makes_up_for_an_error() {
    let begins = (HOST_NS + 300_000_000, Change::Rate(83_333));
    let ends = (HOST_NS + 900_000_000, Change::Rate(12));
    let clock = TrueClock::new(0, 900_000_000_000, 12, &[begins, ends]);
    let (requests, said) = check(&Load::default(), &clock, start(Some(20), Some(83_340)));
    assert!(fraction(&said, &requests) > 0.99, "{:?}", said.clock);
    assert_eq!(said.clock.pieces, 1);
}

/// A clock that runs free, one that NTP steers, and one whose error is made up for.
fn corrected_ppm() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0i64), -5_000i64..=5_000, -100_000i64..=100_000]
}

/// From a time on, the corrections of the host's clock and of the guest's.
fn corrections() -> impl Strategy<Value = Vec<(u64, i64, i64)>> {
    let times = HOST_NS..HOST_NS + 1_000_000_000;
    prop::collection::vec((times, corrected_ppm(), corrected_ppm()), 1..5).prop_map(|mut all| {
        all.sort_unstable();
        all
    })
}

fn most(ppm: impl Iterator<Item = i64>) -> Option<u32> {
    ppm.map(|ppm| ppm.unsigned_abs() as u32).max()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_truth_is_inside(load in loads(), corrections in corrections()) {
        // Against the host's clock, whose own seconds are longer or shorter.
        let relative = |host: i64, guest: i64| {
            ((1_000_000 + guest) * 1_000_000).div_euclid(1_000_000 + host) - 1_000_000
        };
        let changes: Vec<_> = corrections
            .iter()
            .map(|(at, host, guest)| (*at, Change::Rate(relative(*host, *guest))))
            .collect();
        let clock = TrueClock::new(0, 1_000_000_000, 0, &changes);
        let host = most(corrections.iter().map(|(_, host, _)| *host));
        let guest = most(corrections.iter().map(|(_, _, guest)| *guest));
        check(&load, &clock, start(host, guest));
    }
}

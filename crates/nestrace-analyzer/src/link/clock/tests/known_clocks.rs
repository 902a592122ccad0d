//! The pairing against clocks that are known: the truth lies inside the band, the band is as narrow as
//! the exchanges allow, and no request gets a wrong partner.

use super::clock_world::{
    Change, HOST_NS, Load, Said, TrueClock, TrueRequest, check, fraction, loads, pair_merged,
};
use crate::link::clock::start::RoundTrip;
use crate::link::clock::{ClockStart, DeviceDisk};
use crate::model::clocks::{GuestNs, HostNs};
use crate::result::analysis::ClockMethod;
use proptest::prelude::*;

/// What `Pairing` documents: 500 ppm, and one more because the band lies over the guest's time.
const RHO_PPM: u64 = 501;
/// Exchanges that the band of a request rests on, at least: up to this time after it.
const LOOK_AHEAD_NS: u64 = 190_000_000;

/// The formula of the band, by brute force, over the links that are exchanges:
/// lo(t) = max(D_i − start_i − ρ|t − D_i|), hi(t) = min(C_i − end_i + ρ|t − C_i|), for all i with C_i up to
/// 0.19 s after t, if another was issued after C_i, which shows that the clock went on. The band that was
/// given is never wider.
fn assert_narrow(said: &Said, requests: &[TrueRequest], clock: &TrueClock) {
    let loss = |a: u64, b: u64| (a.abs_diff(b) * RHO_PPM).div_ceil(1_000_000).cast_signed();
    let exchanges: Vec<(u64, i64, u64, i64)> = said
        .paired
        .iter()
        .map(|pair| {
            let request = &requests[pair.guest as usize];
            let (d, c) = (clock.guest(request.issued), clock.guest(request.completed));
            let lo = d.cast_signed() - request.start.cast_signed();
            (d, lo, c, c.cast_signed() - request.end.cast_signed())
        })
        .collect();
    let all = said.paired.iter().zip(&exchanges);
    let last_issued = all
        .filter(|(pair, _)| pair.exchange)
        .map(|(_, times)| times.0)
        .max();
    for (pair, (d, _, c, _)) in said.paired.iter().zip(&exchanges) {
        let known = || {
            let all = said.paired.iter().zip(&exchanges);
            all.filter(|(other, _)| other.exchange)
                .filter(|(_, times)| times.2 < c + LOOK_AHEAD_NS && Some(times.2) < last_issued)
                .map(|(_, times)| times)
        };
        let lo_at = |t: u64| {
            known()
                .map(|i| i.1 - loss(t, i.0))
                .max()
                .unwrap_or(i64::MIN)
        };
        let hi_at = |t: u64| {
            known()
                .map(|i| i.3 + loss(t, i.2))
                .min()
                .unwrap_or(i64::MAX)
        };
        let (lo, hi) = (lo_at(*d).min(lo_at(*c)), hi_at(*d).max(hi_at(*c)));
        assert!(
            pair.band.lo_ns >= lo && pair.band.hi_ns <= hi,
            "{:?} of {} is wider than {lo}..{hi}",
            pair.band,
            pair.guest
        );
    }
}

#[test]
fn nothing_is_known_before() {
    let clock = TrueClock::new(0, 123_456_789_012, 17, &[]);
    let (requests, said) = check(&Load::default(), &clock, ClockStart::default());
    assert_eq!(fraction(&said, &requests), 1.0);
    assert_eq!((said.clock.pieces, said.clock.pairs), (1, 2000));
    assert!((said.clock.drift_ppm.unwrap() - 17.0).abs() < 40.0);
    assert!(said.clock.error_bound_ns.max.expect("known") < 40_000);
    assert_narrow(&said, &requests, &clock);
}

#[test]
fn a_pause_is_a_new_piece() {
    let changes = [(HOST_NS + 400_000_000, Change::Pause(3_000_000_000))];
    let clock = TrueClock::new(0, 1_000_000_000, -5, &changes);
    let (requests, said) = check(&Load::default(), &clock, ClockStart::default());
    assert_eq!(said.clock.pieces, 2);
    assert!(fraction(&said, &requests) > 0.999);
    let [before, after] = said.clock.stretches[..] else {
        panic!("{:?}", said.clock.stretches);
    };
    assert!((after.offset_ns - before.offset_ns + 3_000_000_000).abs() < 100_000);
    assert!(before.to_ns <= 5_400_000_000 && after.from_ns >= 8_400_000_000);
}

/// The request that was in flight during the first leap could be any of very many flushes, at any offset in
/// between; and only when all requests have come is the clock looked for at all.
#[test]
fn a_step_shortly_after_a_long_one() {
    let load = Load {
        seed: 9_112_501_578_903_858_674,
        n: 2114,
        every_ns: 1_140_343,
        keys: 294,
        flush_per_mille: 196,
        there_ns: (500, 500),
        service_ns: (1000, 98_189),
        back_ns: (17_961, 385_927),
        ..Load::default()
    };
    let changes = [
        (6_711_699_827, Change::Leap(684_176_918)),
        (6_902_899_412, Change::Leap(5_000_000)),
    ];
    let clock = TrueClock::new(0, HOST_NS, 0, &changes);
    let (requests, said) = check(&load, &clock, ClockStart::default());
    assert_eq!(said.clock.pieces, 3);
    assert!(fraction(&said, &requests) > 0.99);
}

/// Found by [`the_truth_is_inside`].
#[test]
fn three_short_steps_after_a_long_one() {
    let load = Load {
        seed: 15_013_366_354_557_366_968,
        n: 1670,
        every_ns: 634_477,
        keys: 1,
        flush_per_mille: 255,
        there_ns: (119_376, 149_899),
        service_ns: (1769, 2179),
        back_ns: (147_260, 354_073),
        serial: true,
        ..Load::default()
    };
    let changes = [
        (5_211_550_434, Change::Leap(2_046_433_597)),
        (5_361_550_434, Change::Leap(5_000_000)),
        (5_525_924_327, Change::Leap(5_000_000)),
        (5_675_924_327, Change::Leap(5_000_000)),
    ];
    let clock = TrueClock::new(0, HOST_NS, 0, &changes);
    let (requests, said) = check(&load, &clock, ClockStart::default());
    assert!(fraction(&said, &requests) > 0.5, "{:?}", said.clock);
}

#[test]
fn too_few_requests_tell_no_clock() {
    let load = Load {
        n: 5,
        ..Load::default()
    };
    let clock = TrueClock::new(0, 77_000_000_000, 0, &[]);
    let (requests, said) = check(&load, &clock, ClockStart::default());
    assert_eq!(said.clock.method, ClockMethod::None);
    assert_eq!(said.unpaired.len(), requests.len());
    // Round trips over the port are enough for one request.
    let round_trips = vec![one_round_trip(&clock)];
    let start = ClockStart {
        round_trips,
        ..ClockStart::default()
    };
    let (requests, said) = check(&load, &clock, start);
    assert_eq!(said.paired.len(), requests.len());
}

#[test]
fn round_trips_that_lie_do_no_harm() {
    let clock = TrueClock::new(0, 77_000_000_000, 0, &[]);
    let start = ClockStart {
        round_trips: vec![RoundTrip {
            host_sent_ns: HostNs(HOST_NS),
            guest_ns: GuestNs(1_000_000),
            host_received_ns: HostNs(HOST_NS + 700_000),
        }],
        ..ClockStart::default()
    };
    let (requests, said) = check(&Load::default(), &clock, start);
    assert_eq!(fraction(&said, &requests), 1.0);
    assert_eq!(said.clock.pieces, 1);
}

#[test]
fn one_key_again_and_again_is_paired_by_its_gaps() {
    let load = Load {
        keys: 1,
        flush_per_mille: 500,
        serial: true,
        ..Load::default()
    };
    let clock = TrueClock::new(0, 1_000_000_000, 3, &[]);
    let (requests, said) = check(&load, &clock, ClockStart::default());
    assert!(fraction(&said, &requests) > 0.999, "{:?}", said.clock);
}

#[test]
fn disks_that_look_alike_are_told_apart_by_their_requests() {
    let load = Load {
        disks: 3,
        keys: 30,
        n: 3000,
        ..Load::default()
    };
    let clock = TrueClock::new(0, 1_000_000_000, 3, &[]);
    for devices in [
        vec![DeviceDisk::OneOf(vec![0, 1, 2]); 3],
        vec![
            DeviceDisk::Is {
                disk: 0,
                proof: "serial",
            },
            DeviceDisk::OneOf(vec![1, 2]),
            DeviceDisk::OneOf(vec![1, 2]),
        ],
    ] {
        let start = ClockStart {
            devices,
            ..ClockStart::default()
        };
        let (requests, said) = check(&load, &clock, start);
        let disks: Vec<_> = said
            .devices
            .iter()
            .map(|device| match device {
                DeviceDisk::Is { disk, .. } => Some(*disk),
                _ => None,
            })
            .collect();
        assert_eq!(disks, [Some(0), Some(1), Some(2)]);
        assert!(
            fraction(&said, &requests) > 0.99,
            "{}",
            fraction(&said, &requests)
        );
    }
}

/// One disk alone is busy for long before the clock can be found, with requests that the other has too.
#[test]
fn a_disk_that_is_not_known_yet_does_not_run_out_of_time() {
    let load = Load {
        disks: 1,
        keys: 100,
        n: 4000,
        every_ns: 5_000_000,
        ..Load::default()
    };
    let clock = TrueClock::new(0, 1_000_000_000, 3, &[]);
    let mut requests = load.requests(&clock);
    for (i, request) in requests.iter_mut().enumerate() {
        request.disk = if i < 2000 { 2 } else { i as u32 % 3 };
    }
    let choice = DeviceDisk::OneOf(vec![1, 2]);
    let proof = "serial";
    let start = ClockStart {
        devices: vec![DeviceDisk::Is { disk: 0, proof }, choice.clone(), choice],
        ..ClockStart::default()
    };
    let said = pair_merged(&requests, &clock, start);
    assert_eq!(said.wrong(), 0);
    assert!(
        fraction(&said, &requests) > 0.99,
        "{} {:?}",
        fraction(&said, &requests),
        said.devices
    );
}

/// Streams that are merged by `host_time` alone, as an analysis does it: the true order is not known.
#[test]
fn streams_merged_by_the_clock_that_is_being_found() {
    let changes = [
        (HOST_NS + 400_000_000, Change::Pause(60_000_000_000)),
        (HOST_NS + 61_000_000_000, Change::Leap(30_000_000_000)),
    ];
    let clock = TrueClock::new(0, 900_000_000_000, 11, &changes);
    let load = Load {
        n: 4000,
        ..Load::default()
    };
    let requests = load.requests(&clock);
    for wall_offset_ns in [None, Some(895_000_000_000), Some(-3_600_000_000_000)] {
        let start = ClockStart {
            wall_offset_ns,
            ..ClockStart::default()
        };
        let said = pair_merged(&requests, &clock, start);
        assert_eq!((said.wrong(), said.outside(&requests, &clock)), (0, 0));
        assert_eq!(said.clock.pieces, 3, "wall clocks {wall_offset_ns:?}");
        assert!(
            fraction(&said, &requests) > 0.99,
            "{}",
            fraction(&said, &requests)
        );
    }
}

/// One straight line over a recording is unsound: a change of the rate by 4 ppm still fits one line,
/// whose bound then is not true for much of the time. The band holds.
#[test]
fn one_line_is_unsound_where_the_band_holds() {
    let load = Load {
        n: 40_000,
        every_ns: 1_000_000,
        keys: 100_000,
        there_ns: (25_000, 20_000),
        back_ns: (25_000, 20_000),
        ..Load::default()
    };
    let changes = [(HOST_NS + 20_000_000_000, Change::Rate(14))];
    let clock = TrueClock::new(0, 1_000_000_000, 10, &changes);
    let (requests, said) = check(&load, &clock, ClockStart::default());
    assert!(fraction(&said, &requests) > 0.999);
    // Every line guest - host = a + b * seconds that all exchanges allow, as a polygon of (a, b).
    let base = clock.guest(HOST_NS).cast_signed() - HOST_NS.cast_signed();
    let seconds = |ns: u64| (ns - clock.guest(HOST_NS)) as f64 / 1e9;
    let mut lines = vec![(-1e6, -1e6), (1e6, -1e6), (1e6, 1e6), (-1e6, 1e6)];
    for request in &requests {
        let (d, c) = (clock.guest(request.issued), clock.guest(request.completed));
        let lo = (d.cast_signed() - request.start.cast_signed() - base) as f64;
        let hi = (c.cast_signed() - request.end.cast_signed() - base) as f64;
        lines = cut(&lines, |(a, b)| a + b * seconds(d) - lo);
        lines = cut(&lines, |(a, b)| hi - a - b * seconds(c));
    }
    assert!(!lines.is_empty(), "one line fits all exchanges");
    let outside = requests.iter().filter(|request| {
        let guest = clock.guest(request.issued);
        let truth = (guest.cast_signed() - request.issued.cast_signed() - base) as f64;
        let at = |(a, b): &(f64, f64)| a + b * seconds(guest);
        let lowest = lines.iter().map(at).fold(f64::INFINITY, f64::min);
        let highest = lines.iter().map(at).fold(f64::NEG_INFINITY, f64::max);
        truth < lowest - 1.0 || truth > highest + 1.0
    });
    let outside = outside.count();
    assert!(
        outside * 10 > requests.len(),
        "{outside} of {}",
        requests.len()
    );
}

/// The part of a convex polygon where `inside` is not negative.
fn cut(polygon: &[(f64, f64)], inside: impl Fn((f64, f64)) -> f64) -> Vec<(f64, f64)> {
    let mut kept = Vec::new();
    for (i, from) in polygon.iter().enumerate() {
        let to = polygon[(i + 1) % polygon.len()];
        let (f, t) = (inside(*from), inside(to));
        if f >= 0.0 {
            kept.push(*from);
        }
        if (f < 0.0) != (t < 0.0) {
            let part = f / (f - t);
            kept.push((
                from.0 + (to.0 - from.0) * part,
                from.1 + (to.1 - from.1) * part,
            ));
        }
    }
    kept
}

fn changes() -> impl Strategy<Value = Vec<(u64, Change)>> {
    let change = prop_oneof![
        (-500i64..=500).prop_map(Change::Rate),
        prop_oneof![Just(-4i64), Just(4)].prop_map(Change::Rate),
        (5_000_000u64..10_000_000_000).prop_map(Change::Pause),
        (5_000_000u64..4_000_000_000).prop_map(Change::Leap),
    ];
    // Each after the one before, some hundred requests apart.
    prop::collection::vec((150_000_000u64..900_000_000, change), 0..5).prop_map(|changes| {
        let mut at = HOST_NS;
        let mut place = |(after, change): (u64, Change)| {
            at += after;
            let begins = at;
            if let Change::Pause(ns) = change {
                at += ns;
            }
            (begins, change)
        };
        changes.into_iter().map(&mut place).collect()
    })
}

/// A recording of some milliseconds in which dozens of equal requests are in flight, so that many offsets explain
/// almost all of them.
fn equal_requests() -> impl Strategy<Value = Load> {
    let latency = || {
        let least = prop::sample::select(vec![500u64, 5_000, 50_000, 200_000]);
        least.prop_flat_map(|least| (Just(least), least..3 * least))
    };
    let every_ns = prop::sample::select(vec![5_000u64, 20_000, 60_000, 200_000]);
    let shape = (every_ns, 1u64..13, 1u32..3, 0u64..300);
    let times = (latency(), latency(), latency());
    (any::<u64>(), 100usize..500, times, shape).prop_map(|(seed, n, times, shape)| Load {
        seed,
        n,
        every_ns: shape.0,
        keys: shape.1,
        disks: shape.2,
        flush_per_mille: shape.3,
        there_ns: times.0,
        service_ns: times.1,
        back_ns: times.2,
        ..Load::default()
    })
}

/// Which side loses requests.
#[derive(Clone, Copy, Debug)]
enum Loses {
    None,
    Guest,
    Host,
}

/// The load with so many requests lost, and what is known of that at the start.
fn losing(load: Load, side: Loses, per_mille: u64) -> (Load, ClockStart) {
    let (guest_loses_per_mille, host_loses_per_mille) = match side {
        Loses::None => (0, 0),
        Loses::Guest => (per_mille, 0),
        Loses::Host => (0, per_mille),
    };
    let start = ClockStart {
        host_lost: host_loses_per_mille > 0,
        ..ClockStart::default()
    };
    let load = Load {
        guest_loses_per_mille,
        host_loses_per_mille,
        ..load
    };
    (load, start)
}

/// To the agent and back in 0.7 ms.
fn one_round_trip(clock: &TrueClock) -> RoundTrip {
    RoundTrip {
        host_sent_ns: HostNs(HOST_NS),
        guest_ns: GuestNs(clock.guest(HOST_NS + 300_000)),
        host_received_ns: HostNs(HOST_NS + 700_000),
    }
}

/// A step shows by what comes after it, and a piece by what lies in it.
fn enough_in_each_piece(load: &Load, clock: &TrueClock, changes: &[(u64, Change)]) -> bool {
    let steps = changes
        .iter()
        .filter(|(_, change)| !matches!(change, Change::Rate(_)));
    let mut borders: Vec<u64> = steps.map(|(at, _)| *at).collect();
    borders.insert(0, 0);
    borders.push(u64::MAX);
    let requests = load.requests(clock);
    borders.windows(2).all(|piece| {
        let inside = |request: &&TrueRequest| (piece[0]..piece[1]).contains(&request.issued);
        requests.iter().filter(inside).count() >= 100
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, max_global_rejects: 5000, ..ProptestConfig::default() })]

    #[test]
    fn the_truth_is_inside(
        load in loads(),
        changes in changes(),
        ppm in -500i64..=500,
        guest_ns in 0u64..1 << 50,
    ) {
        let clock = TrueClock::new(0, guest_ns + HOST_NS, ppm, &changes);
        prop_assume!(enough_in_each_piece(&load, &clock, &changes));
        check(&load, &clock, ClockStart::default());
    }

    #[test]
    fn the_band_is_as_narrow_as_its_exchanges(
        load in loads(),
        rates in prop::collection::vec((0u64..1_000_000_000, -500i64..=500), 0..5),
        ppm in -500i64..=500,
    ) {
        let mut changes: Vec<_> =
            rates.into_iter().map(|(at, rate)| (HOST_NS + at, Change::Rate(rate))).collect();
        changes.sort_by_key(|change| change.0);
        let clock = TrueClock::new(0, 1_000_000_000, ppm, &changes);
        let (requests, said) = check(&Load { keys: load.keys + 500, ..load }, &clock, ClockStart::default());
        assert_narrow(&said, &requests, &clock);
    }

    #[test]
    fn losses_on_one_side_make_no_wrong_link(
        load in loads(),
        ppm in -500i64..=500,
        per_mille in 1u64..200,
        guest in any::<bool>(),
    ) {
        let clock = TrueClock::new(0, 1_000_000_000, ppm, &[]);
        let side = if guest { Loses::Guest } else { Loses::Host };
        let (load, start) = losing(load, side, per_mille);
        check(&load, &clock, start);
    }

    #[test]
    fn equal_requests_in_flight_make_no_wrong_link(
        load in equal_requests(),
        ppm in -500i64..=500,
        (per_mille, side) in (1u64..150, prop::sample::select(vec![Loses::None, Loses::Guest, Loses::Host])),
        round_trip in any::<bool>(),
    ) {
        let clock = TrueClock::new(0, 1_000_000_000, ppm, &[]);
        let (load, start) = losing(load, side, per_mille);
        let round_trips = round_trip.then(|| one_round_trip(&clock)).into_iter().collect();
        check(&load, &clock, ClockStart { round_trips, ..start });
    }

    #[test]
    fn wrong_pairs_are_rejected_and_counted(
        load in loads(),
        ppm in -500i64..=500,
        wrong_per_mille in 1u64..150,
    ) {
        let clock = TrueClock::new(0, 1_000_000_000, ppm, &[]);
        let load = Load { keys: load.keys + 200, wrong_per_mille, ..load };
        let (requests, said) = check(&load, &clock, ClockStart::default());
        let wrong = requests.iter().filter(|request| !request.seen_by_host).count() as u64;
        if said.clock.method != ClockMethod::None {
            prop_assert!(said.clock.rejected >= wrong, "{} of {wrong}", said.clock.rejected);
        }
    }
}

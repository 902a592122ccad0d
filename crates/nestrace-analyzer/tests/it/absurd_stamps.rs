//! Stamps that no clock shows: a damaged recording, or a guest that lies, says 0 and the end of all time in
//! turn. Nothing overflows, nothing waits for ever, and every bio is counted.

use crate::stack;
use crate::two_sides;

use nestrace_abi::Kind;
use nestrace_analyzer::{Analysis, Analyzer, GuestEvents, Options, StoryChoice};
use nestrace_trace::Event;
use proptest::prelude::*;

use crate::stamps::{EDGE, PATTERNS};
use two_sides::{Streams, VM1, VM2, WAY, manifest};

const BIOS: u64 = 200;

/// Two guests' I/O in the order in which it was, of each host and guests.
fn streams() -> Streams {
    let mut streams = Streams::new(2);
    streams.traffic(VM1, 10_000_000_000, BIOS, WAY);
    streams.traffic(VM2, 10_000_000_000, BIOS, WAY);
    let by_time = |events: &mut Vec<Event>| events.sort_by_key(|event| event.ts_ns);
    by_time(&mut streams.host);
    streams.guests.iter_mut().for_each(by_time);
    streams
}

/// Gives every `nth` event the next stamp of a pattern.
fn stamp(events: &mut [Event], pattern: &[u64], nth: usize) {
    let stamps = pattern.iter().cycle();
    for (event, stamp) in events.iter_mut().step_by(nth).zip(stamps) {
        event.ts_ns = *stamp;
    }
}

fn options() -> Options {
    let mut options = Options::default();
    options.story = Some(StoryChoice::Slowest(5));
    options
}

fn check(analysis: &Analysis) {
    for chains in &analysis.chains {
        let unlinked: u64 = chains.unlinked.values().sum();
        assert_eq!(chains.guest_bios, chains.linked + unlinked);
        assert!(
            chains
                .fraction
                .is_none_or(|fraction| (0.0..=1.0).contains(&fraction))
        );
        assert!(chains.residual_share.abs() < 0.001, "{chains:?}");
    }
}

#[test]
fn of_the_host_alone() {
    for pattern in PATTERNS {
        for nth in [1, 3] {
            let mut events = streams().host;
            stamp(&mut events, pattern, nth);
            let analysis = Analyzer::analyze(&stack::manifest(), options(), events);
            let loop0 = &analysis.devices[0];
            assert_eq!(
                (loop0.name.as_str(), loop0.counts.completed),
                ("loop0", 2 * BIOS)
            );
            assert_eq!(loop0.latency_ns.all.q2c.map(|q2c| q2c.n), Some(2 * BIOS));
            check(&analysis);
        }
    }
}

#[test]
fn of_a_guest_or_of_both_sides() {
    for pattern in PATTERNS {
        for (host_lies, guest_lies) in [(false, true), (true, true), (true, false)] {
            let Streams {
                mut host,
                mut guests,
                ..
            } = streams();
            if host_lies {
                stamp(&mut host, pattern, 1);
            }
            if guest_lies {
                stamp(&mut guests[0], pattern, 1);
            }
            let mut analyzer = Analyzer::new(&manifest(), options());
            let guests = guests
                .iter()
                .map(|events| events.iter().copied())
                .collect::<Vec<_>>();
            let mut guests = guests;
            let guests = guests
                .iter_mut()
                .enumerate()
                .map(|(side, events)| GuestEvents::new(side, events))
                .collect();
            analyzer.push_streams(host, guests);
            let analysis = analyzer.finish();
            check(&analysis);
            let vm2 = two_sides::chains(&analysis, "vm2", "vd");
            assert_eq!(vm2.guest_bios, BIOS, "{pattern:?}");
            if !host_lies {
                assert_eq!(vm2.linked, BIOS, "another guest's lie: {pattern:?}");
            }
        }
    }
}

/// Neither side is read before the other, whatever the clock believes.
#[test]
fn of_both_sides_pushed_in_turn() {
    for pattern in PATTERNS {
        let mut streams = streams();
        let mut analyzer = Analyzer::new(&manifest(), options());
        stamp(&mut streams.host, pattern, 2);
        streams
            .guests
            .iter_mut()
            .for_each(|events| stamp(events, pattern, 1));
        let longest = streams.host.len();
        for index in 0..longest {
            if let Some(event) = streams.host.get(index) {
                analyzer.push(event);
            }
            for (side, events) in streams.guests.iter().enumerate() {
                if let Some(event) = events.get(index) {
                    analyzer.push_guest(side, event);
                }
            }
        }
        check(&analyzer.finish());
    }
}

fn event() -> impl Strategy<Value = Event> {
    let stamp = prop::sample::select(vec![
        0,
        1,
        5_000_000_000,
        EDGE - 1,
        EDGE,
        i64::MAX as u64,
        1 << 63,
        u64::MAX - 1,
        u64::MAX,
    ]);
    let few = prop::sample::select(vec![0u64, 64, 128, 192, 12, u64::MAX]);
    let bytes = prop::sample::select(vec![
        0u64,
        512,
        4096,
        u32::MAX.into(),
        1 << 32,
        1 << 41,
        i64::MAX as u64,
        u64::MAX,
    ]);
    let dev = prop::sample::select(vec![0u32, 1, two_sides::VDA, two_sides::LOOP0]);
    let kinds: Vec<u8> = (0..=u8::MAX)
        .filter(|kind| Kind::from_u8(*kind).is_some())
        .collect();
    let kind = prop::sample::select(kinds);
    let place = (few.clone(), few.clone(), bytes.clone(), bytes);
    let rest = (0u8..8, 0u32..64, few);
    (stamp, kind, dev, place, rest).prop_map(
        |(ts_ns, kind, dev, (object, related, offset, bytes), (sub, flags, identity))| Event {
            ts_ns,
            kind,
            dev,
            object,
            related,
            offset,
            bytes,
            sub,
            flags,
            tid: u32::from(sub),
            inode: identity,
            iocb: identity,
            file_offset: offset,
            owner_dev: two_sides::LOOP0,
            origin: identity,
            ..Event::default()
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Overflow checks are on in tests.
    #[test]
    fn of_events_of_every_kind(
        host in prop::collection::vec(event(), 0..200),
        guest in prop::collection::vec(event(), 0..200),
        capture in any::<bool>(),
    ) {
        let mut manifest = manifest();
        if capture {
            manifest.guest_sides[0].backend = "blktrace".into();
        }
        let mut analyzer = Analyzer::new(&manifest, options());
        for index in 0..host.len().max(guest.len()) {
            if let Some(event) = host.get(index) {
                analyzer.push(event);
            }
            if let Some(event) = guest.get(index) {
                analyzer.push_guest(0, event);
            }
        }
        check(&analyzer.finish());
    }
}

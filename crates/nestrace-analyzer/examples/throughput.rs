//! Events per second of the analyzer on one core, over synthetic I/O with 64 in flight.
//!
//! `cargo run --release -p nestrace-analyzer --example throughput`

use std::time::Instant;

use nestrace_abi::flags;
use nestrace_analyzer::{Analyzer, Options};
use nestrace_trace::{Event, Kind, Manifest};

/// I/Os in one generated round, which is pushed again and again.
const IOS: u64 = 100_000;
const IN_FLIGHT: u64 = 64;
const ROUNDS: u64 = 30;

fn main() {
    let round = round();
    let mut analyzer = Analyzer::new(&Manifest::default(), Options::default());
    let span = IOS * 1_000 + IN_FLIGHT * 10_000;
    let start = Instant::now();
    for i in 0..ROUNDS {
        for event in &round {
            analyzer.push(&Event {
                ts_ns: event.ts_ns + i * span,
                ..*event
            });
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let n = ROUNDS * round.len() as u64;
    let analysis = analyzer.finish();
    let completed: u64 = analysis
        .devices
        .iter()
        .map(|device| device.counts.completed)
        .sum();
    assert_eq!(completed, ROUNDS * IOS);
    println!(
        "{n} events in {seconds:.2} s: {:.1} M events/s",
        n as f64 / seconds / 1e6
    );
}

/// Q G I D C of each I/O, 64 of them interleaved, as a disk with a scheduler gives them.
fn round() -> Vec<Event> {
    let mut events = Vec::new();
    let mut seed = 1u64;
    for i in 0..IOS {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let slot = i % IN_FLIGHT;
        let base = Event {
            dev: 7 << 20,
            flags: if seed >> 63 == 0 {
                flags::OP_READ
            } else {
                flags::OP_WRITE
            },
            offset: (seed >> 20) & 0xff_ffff_f000,
            bytes: 4096,
            tid: 100 + (slot as u32),
            ..Event::default()
        };
        let (bio, request) = (
            0xffff_8881_0000_0000 + slot * 0x140,
            0xffff_8882_0000_0000 + slot * 0x100,
        );
        let now = i * 1_000;
        let done = now + 20_000 + (seed >> 50);
        let mut add = |ts_ns, kind: Kind, event: Event| {
            events.push(Event {
                ts_ns,
                kind: kind as u8,
                ..event
            })
        };
        add(
            now,
            Kind::Queue,
            Event {
                object: bio,
                ..base
            },
        );
        add(
            now + 300,
            Kind::GetRequest,
            Event {
                object: bio,
                ..base
            },
        );
        add(
            now + 600,
            Kind::Insert,
            Event {
                object: request,
                ..base
            },
        );
        add(
            now + 2_000,
            Kind::Issue,
            Event {
                object: request,
                related: bio,
                ..base
            },
        );
        add(
            done,
            Kind::Complete,
            Event {
                object: request,
                ..base
            },
        );
    }
    events.sort_by_key(|event| event.ts_ns);
    events
}

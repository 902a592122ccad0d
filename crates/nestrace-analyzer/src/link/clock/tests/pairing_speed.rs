//! How fast guest requests are paired with QEMU's, how much memory that takes, and that none is paired wrongly.
//!
//! `cargo test --release -p nestrace-analyzer --lib pairing_speed -- --nocapture` prints the figures, by default of a
//! million events; `PAIRING_SPEED=1,10,100` before it says of how many millions.
//!
//! Four events for each request: D, C, start and end. Requests come at 100,000 a second of trace time, up to
//! 32 in flight, half of them rewrites of a few thousand keys, a hundredth flushes; the guest's clock
//! drifts and changes its rate. Everything is made while it is paired, so memory is the pairing's.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use crate::link::clock::{ClockStart, GuestRequest, HostRequest, Key, OpClass, Outcome, Pairing};
use crate::model::clocks::{GuestNs, HostNs};

/// Requests of each second of trace time.
const EVERY_NS: u64 = 10_000;
/// The guest's clock minus the host's at the start.
const OFFSET_NS: u64 = 77_000_000_000;

/// splitmix64.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

/// The guest's time: 20 ppm faster, and from each tenth second on 30.
fn guest_ns(host_ns: u64) -> u64 {
    let (tens, rest) = (host_ns / 20_000_000_000, host_ns % 20_000_000_000);
    let gained = tens * 500_000
        + rest * 20 / 1_000_000
        + rest.saturating_sub(10_000_000_000) * 10 / 1_000_000;
    host_ns + OFFSET_NS + gained
}

fn key(dice: &mut Dice) -> Key {
    match dice.below(100) {
        0 => Key {
            class: OpClass::Flush,
            offset: 0,
            bytes: 0,
        },
        1..50 => Key {
            class: OpClass::Write,
            offset: dice.below(4096) * 4096,
            bytes: 4096,
        },
        _ => Key {
            class: OpClass::Read,
            offset: dice.below(1 << 28) * 4096,
            bytes: 4096 << dice.below(3),
        },
    }
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with("VmHWM"));
    line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok())
        .unwrap_or(0)
}

/// Seconds that this thread was on a processor: a busy machine does not count.
fn on_cpu() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let ns = text
        .split_whitespace()
        .next()
        .and_then(|word| word.parse().ok());
    ns.map_or(0.0, |ns: f64| ns / 1e9)
}

/// Requests that are made before they are handed over, so that making them is not measured.
const CHUNK: usize = 1 << 14;

/// Time, side, serial, begin, key.
type End = (u64, u8, u64, u64, Key);

enum Step {
    Guest(GuestRequest),
    Host(HostRequest),
}

fn run(requests: u64) {
    let mut dice = Dice(1);
    let mut pairing = Pairing::new(ClockStart::default());
    // By end; host requests (1) before the guest's that contain them.
    let mut ends: BinaryHeap<Reverse<End>> = BinaryHeap::new();
    let (mut linked, mut wrong, mut other, mut spent) = (0u64, 0u64, 0u64, 0.0);
    let (mut serial, mut at) = (0, 1_000_000_000);
    while serial < requests || !ends.is_empty() {
        let mut steps = Vec::with_capacity(CHUNK);
        while steps.len() < CHUNK && (serial < requests || !ends.is_empty()) {
            let due = ends
                .peek()
                .is_some_and(|Reverse(next)| serial >= requests || next.0 < at);
            if !due {
                let key = key(&mut dice);
                let start = at + 3_000 + dice.below(10_000);
                let end = start + 20_000 + dice.below(200_000);
                let completed = end + 4_000 + dice.below(20_000);
                ends.push(Reverse((end, 0, serial, start, key)));
                ends.push(Reverse((completed, 1, serial, at, key)));
                serial += 1;
                at += 1 + dice.below(2 * EVERY_NS);
            } else if let Some(Reverse((end, side, serial, begin, key))) = ends.pop() {
                steps.push((
                    end,
                    if side == 0 {
                        Step::Host(HostRequest {
                            serial,
                            disk: 0,
                            key,
                            buffer: 0,
                            lane: HostRequest::ANY_LANE,
                            start_ns: HostNs(begin),
                            end_ns: HostNs(end),
                        })
                    } else {
                        Step::Guest(GuestRequest {
                            serial,
                            device: 0,
                            key,
                            buffer: 0,
                            may_be_alone: false,
                            flushed_with: 0,
                            lane: GuestRequest::ANY_LANE,
                            issued_ns: GuestNs(guest_ns(begin)),
                            completed_ns: GuestNs(guest_ns(end)),
                        })
                    },
                ));
            }
        }
        let before = on_cpu();
        for (n, (now, step)) in steps.into_iter().enumerate() {
            match step {
                Step::Guest(request) => pairing.guest_request(request),
                Step::Host(request) => pairing.host_request(request),
            }
            if n % 64 == 0 {
                pairing.advance(GuestNs(guest_ns(now)), HostNs(now));
            }
            while let Some(outcome) = pairing.next_outcome() {
                match outcome {
                    Outcome::Paired(pair) => {
                        linked += 1;
                        wrong += u64::from(pair.guest != pair.host);
                    }
                    Outcome::Unpaired(_) => other += 1,
                    Outcome::Unclaimed(_) => {}
                }
            }
        }
        spent += on_cpu() - before;
    }
    let before = on_cpu();
    let clock = pairing.finish().clock;
    while let Some(outcome) = pairing.next_outcome() {
        match outcome {
            Outcome::Paired(pair) => {
                linked += 1;
                wrong += u64::from(pair.guest != pair.host);
            }
            Outcome::Unpaired(_) => other += 1,
            Outcome::Unclaimed(_) => {}
        }
    }
    spent += on_cpu() - before;
    println!(
        "{:>5} M events  {:>5.2} M guest requests/s  peak memory {:>6.1} MiB  linked {linked} of {requests}, wrong {wrong}, unlinked {other}, pieces {}, bound p50 {} ns max {} ns",
        requests * 4 / 1_000_000,
        requests as f64 / spent / 1e6,
        peak_kib() as f64 / 1024.0,
        clock.pieces,
        clock.error_bound_ns.p50.unwrap_or(0),
        clock.error_bound_ns.max.unwrap_or(0),
    );
    assert_eq!(wrong, 0);
    assert_eq!(linked + other, requests);
    assert!(other <= requests / 1000, "{other} of {requests} not linked");
}

#[test]
fn a_million_events_are_paired_and_none_wrongly() {
    let asked = std::env::var("PAIRING_SPEED").unwrap_or_else(|_| String::from("1"));
    for millions in asked.split(',') {
        run(millions.parse::<u64>().expect("millions of events") * 250_000);
    }
}

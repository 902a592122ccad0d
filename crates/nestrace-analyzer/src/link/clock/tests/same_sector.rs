//! Equal requests in flight at once, from several processors through one queue: their order on each
//! processor and in the queue tells some of them apart, and never wrongly.

use super::clock_world::{Dice, Said, TrueClock, TrueRequest};
use crate::link::clock::{ClockStart, GuestRequest, HostRequest, Key, OpClass};
use proptest::prelude::*;

const HOST_NS: u64 = 5_000_000_000;

/// Processors that write the same few places through one queue.
#[derive(Clone, Copy, Debug)]
struct Storm {
    seed: u64,
    n: usize,
    processors: u32,
    places: u64,
    every_ns: u64,
    there_ns: u64,
    service_ns: u64,
    back_ns: u64,
}

fn requests(storm: &Storm) -> Vec<TrueRequest> {
    let mut dice = Dice(storm.seed);
    let mut free_ns = vec![HOST_NS; storm.processors as usize];
    let mut all = Vec::new();
    let mut at = HOST_NS;
    for number in 0..storm.n {
        at += 1 + dice.around(storm.every_ns);
        let processor = dice.below(u64::from(storm.processors)) as u32;
        // What stands in the queue is there before the processor issues its next one.
        let issued = at.max(free_ns[processor as usize] + 1);
        let queued = issued + 500 + dice.around(3_000);
        free_ns[processor as usize] = queued;
        // Some have a place of their own: they tell the clock.
        let alone = dice.chance(300);
        let place = if alone {
            1000 + number as u64
        } else {
            dice.below(storm.places)
        };
        let key = Key {
            class: OpClass::Write,
            offset: place * 4096,
            bytes: 4096,
        };
        let request = TrueRequest {
            disk: 0,
            key,
            guest_lane: processor,
            flushed_with: 0,
            host_lane: 0,
            issued,
            start: queued,
            end: 0,
            completed: 0,
            seen_by_guest: true,
            seen_by_host: true,
        };
        all.push(request);
    }
    // QEMU takes them in the order of the queue.
    all.sort_by_key(|request| request.start);
    let mut last = 0;
    for request in &mut all {
        request.start = (request.start + storm.there_ns + dice.around(2_000)).max(last + 1);
        last = request.start;
        request.end = request.start + 5_000 + dice.around(storm.service_ns);
        request.completed = request.end + 2_000 + dice.around(storm.back_ns);
    }
    all
}

/// What is said of them; `ordered`: processor and queue are known.
fn pair(requests: &[TrueRequest], clock: &TrueClock, ordered: bool) -> Said {
    let mut requests = requests.to_vec();
    if !ordered {
        for request in &mut requests {
            request.guest_lane = GuestRequest::ANY_LANE;
            request.host_lane = HostRequest::ANY_LANE;
        }
    }
    super::clock_world::pair(&requests, clock, ClockStart::default())
}

fn clock() -> TrueClock {
    TrueClock::new(0, 30_000_000_000, 12, &[])
}

#[test]
fn the_order_of_each_processor_tells_more_than_the_clock_alone() {
    let storm = Storm {
        seed: 7,
        n: 6000,
        processors: 2,
        places: 2,
        every_ns: 300_000,
        there_ns: 20_000,
        service_ns: 400_000,
        back_ns: 20_000,
    };
    let requests = requests(&storm);
    let (by_clock, by_order) = (
        pair(&requests, &clock(), false),
        pair(&requests, &clock(), true),
    );
    println!(
        "{} by the clock, {} by order too",
        by_clock.paired.len(),
        by_order.paired.len()
    );
    assert_eq!((by_clock.wrong(), by_order.wrong()), (0, 0));
    let left = |said: &Said| requests.len() - said.paired.len();
    assert!(
        left(&by_order) * 10 < left(&by_clock) * 9,
        "no tenth of them is told"
    );
}

/// Two of one processor and one of another: the first's order says which of its own came last, and nothing
/// says more.
#[test]
fn processors_that_are_mixed_tell_what_they_can() {
    let lone = Storm {
        seed: 5,
        n: 400,
        processors: 1,
        places: u64::MAX >> 16,
        every_ns: 300_000,
        there_ns: 5_000,
        service_ns: 50_000,
        back_ns: 2_000,
    };
    let mut requests = requests(&lone);
    let (at, key) = (
        requests[200].completed.max(requests[199].completed),
        Key {
            class: OpClass::Write,
            offset: 7 << 50,
            bytes: 4096,
        },
    );
    for (guest_lane, issued, start, end, completed) in [
        (1, 0, 30_000, 200_000, 210_000),
        (0, 1_000, 32_000, 202_000, 850_000),
        (0, 2_000, 34_000, 800_000, 860_000),
    ] {
        requests.push(TrueRequest {
            key,
            guest_lane,
            issued: at + issued,
            start: at + start,
            end: at + end,
            completed: at + completed,
            ..requests[0]
        });
    }
    let of_three = |said: &Said| -> Vec<u64> {
        let three = requests.len() as u64 - 3;
        let paired = said.paired.iter().map(|pair| pair.guest);
        paired
            .filter(|guest| *guest >= three)
            .map(|guest| guest - three)
            .collect()
    };
    let (by_clock, by_order) = (
        pair(&requests, &clock(), false),
        pair(&requests, &clock(), true),
    );
    assert_eq!((by_clock.wrong(), by_order.wrong()), (0, 0));
    assert_eq!(
        (of_three(&by_clock), of_three(&by_order)),
        (vec![], vec![2])
    );
}

/// A request is unlinked only if an equal one was on its way at the same time.
#[test]
fn what_was_alone_is_linked() {
    let storm = Storm {
        seed: 3,
        n: 4000,
        processors: 4,
        places: 3,
        every_ns: 200_000,
        there_ns: 15_000,
        service_ns: 300_000,
        back_ns: 30_000,
    };
    let requests = requests(&storm);
    let said = pair(&requests, &clock(), true);
    let room_ns = 2 * said.clock.error_bound_ns.max.expect("known");
    for (i, _) in &said.unpaired {
        let own = &requests[*i as usize];
        let beside = requests.iter().enumerate().any(|(j, other)| {
            j as u64 != *i
                && other.key == own.key
                && other.issued <= own.completed + room_ns
                && own.issued <= other.completed + room_ns
        });
        assert!(beside, "{own:?} was alone");
    }
    assert!(!said.unpaired.is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 80, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_wrongly(
        seed in any::<u64>(),
        n in 100usize..1500,
        shape in (1u32..6, 1u64..6, 5_000u64..600_000),
        times in (0u64..100_000, 1_000u64..600_000, 1_000u64..200_000),
    ) {
        let storm = Storm {
            seed,
            n,
            processors: shape.0,
            places: shape.1,
            every_ns: shape.2,
            there_ns: times.0,
            service_ns: times.1,
            back_ns: times.2,
        };
        let requests = requests(&storm);
        let said = pair(&requests, &clock(), true);
        prop_assert_eq!(said.wrong(), 0);
    }
}

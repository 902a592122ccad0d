//! Flushes of several hardware queues in flight at once: the request that a queue flushes with says which is which, and
//! never wrongly.

use super::clock_world::{Dice, Said, TrueClock, TrueRequest};
use crate::link::clock::{ClockStart, HostRequest, Key, OpClass};
use proptest::prelude::*;

const HOST_NS: u64 = 5_000_000_000;
const FLUSH: Key = Key {
    class: OpClass::Flush,
    offset: 0,
    bytes: 0,
};

/// A disk with several hardware queues. Each sends one flush after the other.
#[derive(Clone, Copy, Debug)]
struct Disk {
    seed: u64,
    queues: u32,
    flushes: usize,
    pause_ns: u64,
    service_ns: u64,
}

impl Disk {
    fn requests(&self) -> Vec<TrueRequest> {
        let mut dice = Dice(self.seed);
        let mut all = Vec::new();
        for queue in 0..self.queues {
            let mut at_ns = HOST_NS;
            for _ in 0..self.flushes {
                let issued = at_ns + 2_000 + dice.around(self.pause_ns);
                let start = issued + 10_000 + dice.around(15_000);
                let end = start + 20_000 + dice.around(self.service_ns);
                let completed = end + 10_000 + dice.around(15_000);
                at_ns = completed;
                let flush = TrueRequest {
                    disk: 0,
                    key: FLUSH,
                    // A kernel worker may issue it on any processor.
                    guest_lane: dice.below(4) as u32,
                    flushed_with: 0xffff_8880_0000_0000 + u64::from(queue) * 448,
                    host_lane: queue,
                    issued,
                    start,
                    end,
                    completed,
                    seen_by_guest: true,
                    seen_by_host: true,
                };
                all.push(flush);
                // What the clock is given.
                if dice.chance(500) {
                    let key = Key {
                        class: OpClass::Write,
                        offset: all.len() as u64 * 4096,
                        bytes: 4096,
                    };
                    let length_ns = 60_000 + dice.around(40_000);
                    all.push(TrueRequest {
                        key,
                        flushed_with: 0,
                        start: issued + length_ns / 3,
                        end: issued + length_ns / 2,
                        completed: issued + length_ns,
                        ..flush
                    });
                }
            }
        }
        all.sort_by_key(|request| request.issued);
        all
    }
}

/// What is said of them; `named`: the events name the request that a queue flushes with.
fn pair(requests: &[TrueRequest], named: bool) -> Said {
    let mut requests = requests.to_vec();
    if !named {
        for request in &mut requests {
            request.flushed_with = 0;
        }
    }
    let clock = TrueClock::new(0, 30_000_000_000, 12, &[]);
    super::clock_world::pair(&requests, &clock, ClockStart::default())
}

#[test]
fn the_request_of_a_queue_tells_its_flushes_from_those_of_others() {
    let disk = Disk {
        seed: 11,
        queues: 4,
        flushes: 1_000,
        pause_ns: 300_000,
        service_ns: 200_000,
    };
    let requests = disk.requests();
    let (nameless, named) = (pair(&requests, false), pair(&requests, true));
    println!(
        "unlinked of {}: {} without names, {} with",
        requests.len(),
        nameless.unpaired.len(),
        named.unpaired.len()
    );
    assert_eq!((nameless.wrong(), named.wrong()), (0, 0));
    assert!(
        nameless.unpaired.len() > 100,
        "the clock alone distinguishes nearly all"
    );
    assert_eq!(named.unpaired, [], "of the queues' names");
}

#[test]
fn a_queue_whose_request_becomes_another_ones_is_learned_anew() {
    let disk = Disk {
        seed: 5,
        queues: 2,
        flushes: 800,
        pause_ns: 400_000,
        service_ns: 150_000,
    };
    let mut requests = disk.requests();
    let half = requests.len() / 2;
    let at_ns = requests[half].issued;
    for request in &mut requests[half..] {
        // The driver made its queues again, and the requests lie where the other one's lay.
        if request.flushed_with != 0 && request.issued > at_ns {
            request.host_lane = HostRequest::ANY_LANE - 1 - request.host_lane;
        }
    }
    let said = pair(&requests, true);
    assert_eq!(said.wrong(), 0);
    let unlinked = said.unpaired.len();
    assert!(unlinked * 20 < requests.len(), "{unlinked} are not linked");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn never_wrongly(
        seed in any::<u64>(),
        queues in 2u32..9,
        flushes in 20usize..100,
        pause_ns in 1_000u64..800_000,
        service_ns in 1_000u64..600_000,
    ) {
        let disk = Disk { seed, queues, flushes, pause_ns, service_ns };
        let said = pair(&disk.requests(), true);
        prop_assert_eq!(said.wrong(), 0);
    }
}

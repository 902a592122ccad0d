//! Equal requests in flight at once: the order in their queue tells which is which, but not within a
//! thread's plug, which some drivers put on the queue in the opposite order of D.

use crate::two_sides;
use nestrace_analyzer::analysis::UnlinkedReason;

use nestrace_abi::flags;
use nestrace_analyzer::{Analysis, Options};
use nestrace_trace::{Event, Kind};

use two_sides::{Streams, VM1, WAY, Way, chains, manifest};

const START: u64 = 10_000_000_000;
const QUEUE: u64 = 0x9000;
const TRAFFIC: u64 = 200;

/// Whether the second bio gets its request before the first is issued.
#[derive(Clone, Copy, PartialEq)]
enum Plug {
    Together,
    OneByOne,
}

#[test]
fn equal_requests_of_a_batch_are_ambiguous() {
    let analysis = two_writes_of_a_sector(Plug::Together);
    let chains = chains(&analysis, "vm1", "vd");
    assert_eq!(
        (chains.guest_bios, chains.linked),
        (TRAFFIC * 2 + 2, TRAFFIC * 2),
        "{chains:?}"
    );
    assert_eq!(chains.unlinked.get(&UnlinkedReason::Ambiguous), Some(&2));
}

#[test]
fn equal_requests_one_by_one_are_told_apart_by_their_order() {
    let analysis = two_writes_of_a_sector(Plug::OneByOne);
    let chains = chains(&analysis, "vm1", "vd");
    assert_eq!(
        (chains.guest_bios, chains.linked),
        (TRAFFIC * 2 + 2, TRAFFIC * 2 + 2),
        "{chains:?}"
    );
}

fn two_writes_of_a_sector(plug: Plug) -> Analysis {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, START, TRAFFIC, WAY);
    let write = |object, related| Event {
        object,
        related,
        offset: 1 << 30,
        bytes: 4096,
        flags: flags::OP_WRITE,
        tid: 500,
        ..Event::default()
    };
    let bios = [streams.address(), streams.address()];
    let requests = [streams.address(), streams.address()];
    let (queued, issued) = match plug {
        Plug::Together => ([at, at + 1_000], [at + 3_000, at + 2_000]),
        Plug::OneByOne => ([at, at + 2_000], [at + 1_000, at + 3_000]),
    };
    for i in 0..2 {
        streams.guest(VM1, queued[i], Kind::Queue, write(bios[i], 0));
        streams.guest(VM1, queued[i] + 200, Kind::GetRequest, write(bios[i], 0));
        streams.guest(VM1, issued[i], Kind::Issue, write(requests[i], bios[i]));
    }
    let start = at + 13_000;
    // The second file I/O comes after the first: one thread does both.
    let waits = Way {
        qemu_submit: WAY.total(),
        ..WAY
    };
    streams.qemu_data(VM1, start, flags::OP_WRITE, 1 << 30, 4096, WAY);
    let end = streams.qemu_data(VM1, start + 5_000, flags::OP_WRITE, 1 << 30, 4096, waits);
    for (i, request) in requests.into_iter().enumerate() {
        let done = end + 10_000 + i as u64 * 1_000;
        streams.guest(VM1, done, Kind::Complete, write(request, 0));
    }
    streams.traffic(VM1, end + 100_000, TRAFFIC, WAY);
    for event in &mut streams.host {
        if event.kind() == Some(Kind::VirtqueuePush) {
            event.related = QUEUE;
        }
    }
    streams.analyze(&manifest(), Options::default())
}

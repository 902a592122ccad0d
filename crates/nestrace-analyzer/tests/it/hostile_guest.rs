//! A guest that begins I/O for ever and ends none: the analyzer's memory does not grow with it, and what
//! was given up is counted.

use crate::one_guest;
use nestrace_analyzer::analysis::UnlinkedReason;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeMap;

use nestrace_abi::flags::{OP_FLUSH, OP_READ, OP_WRITE};
use nestrace_analyzer::{Analysis, Analyzer, Options, StoryChoice};
use nestrace_trace::{Event, Kind};

const VDA: u32 = 254 << 20;
/// What is in flight at most takes some 60 to 120 MB.
const MAX_BYTES: i64 = 160 << 20;

/// Counts what each thread holds: tests run side by side.
struct Counting;

thread_local! {
    static HELD: Cell<i64> = const { Cell::new(0) };
}

#[global_allocator]
static COUNTING: Counting = Counting;

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.set(HELD.get() + layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.set(HELD.get() - layout.size() as i64);
        // SAFETY: the caller keeps the contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

/// Analyzes `n` events; what the guest's bios were not linked for. Fails if memory grows.
fn attack(
    backend: &str,
    options: Options,
    n: u64,
    event: impl Fn(u64) -> Event,
) -> (u64, BTreeMap<UnlinkedReason, u64>) {
    attack_within(MAX_BYTES, backend, options, n, event)
}

fn attack_within(
    most_bytes: i64,
    backend: &str,
    options: Options,
    n: u64,
    event: impl Fn(u64) -> Event,
) -> (u64, BTreeMap<UnlinkedReason, u64>) {
    let manifest = one_guest::manifest(backend, VDA);
    let mut analyzer = Analyzer::new(&manifest, options);
    let before = HELD.get();
    let mut most = 0;
    for index in 0..n {
        analyzer.push_guest(0, &event(index));
        most = most.max(HELD.get() - before);
        assert!(most < most_bytes, "{most} bytes after {index} events");
    }
    println!("{most} bytes at most");
    let analysis: Analysis = analyzer.finish();
    let chains = &analysis.chains[0];
    (chains.guest_bios, chains.unlinked.clone())
}

/// The n-th event at 10 million a second.
fn event(n: u64, kind: Kind, object: u64) -> Event {
    Event {
        ts_ns: 1_000_000_000 + n * 100,
        kind: kind as u8,
        dev: VDA,
        object,
        offset: n % (1 << 30) * 4096,
        bytes: 4096,
        flags: OP_WRITE,
        ..Event::default()
    }
}

#[test]
fn ten_million_bios_without_an_end() {
    const N: u64 = 10_000_000;
    let queue = |n| event(n, Kind::Queue, n << 6);
    let (bios, unlinked) = attack("ebpf", Options::default(), N, queue);
    assert_eq!(bios, N);
    assert_eq!(unlinked.values().sum::<u64>(), N, "{unlinked:?}");
    assert!(
        unlinked[&UnlinkedReason::NoEnd] > N - (1 << 17),
        "{unlinked:?}"
    );
}

#[test]
fn and_when_the_clock_stands_still_and_stories_are_wanted() {
    const N: u64 = 600_000;
    let still = |n| Event {
        ts_ns: 7_000_000_000,
        ..event(n, Kind::Queue, n << 6)
    };
    let mut options = Options::default();
    options.story = Some(StoryChoice::Slowest(3));

    let (bios, unlinked) = attack("ebpf", options, N, still);
    assert_eq!((bios, unlinked.values().sum::<u64>()), (N, N));
}

#[test]
fn one_address_again_and_again() {
    const N: u64 = 600_000;
    let mut options = Options::default();
    options.story = Some(StoryChoice::Slowest(3));

    let (bios, _) = attack("ebpf", options, N, |n| event(n, Kind::Queue, 64));
    assert_eq!(bios, N);
}

#[test]
fn flushes_without_an_end() {
    const N: u64 = 600_000;
    let flush = |object: u64| {
        move |n| Event {
            bytes: 0,
            flags: OP_FLUSH,
            ..event(n, Kind::Queue, if object == 0 { n << 6 } else { object })
        }
    };
    for object in [0, 64] {
        let (bios, unlinked) = attack("ebpf", Options::default(), N, flush(object));
        assert_eq!((bios, unlinked.values().sum::<u64>()), (N, N));
    }
}

/// Each part goes its way to its end, the bio itself never ends.
#[test]
fn one_bio_is_split_for_ever() {
    const PARTS: u64 = 200_000;
    const WHOLE: u64 = 64;
    let step = |n: u64| {
        let part = n.div_ceil(3) << 7;
        let request = part | 1;
        match (n, n % 3) {
            (0, _) => Event {
                bytes: u64::from(u32::MAX),
                ..event(n, Kind::Queue, WHOLE)
            },
            (_, 1) => Event {
                related: WHOLE,
                ..event(n, Kind::Split, part)
            },
            (_, 2) => Event {
                related: part,
                offset: 0,
                ..event(n, Kind::Issue, request)
            },
            _ => Event {
                offset: 0,
                ..event(n, Kind::Complete, request)
            },
        }
    };
    let (bios, unlinked) = attack("ebpf", Options::default(), 1 + 3 * PARTS, step);
    assert_eq!(
        (bios, unlinked),
        (1, BTreeMap::from([(UnlinkedReason::NoEnd, 1)]))
    );
}

/// The same request carries one bio after the other: it ends each of them with a part of its data, is put
/// back and issued anew, and never completes.
#[test]
fn one_request_ends_bios_for_ever() {
    const BIOS: u64 = 700_000;
    const REQUEST: u64 = 64;
    let step = |n: u64| {
        let bio = (n / 4 + 1) << 7;
        let (kind, object, related) = match n % 4 {
            0 => (Kind::Queue, bio, 0),
            1 => (Kind::Issue, REQUEST, bio),
            2 => (Kind::Complete, REQUEST, 4096),
            _ => (Kind::Requeue, REQUEST, 0),
        };
        Event {
            related,
            offset: 0,
            ..event(n, kind, object)
        }
    };
    let most = 2 * MAX_BYTES;
    let (bios, unlinked) = attack_within(most, "ebpf", Options::default(), 4 * BIOS, step);
    assert_eq!((bios, unlinked.values().sum::<u64>()), (BIOS, BIOS));
    assert!(unlinked[&UnlinkedReason::NoEnd] > BIOS / 4, "{unlinked:?}");
}

#[test]
fn one_request_is_said_to_carry_ever_more_bios() {
    const N: u64 = 3_000_000;
    let step = |n: u64| match n {
        0 => Event {
            related: 64,
            ..event(n, Kind::Issue, 1)
        },
        _ => Event {
            related: (3 * n) << 6,
            offset: (3 * n + 1) << 6,
            bytes: (3 * n + 2) << 6,
            ..event(n, Kind::Link, 1)
        },
    };
    attack("ebpf", Options::default(), N, step);
}

#[test]
fn many_requests_are_said_to_carry_many_bios_each() {
    const N: u64 = 6_000_000;
    const LINKS: u64 = 300;
    let step = |n: u64| match n % LINKS {
        0 => Event {
            related: 64,
            ..event(n, Kind::Issue, ((n / LINKS) << 6) | 1)
        },
        link => Event {
            related: (3 * link) << 6,
            offset: (3 * link + 1) << 6,
            bytes: (3 * link + 2) << 6,
            ..event(n, Kind::Link, ((n / LINKS) << 6) | 1)
        },
    };
    attack("ebpf", Options::default(), N, step);
}

#[test]
fn ever_more_threads_have_names() {
    const N: u64 = 3_000_000;
    let step = |n: u64| match n {
        0 => event(n, Kind::Queue, 64),
        _ => Event {
            tid: n as u32,
            related: u64::from_le_bytes(*b"a thread"),
            offset: u64::from_le_bytes(*b" of many"),
            ..event(n, Kind::Thread, n)
        },
    };
    attack("ebpf", Options::default(), N, step);
}

/// Each merge looks through what ends where its bio begins: all of it, this took days.
#[test]
fn a_capture_with_everything_at_one_place() {
    const AT_ONE_PLACE: u64 = 60_000;
    let step = |n: u64| {
        let merges = n >= 2 * AT_ONE_PLACE;
        let kind = match n % 2 {
            0 => Kind::Queue,
            _ if merges => Kind::BackMerge,
            _ => Kind::GetRequest,
        };
        Event {
            offset: if merges { 4096 } else { 0 },
            flags: if merges { OP_READ } else { OP_WRITE },
            ..event(n, kind, 0)
        }
    };
    attack("blktrace", Options::default(), 4 * AT_ONE_PLACE, step);
}

/// A request that is put back is issued again with all of its bios.
#[test]
fn a_capture_of_one_request_with_ever_more_bios() {
    const BIOS: u64 = 50_000;
    let step = |n: u64| {
        let (kind, offset, bytes) = match (n, n % 2) {
            (_, 0) if n < 2 * BIOS => (Kind::Queue, n / 2 * 4096, 4096),
            (1, _) => (Kind::GetRequest, 0, 4096),
            (_, 1) if n < 2 * BIOS => (Kind::BackMerge, n / 2 * 4096, 4096),
            (_, 0) => (Kind::Issue, 0, BIOS * 4096),
            _ => (Kind::Requeue, 0, BIOS * 4096),
        };
        Event {
            offset,
            bytes,
            ..event(n, kind, 0)
        }
    };
    attack("blktrace", Options::default(), 2 * BIOS + 20_000, step);
}

#[test]
fn requests_without_an_end() {
    const N: u64 = 600_000;
    for kind in [Kind::Issue, Kind::Insert] {
        attack("ebpf", Options::default(), N, |n| Event {
            related: n << 6 | 1,
            ..event(n, kind, n << 6)
        });
    }
}

#[test]
fn a_capture_without_addresses() {
    const N: u64 = 600_000;
    let kinds = [Kind::Queue, Kind::BackMerge];
    let merges = |n: u64| event(n / 2, kinds[(n % 2) as usize], 0);
    let queues = |n| event(n, Kind::Queue, 0);
    let one_place = |n| Event {
        offset: 0,
        ts_ns: 1,
        ..event(n, Kind::Queue, 0)
    };
    attack("blktrace", Options::default(), N, merges);
    let (bios, unlinked) = attack("blktrace", Options::default(), N, queues);
    assert_eq!((bios, unlinked.values().sum::<u64>()), (N, N));
    attack("blktrace", Options::default(), N, one_place);
}

#[test]
fn requests_of_bios_that_were_never_queued() {
    const N: u64 = 2_000_000;
    let step = |n: u64| {
        let kind = if n.is_multiple_of(2) {
            Kind::Issue
        } else {
            Kind::Complete
        };
        Event {
            ts_ns: 7_000_000_000,
            related: if kind == Kind::Issue { n + 1 } else { 0 },
            ..event(n, kind, (n / 2) << 6)
        }
    };
    attack("ebpf", Options::default(), N, step);
}

/// Were the sum to run over, one lost event of the host would be none.
#[test]
fn a_guest_that_lost_everything_hides_no_loss_of_the_host() {
    let manifest = one_guest::manifest("ebpf", VDA);
    let mut analyzer = Analyzer::new(&manifest, Options::default());
    let loss = |total| Event {
        object: total,
        sub: 0,
        ..event(0, Kind::Loss, 0)
    };
    analyzer.push(&loss(1));
    analyzer.push_guest(0, &loss(u64::MAX));
    assert_eq!(analyzer.finish().trace.lost, u64::MAX);
}

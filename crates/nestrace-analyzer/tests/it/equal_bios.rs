//! Equal bios of a guest without BPF, whose events name no bio: each is linked to its own request, or to none.

use crate::two_sides;
use nestrace_analyzer::analysis::UnlinkedReason;

use nestrace_abi::flags;
use nestrace_analyzer::{Options, StoryChoice};
use nestrace_trace::{Event, Kind};

use two_sides::{Streams, VM1, WAY, chains, manifest};

const START: u64 = 10_000_000_000;
const BEFORE: u64 = 300;
const AFTER: u64 = 100;
const OFFSET: u64 = 1 << 29;

/// Tasks that queue the first and the second bio, at once. The second is in a request before the first.
struct Tasks(u32, u32);

/// From the first one's Q to its end, and a time after it.
fn equal_bios(streams: &mut Streams, at: u64, tasks: &Tasks) -> (u64, u64) {
    let event = |tid| Event {
        offset: OFFSET,
        bytes: 4096,
        flags: flags::OP_WRITE,
        tid,
        ..Event::default()
    };
    streams.guest(VM1, at, Kind::Queue, event(tasks.0));
    streams.guest(VM1, at + 1_000, Kind::Queue, event(tasks.1));
    let mut now = at + 1_000;
    for tid in [tasks.1, tasks.0] {
        streams.guest(VM1, now + 1_000, Kind::GetRequest, event(tid));
        let issued = now + 2_000;
        streams.guest(VM1, issued, Kind::Issue, event(tid));
        let start = issued + WAY.virt_submit;
        let end = streams.qemu_data(VM1, start, flags::OP_WRITE, OFFSET, 4096, WAY);
        let done = end + WAY.virt_complete;
        streams.guest(VM1, done, Kind::Complete, event(0));
        now = done + 50_000;
    }
    (now - 50_000 - at, now)
}

/// Bios that are linked, those that are ambiguous, the longest of all, and how long the first of the equal ones took.
fn check(tasks: &Tasks) -> (u64, u64, u64, u64) {
    let mut streams = Streams::new(2);
    let at = streams.traffic(VM1, START, BEFORE, WAY);
    let (first_ns, at) = equal_bios(&mut streams, at, tasks);
    streams.traffic(VM1, at, AFTER, WAY);
    for event in &mut streams.guests[0] {
        (event.object, event.related) = (0, 0);
    }
    let mut manifest = manifest();
    manifest.guest_sides[0].backend = "blktrace".into();
    let mut options = Options::default();
    options.story = Some(StoryChoice::Slowest(1));

    let analysis = streams.analyze(&manifest, options);
    let chains = chains(&analysis, "vm1", "vd");
    assert_eq!(chains.guest_bios, BEFORE + AFTER + 2);
    assert_eq!(chains.guest_requests, BEFORE + AFTER + 2);
    let ambiguous = chains
        .unlinked
        .get(&UnlinkedReason::Ambiguous)
        .copied()
        .unwrap_or(0);
    let longest_ns = analysis.stories[0].q2c_ns;
    (chains.linked, ambiguous, longest_ns, first_ns)
}

#[test]
fn a_bio_is_never_linked_to_the_request_of_its_equal() {
    let others = BEFORE + AFTER;
    let (linked, ambiguous, longest_ns, first_ns) = check(&Tasks(7, 8));
    assert_eq!((linked, ambiguous), (others + 2, 0));
    assert_eq!(longest_ns, first_ns);
    for tasks in [Tasks(7, 7), Tasks(0, 0)] {
        let (linked, ambiguous, ..) = check(&tasks);
        assert_eq!((linked, ambiguous), (others, 2));
    }
}

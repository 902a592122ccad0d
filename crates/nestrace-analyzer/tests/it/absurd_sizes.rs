//! Sizes and places that nothing has: of a damaged recording of the host, or of a capture. They are in no
//! figure, and the result says how many there were.

use crate::two_sides;

use nestrace_analyzer::analysis::Image;
use nestrace_analyzer::{Analysis, Analyzer, BlockAnalyzer, BlockOptions, Options};
use nestrace_trace::{Event, Kind};

use two_sides::{Streams, VM1, WAY};

const BIOS: u64 = 200;
/// The k-th event of each of these kinds is damaged.
const NTH: usize = 3;

fn events() -> Vec<Event> {
    let mut streams = Streams::new(1);
    streams.traffic(VM1, 10_000_000_000, BIOS, WAY);
    streams.host.sort_by_key(|event| event.ts_ns);
    streams.host
}

/// Damages every [`NTH`] event of a kind; how many those are.
fn damage(events: &mut [Event], kind: Kind, bytes: u64, offset: Option<u64>) -> u64 {
    let of_kind = events.iter_mut().filter(|event| event.kind() == Some(kind));
    let mut n = 0;
    for event in of_kind.step_by(NTH) {
        (event.bytes, event.offset) = (bytes, offset.unwrap_or(event.offset));
        n += 1;
    }
    n
}

fn said(analysis: &Analysis) -> Vec<&String> {
    let of_sizes = |notice: &&String| notice.contains("with a size or place that nothing has");
    analysis.trace.notices.iter().filter(of_sizes).collect()
}

fn analyze(events: Vec<Event>) -> Analysis {
    Analyzer::analyze(&two_sides::manifest(), Options::default(), events)
}

/// What each figure of bytes can be at most: those of the same recording without damage.
fn check(damaged: &Analysis, whole: &Analysis) {
    for (damaged, whole) in damaged.devices.iter().zip(&whole.devices) {
        assert!(damaged.bytes.read <= whole.bytes.read, "{damaged:?}");
        assert!(damaged.bytes.write <= whole.bytes.write, "{damaged:?}");
    }
    for (damaged, whole) in damaged.qemu.iter().zip(&whole.qemu) {
        assert!(damaged.bytes.read <= whole.bytes.read, "{damaged:?}");
        assert!(damaged.bytes.write <= whole.bytes.write, "{damaged:?}");
    }
    for (damaged, whole) in damaged.images.iter().zip(&whole.images) {
        let written = |image: &Image| image.host_bytes.map(|bytes| bytes.write);
        assert!(written(damaged) <= written(whole), "{damaged:?}");
    }
}

#[test]
fn of_the_hosts_kernel_and_of_qemu() {
    let whole = analyze(events());
    assert!(said(&whole).is_empty(), "{:?}", whole.trace.notices);
    let blocks = [Kind::Queue, Kind::Issue, Kind::Complete];
    let of_qemu = [Kind::AcctStart, Kind::AioPwritev];
    for bytes in [1 << 49, 1 << 62, u64::MAX - 511, u64::MAX] {
        for kind in blocks.into_iter().chain(of_qemu) {
            let mut events = events();
            let n = damage(&mut events, kind, bytes, None);
            assert!(n > 0, "no {kind:?}");
            let analysis = analyze(events);
            let notices = said(&analysis);
            assert_eq!(notices.len(), 1, "{kind:?} of {bytes}");
            assert!(notices[0].starts_with(&format!("{n} events of the host")));
            check(&analysis, &whole);
        }
    }
}

#[test]
fn at_places_that_no_disk_has() {
    let whole = analyze(events());
    let mut events = events();
    let n = damage(&mut events, Kind::Issue, 4096, Some(u64::MAX - 4095));
    let analysis = analyze(events);
    assert!(said(&analysis)[0].starts_with(&format!("{n} events")));
    check(&analysis, &whole);
}

/// A request that passes through has no place (its sector is −1), and a flush neither: nothing is wrong.
#[test]
fn what_has_no_place_is_not_absurd() {
    let flush = Event {
        offset: u64::MAX << 9,
        bytes: 0,
        flags: nestrace_abi::flags::OP_FLUSH,
        kind: Kind::Issue as u8,
        ..Event::default()
    };
    let inquiry = Event {
        bytes: 36,
        flags: nestrace_abi::flags::OP_OTHER,
        ..flush
    };
    let analysis = analyze(vec![flush, inquiry]);
    assert!(said(&analysis).is_empty(), "{:?}", analysis.trace.notices);
}

#[test]
fn where_blocks_are_looked_at_alone() {
    let mut analyzer = BlockAnalyzer::new(BlockOptions::default());
    let mut events = events();
    let n = damage(&mut events, Kind::Queue, u64::MAX, None);
    events.iter().for_each(|event| analyzer.push(event));
    assert_eq!(analyzer.implausible(), n);
}

//! A guest's stream that lacks events, because its agent was started again: what was in flight then has no
//! end, whatever is seen of its addresses later.

use crate::notation;
use crate::one_guest;
use nestrace_analyzer::analysis::UnlinkedReason;

use std::collections::BTreeMap;

use nestrace_analyzer::analysis::Device;
use nestrace_analyzer::{Analysis, Analyzer, Options};

/// One request is at the device and one bio in the queue when events are lost.
const BEFORE: &str = "1000000 Q b1 R 0+4096
     1000010 G b1
     1000020 D r1 R 0+4096 rel=b1
     1000030 Q b2 W 8192+512
     1000040 G b2
     2000000 loss total=1 sub=0
";

fn analyze(text: &str) -> Analysis {
    let manifest = one_guest::manifest("ebpf", notation::DEV);
    let mut analyzer = Analyzer::new(&manifest, Options::default());
    for event in notation::events(text) {
        analyzer.push_guest(0, &event);
    }
    analyzer.finish()
}

/// The guest's disk; every bio of it is counted.
fn device(text: &str) -> Device {
    let analysis = analyze(text);
    let chains = &analysis.chains[0];
    assert_eq!(
        chains.guest_bios,
        chains.linked + chains.unlinked.values().sum::<u64>()
    );
    assert_eq!(analysis.trace.lost, 1);
    analysis.devices.into_iter().next().expect("a device")
}

/// Completed, completed unseen, bytes that were read, and those without a C.
fn counts(device: &Device) -> [u64; 4] {
    let missed = device.check.expect("full").missed;
    [
        device.counts.completed,
        missed.completed,
        device.bytes.read,
        missed.bytes.read,
    ]
}

fn no_latency(device: &Device) {
    let all = device.latency_ns.all;
    let n = [all.d2c, all.q2c].map(|dist| dist.expect("full").n);
    assert_eq!(n, [0, 0]);
}

#[test]
fn a_completion_after_the_hole_ends_nothing_that_began_before_it() {
    let device = device(&format!("{BEFORE} 9000000000 C r1 R 0+4096"));
    no_latency(&device);
    assert_eq!(counts(&device), [1, 0, 4096, 0]);
    assert_eq!(
        device.unlinked,
        BTreeMap::from([(UnlinkedReason::LostEvents, 1)])
    );
    let check = device.check.expect("full");
    assert_eq!((check.open_at_end, check.completions_missed), (2, 0));
    assert_eq!(device.queue_depth.busy_ns, 2_000_000 - 1_000_020);
}

#[test]
fn one_of_another_place_shows_that_an_end_is_missing() {
    let device = device(&format!("{BEFORE} 9000000000 C r1 R 4096+512"));
    no_latency(&device);
    assert_eq!(counts(&device), [1, 1, 512, 4096]);
}

#[test]
fn so_does_a_request_at_the_same_address() {
    let text = "9000000000 Q b1 R 4096+512
         9000000001 G b1
         9000000002 D r1 R 4096+512 rel=b1
         9000000003 C r1 R 4096+512";
    let device = device(&format!("{BEFORE} {text}"));
    let all = device.latency_ns.all;
    assert_eq!(all.d2c.expect("full").max, Some(1));
    assert_eq!(all.q2c.expect("full").max, Some(3));
    assert_eq!(counts(&device), [1, 1, 512, 4096]);
    let check = device.check.expect("full");
    assert_eq!((check.reused_while_live, check.ended), (0, 1));
    // The hole is no pause between two bios.
    assert_eq!(device.latency_ns.q2q.expect("full").n, 1);
}

#[test]
fn and_one_that_is_never_seen_again() {
    let device = device(&format!("{BEFORE} 9000000000 Q b9 R 0+512"));
    no_latency(&device);
    assert_eq!(counts(&device), [0, 1, 0, 4096]);
}

#[test]
fn every_bio_that_was_in_flight_is_told_as_lost() {
    let text = format!("{BEFORE} 9000000000 C r1 R 0+4096");
    let unlinked = &analyze(&text).chains[0].unlinked;
    assert_eq!(*unlinked, BTreeMap::from([(UnlinkedReason::LostEvents, 2)]));
}

#[test]
fn requests_that_were_too_long_to_follow_interrupt_nothing() {
    let text = BEFORE.replace("sub=0", "sub=5") + "9000000 C r1 R 0+4096";
    let analysis = analyze(&text);
    let q2c = analysis.devices[0].latency_ns.all.q2c.expect("full");
    assert_eq!((q2c.n, q2c.max), (1, Some(8_000_000)));
}

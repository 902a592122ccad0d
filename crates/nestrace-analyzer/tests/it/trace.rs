//! What is said of the recording itself, and what the caller may choose.

use crate::notation;
use crate::stack;

use nestrace_analyzer::{Analyzer, Options};
use nestrace_trace::{Damage, manifest};

use stack::manifest;

#[test]
fn the_trace_tells_losses_and_state() {
    let mut manifest = manifest();
    manifest.start_mono_ns = 1000;
    manifest.start_unix_ns = 77;
    manifest.losses = vec![
        manifest::Loss {
            source: "block".into(),
            guest: None,
            events: 5,
        },
        manifest::Loss {
            source: "file".into(),
            guest: None,
            events: 0,
        },
        manifest::Loss {
            source: "walk".into(),
            guest: None,
            events: 2,
        },
    ];
    manifest.streams = vec![manifest::Stream {
        file: "host.arrows".into(),
        side: "host".into(),
        ..Default::default()
    }];
    let mut options = Options::default();
    options.path = "run.nest".into();

    let events =
        notation::events("2000 Q b1 R 0+512\n3000 loss total=9 sub=0\n3000 loss total=4 sub=3");
    let trace = Analyzer::analyze(&manifest, options, events).trace;
    assert_eq!(
        (
            trace.path.as_str(),
            trace.start_unix_ns,
            trace.duration_ns,
            trace.events
        ),
        ("run.nest", Some(77), 1000, 3)
    );
    assert_eq!(
        (trace.lost, trace.truncated),
        (9 + 4, true),
        "walk counts no events; not closed"
    );
    let losses: Vec<_> = trace
        .losses
        .iter()
        .map(|loss| (loss.source.as_str(), loss.events))
        .collect();
    assert_eq!(losses, [("block", 9), ("walk", 2), ("qemu", 4)]);
    assert_eq!(
        (
            trace.sources[0].name.as_str(),
            trace.sources[0].lost,
            trace.sources[0].events
        ),
        ("host.arrows", 13, 3)
    );
    manifest.state = manifest::State::Complete;
    manifest.end_mono_ns = 9000;
    let trace = Analyzer::analyze(&manifest, Options::default(), []).trace;
    assert_eq!((trace.duration_ns, trace.truncated), (8000, false));
}

#[test]
fn whether_it_was_closed_is_told_apart_from_what_is_missing() {
    use manifest::State::{Complete, Recording, Repaired};
    for (state, start_unix_ns, end_reason, expected) in [
        (Complete, 77, "duration", Some(true)),
        // A capture of blktrace whose wall clock is not known.
        (Complete, 0, "", Some(true)),
        (Recording, 77, "", Some(false)),
        (Repaired, 77, "", Some(false)),
        (Repaired, 77, "duration", Some(true)),
        (Recording, 0, "", None),
        (Repaired, 0, "", None),
    ] {
        let mut manifest = manifest();
        (manifest.state, manifest.start_unix_ns) = (state, start_unix_ns);
        manifest.end_reason = end_reason.into();
        let mut analyzer = Analyzer::new(&manifest, Options::default());
        let cut = Damage {
            rows_lost: 0,
            cut: true,
        };
        analyzer.damaged(None, cut);
        let trace = analyzer.finish().trace;
        assert_eq!((trace.closed, trace.truncated), (expected, true));
    }
}

#[test]
fn a_guests_full_disk_does_not_account_for_the_hosts_damage() {
    for full in [None, Some("vm1")] {
        let mut manifest = manifest();
        manifest.state = manifest::State::Complete;
        manifest.losses = vec![manifest::Loss {
            source: "disk_full".into(),
            guest: full.map(str::to_owned),
            events: 5,
        }];
        let mut analyzer = Analyzer::new(&manifest, Options::default());
        let damage = |rows_lost| Damage {
            rows_lost,
            cut: true,
        };
        analyzer.damaged(None, damage(20));
        analyzer.damaged(Some("vm1"), damage(300));
        let trace = analyzer.finish().trace;
        let notices = trace.notices.join("\n");
        let of_guest = notices.contains("inside vm1 is damaged");
        let expected = match full {
            // It holds the streams of the guests too. What was written and is lost was damaged later.
            None => (325, false, false),
            Some(_) => (325, true, false),
        };
        assert_eq!((trace.lost, trace.truncated, of_guest), expected);
    }
}

#[test]
fn a_clock_that_ntp_bends_is_told() {
    let mut manifest = manifest();
    manifest.host_clock_correction_ppm = Some(20);
    for (guest_ppm, told) in [
        (None, None),
        (Some(480), None),
        (Some(490), Some("490 ppm")),
        (Some(u32::MAX), Some("110,000 ppm")),
    ] {
        manifest.guest_sides = vec![manifest::GuestSide {
            guest: "vm1".into(),
            clock_correction_ppm: guest_ppm,
            ..Default::default()
        }];
        let trace = Analyzer::analyze(&manifest, Options::default(), []).trace;
        let expected = told.map(|ppm| {
            format!(
                "NTP corrected the clock inside vm1 by up to {ppm} and the host's by up to 20 ppm: the clock's bound \
                 allows for that and is wider"
            )
        });
        let notices = trace
            .notices
            .iter()
            .filter(|notice| notice.starts_with("NTP"));
        assert!(notices.eq(&expected), "{guest_ppm:?}: {:?}", trace.notices);
    }
}

#[test]
fn unknown_kinds_are_skipped_and_counted() {
    let event = nestrace_trace::Event {
        kind: 250,
        ..Default::default()
    };
    let trace = Analyzer::analyze(&manifest(), Options::default(), [event]).trace;
    assert_eq!((trace.events, trace.unknown_events), (1, 1));
}

#[test]
fn options_choose_guest_device_and_time() {
    let text = "1000 acct-read 0x1 rel=0x10040 bytes=512
         1010 acct-read 0x1 rel=0x10040 bytes=512 dev=1
         1100 Q b1 R 0+512
         1101 Q b1 R 0+512 dev=8:0
         2000 acct-done 0x1 rel=0x10040
         2000 acct-done 0x1 rel=0x10040 dev=1
         5000 Q b9 R 0+512";
    let mut options = Options::default();
    options.guest = Some("vm2".into());
    options.device = Some("loop0".into());
    options.to_ns = Some(3000);

    let analysis = Analyzer::analyze(&manifest(), options, notation::events(text));
    assert_eq!(
        analysis
            .qemu
            .iter()
            .map(|disk| disk.guest.as_str())
            .collect::<Vec<_>>(),
        ["vm2"]
    );
    assert!(analysis.images.iter().all(|image| image.guest == "vm2"));
    let [device] = &analysis.devices[..] else {
        panic!("one device")
    };
    assert_eq!(
        (device.name.as_str(), device.counts.queued),
        ("loop0", Some(1))
    );
}

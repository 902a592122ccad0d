//! The text and the JSON of a synthetic recording with a bit of everything.

use crate::notation;
use crate::two_sides::{self, Streams, VM1, VM2, WAY};

use nestrace_analyzer::analysis::{Severity, User, UserKind};
use nestrace_analyzer::{Analysis, Analyzer, Options};
use nestrace_report::{json, text};
use nestrace_trace::manifest::{
    self, Backend, Device, Disk, Guest, Image, Manifest, Mount, Topology,
};
use nestrace_trace::{Damage, is_printable};

/// A guest with one virtio disk on xfs on loop0.
fn manifest() -> Manifest {
    let image = Image {
        path: "/var/lib/libvirt/images/a-rather-long-directory-name/vm1-root.qcow2".into(),
        format: "qcow2".into(),
        inode: 12,
        dev: 7 << 20,
        direct: Some(true),
        mount: Some(Mount {
            fs_type: "xfs".into(),
            ..Default::default()
        }),
        devices: vec!["loop0".into()],
        ..Default::default()
    };
    let mut manifest = Manifest::default();
    manifest.start_unix_ns = 1_700_000_000_000_000_000;
    manifest.detail = "full".into();
    manifest.state = manifest::State::Complete;
    manifest.topology = Topology {
        guests: vec![Guest {
            name: "vm1".into(),
            pid: 1000,
            disks: vec![Disk {
                name: "root".into(),
                bus: "virtio-blk".into(),
                images: vec![image],
                ..Default::default()
            }],
            backends: vec![Backend {
                address: 0x10000,
                disk: 0,
                proof: "only disk".into(),
            }],
            ..Default::default()
        }],
        devices: vec![Device {
            name: "loop0".into(),
            dev: 7 << 20,
            ..Default::default()
        }],
        ..Default::default()
    };
    manifest
}

/// Reads, a flush that fdatasync turns into a journal commit, a merge, a neighbour.
const WORKLOAD: &str = "
    1u thread tid=61 tgid=61 name=rsync
    100u acct-read 0x9000d8 rel=0x10040 bytes=4096
    105u preadv 0x900000 rel=0x10000 0+4096
    120u read 0x5 0+4096 inode=12 of=7:0 tid=9
    130u Q b1 R 0+4096 inode=12 of=7:0 sub=1
    132u G b1
    150u D r1 R 0+4096 rel=b1
    350u C r1 R 0+4096
    370u exit tid=9 result=4096
    400u push 0x900000
    420u acct-done 0x9000d8 rel=0x10040
    500u acct-flush 0x9000d8 rel=0x10040
    510u aio-flush 0x900000 rel=0x10000
    520u fdatasync 0x5 inode=12 of=7:0 tid=9
    530u Q b2 Wf 65536+4096 end_io=3
    531u G b2
    532u D fl F
    640u C fl Fs
    641u D r2 Wsf 65536+4096 rel=b2
    800u C r2 Wsf 65536+4096
    801u C r2 Wf 0+0
    810u exit tid=9 result=0
    820u acct-done 0x9000d8 rel=0x10040
    900u Q b3 W 200704+4096 inode=77 of=7:0 sub=2 tid=61
    901u G b3
    902u Q b4 W 204800+4096 inode=77 of=7:0 sub=2 tid=61
    903u M b4
    910u D r3 W 200704+8192 rel=b3 links=b4
    1m C r3 W 200704+8192";

fn analyze(manifest: &Manifest, events: &str) -> Analysis {
    let mut options = Options::default();
    options.path = "vm1.nest".into();

    Analyzer::analyze(manifest, options, notation::events(events))
}

fn schema_errors(analysis: &Analysis) -> Vec<String> {
    let schema = include_str!("../../../../docs/analysis.schema.json");
    let schema = serde_json::from_str(schema).expect("the schema is JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("the schema is a schema");
    let object = serde_json::from_str(&json::render(analysis)).expect("JSON");
    validator
        .iter_errors(&object)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect()
}

#[test]
fn the_text() {
    let analysis = analyze(&manifest(), WORKLOAD);
    let text = text::render(&analysis, &text::TextOptions::default());
    let expected = include_str!("workload.txt");
    assert_eq!(text, expected, "\n{text}");
}

#[test]
fn no_line_is_wider_than_the_page() {
    let mut manifest = manifest();
    manifest.topology.guests[0].name =
        "a-guest-with-a-name-that-does-not-end-for-quite-a-while".into();
    manifest.refused = vec![manifest::Refused {
        name: "iomap_dio_complete".into(),
        source: "file".into(),
        reason: "this kernel has no such tracepoint".into(),
        cost: "the end of native aio folds into QEMU's own time".into(),
        guest: None,
    }];
    manifest.losses = vec![manifest::Loss {
        source: "block".into(),
        guest: None,
        events: 1_234_567,
    }];
    manifest.state = manifest::State::Recording;
    for events in [WORKLOAD, "", "1 RD r1 R 0+4096 issued=0"] {
        let text = text::render(&analyze(&manifest, events), &text::TextOptions::default());
        for line in text.lines().filter(|line| !line.contains("nestrace ")) {
            assert!(
                line.chars().count() <= 80,
                "{} columns: {line}",
                line.chars().count()
            );
        }
    }
}

#[test]
fn what_is_missing_is_said_with_its_cost() {
    let mut manifest = manifest();
    manifest.state = manifest::State::Recording;
    manifest.losses = vec![manifest::Loss {
        source: "qemu".into(),
        guest: None,
        events: 3,
    }];
    let text = text::render(&analyze(&manifest, WORKLOAD), &text::TextOptions::default());
    assert!(text.contains("3 LOST"), "{text}");
    assert!(
        text.contains("3 events of source qemu lost: QEMU's requests are incomplete."),
        "{text}"
    );
    assert!(text.contains("The recording was not closed"), "{text}");
}

#[test]
fn probes_that_miss_the_same_are_one_sentence() {
    let refused = |name: &str, reason: &str| manifest::Refused {
        name: name.into(),
        source: "file".into(),
        reason: reason.into(),
        cost: "Nothing.".into(),
        guest: None,
    };
    let mut manifest = manifest();
    manifest.refused = vec![
        refused("first", "no module"),
        refused("other", "no tracepoint"),
        refused("second", "no module"),
    ];
    let text = text::render(&analyze(&manifest, WORKLOAD), &text::TextOptions::default());
    let words: Vec<&str> = text.split_whitespace().collect();
    let text = words.join(" ");
    for expected in [
        "Not attached: first, second (no module). Without them: Nothing.",
        "Not attached: other (no tracepoint). Without it: Nothing.",
    ] {
        assert!(text.contains(expected), "{text}");
    }
}

#[test]
fn damage_of_a_file_is_not_a_loss_of_the_recorder() {
    let mut manifest = manifest();
    manifest.state = manifest::State::Repaired;
    manifest.end_reason = "interrupted".into();
    manifest.losses = vec![manifest::Loss {
        source: "damaged".into(),
        guest: None,
        events: 7_754,
    }];
    let text = text::render(&analyze(&manifest, WORKLOAD), &text::TextOptions::default());
    for said in [
        "7,754 events lost in a damaged file: no number includes them.",
        "The recording was closed (interrupted), but one of its files is cut or",
    ] {
        assert!(text.contains(said), "{text}");
    }
    assert!(!text.contains("--detail light"), "{text}");
}

#[test]
fn only_what_was_not_closed_is_said_to_be() {
    let cut = Damage {
        rows_lost: 0,
        cut: true,
    };
    let mut capture = manifest();
    capture.start_unix_ns = 0;
    let mut analyzer = Analyzer::new(&capture, Options::default());
    analyzer.damaged(None, cut);
    let text = text::render(&analyzer.finish(), &text::TextOptions::default());
    let said = "A file of the recording is cut or damaged.";
    assert!(text.contains(said), "{text}");
    let text = text::render(
        &analyze(&Manifest::default(), ""),
        &text::TextOptions::default(),
    );
    assert!(text.contains("There is no manifest"), "{text}");
}

#[test]
fn names_cannot_write_on_the_terminal() {
    let evil = "\u{1b}]0;x\u{7}";
    let mut manifest = manifest();
    let guest = &mut manifest.topology.guests[0];
    guest.name += evil;
    guest.disks[0].name += evil;
    guest.disks[0].images[0].path += evil;
    manifest.topology.devices[0].name += "\u{9b}2J\n\u{202e}";
    manifest.notices = vec![manifest::Notice {
        message: evil.into(),
        ..Default::default()
    }];
    // The thread's name is what prctl(PR_SET_NAME) takes.
    let events = WORKLOAD.replace("rsync", evil);
    let strange = |c: char| c != '\n' && !is_printable(c);
    let mut colour = text::TextOptions::default();
    colour.colour = true;

    let analysis = analyze(&manifest, &events);
    let text = text::render(&analysis, &text::TextOptions::default());
    assert!(!text.contains(strange), "{text:?}");
    let words: Vec<&str> = text.split_whitespace().collect();
    for said in ["(most: \u{fffd}]0;x\u{fffd}).", "\u{fffd}]0;x\u{fffd} [61]"] {
        assert!(words.join(" ").contains(said), "{text:?}");
    }
    let plain = without_colours(&text::render(&analysis, &colour));
    assert!(!plain.contains(strange), "{plain:?}");
}

/// Takes out the colours that we write, and nothing else.
fn without_colours(text: &str) -> String {
    let codes = [0, 1, 31, 32, 33, 34, 35, 36, 90].map(|code| format!("\u{1b}[{code}m"));
    codes
        .iter()
        .fold(text.to_owned(), |text, code| text.replace(code, ""))
}

#[test]
fn colours_are_of_layers_and_severities_and_change_nothing_else() {
    let analysis = followed();
    let mut colour = text::TextOptions::default();
    colour.colour = true;

    let coloured = text::render(&analysis, &colour);
    let plain = text::render(&analysis, &text::TextOptions::default());
    assert_eq!(without_colours(&coloured), plain);
    for bar in ["\x1b[31m█", "\x1b[33m█"] {
        assert!(coloured.contains(bar), "{coloured:?}");
    }
    assert!(!analysis.findings.is_empty());
    for finding in &analysis.findings {
        let word = match finding.severity {
            Severity::High => "(\x1b[31mhigh\x1b[0m,",
            Severity::Medium => "(\x1b[33mmedium\x1b[0m,",
            Severity::Low => "(\x1b[36mlow\x1b[0m,",
            _ => "(\x1b[90minfo\x1b[0m,",
        };
        assert!(coloured.contains(word), "{word:?} in {coloured:?}");
    }
}

/// A guest that was followed to the device, which another one keeps busy.
fn followed() -> Analysis {
    let mut streams = Streams::new(2);
    let slow = two_sides::Way {
        device: 5_000_000,
        ..WAY
    };
    streams.traffic(VM1, 10_000_000_000, 300, WAY);
    let at = streams.traffic(VM2, 10_000_000_333, 200, slow);
    let mut manifest = two_sides::manifest();
    manifest.end_mono_ns = at + 1_000_000;
    streams.analyze(&manifest, Options::default())
}

#[test]
fn every_process_is_in_the_table_of_users() {
    let mut analysis = analyze(&manifest(), WORKLOAD);
    let process = |pid: u32| {
        let mut user = User::default();
        user.kind = UserKind::Process;
        user.name = Some(format!("p{pid}"));
        user.pid = Some(pid);
        (user.requests, user.bytes) = (10, 4096);
        (user.device_ns, user.share) = (1000, 1.0 / 6.0);
        user
    };
    for (n, shown, rest) in [
        (3, vec!["p3 [3]"], "more process"),
        (4, vec!["p3 [3]", "p4 [4]"], "more process"),
        (
            6,
            vec!["p3 [3]", "3 more processes loop0 30 12.0 KiB 3.00 µs 50 %"],
            "p4",
        ),
    ] {
        analysis.devices[0].users = Some((1..=n).map(process).collect());
        let text = text::render(&analysis, &text::TextOptions::default());
        let words: Vec<&str> = text.split_whitespace().collect();
        let words = words.join(" ");
        assert!(shown.iter().all(|it| words.contains(it)), "{n}: {text}");
        assert!(!words.contains(rest), "{n}: {text}");
    }
}

#[test]
fn a_capture_of_one_machine_has_no_others() {
    let events = "
        1u thread tid=61 tgid=61 name=jbd2/sda-8
        10u Q b1 W 0+4096 tid=61
        11u G b1
        20u D r1 W 0+4096 rel=b1
        90u C r1 W 0+4096";
    let text = text::render(
        &analyze(&Manifest::default(), events),
        &text::TextOptions::default(),
    );
    let words: Vec<&str> = text.split_whitespace().collect();
    assert!(
        words.join(" ").contains("; mostly for jbd2/sda-8."),
        "{text}"
    );
    assert!(!text.contains("others"), "{text}");
}

#[test]
fn a_stretch_does_not_claim_the_events_of_the_whole() {
    let mut options = Options::default();
    options.from_ns = Some(200_000);

    let analysis = Analyzer::analyze(&manifest(), options, notation::events(WORKLOAD));
    let text = text::render(&analysis, &text::TextOptions::default());
    assert!(text.contains("events in the whole recording"), "{text}");
}

#[test]
fn colour_only_where_asked_for() {
    let analysis = analyze(&manifest(), WORKLOAD);
    assert!(!text::render(&analysis, &text::TextOptions::default()).contains('\x1b'));
    let mut colour = text::TextOptions::default();
    colour.colour = true;

    assert!(text::render(&analysis, &colour).contains("\x1b[1mIn short\x1b[0m"));
}

#[test]
fn the_json_fits_its_schema() {
    let mut light = manifest();
    light.detail = "light".into();
    let unnamed = "1 acct-read 0x1 rel=0x2 bytes=4096\n2 acct-done 0x1 rel=0x2";
    let mut two_disks = manifest();
    two_disks.topology.guests[0].disks.push(Disk::default());
    let cases = [
        (manifest(), WORKLOAD),
        (manifest(), ""),
        (Manifest::default(), ""),
        (light, "1 RD r1 R 0+4096 issued=0"),
        (two_disks, unnamed),
        (
            manifest(),
            "1 Q b1 W 0+8192 dev=253:0\n2 BC b1 W dev=253:0\n9 C r9 W 0+512 dev=8:0",
        ),
    ];
    for (manifest, events) in cases {
        let errors = schema_errors(&analyze(&manifest, events));
        assert!(errors.is_empty(), "{events}\n{}", errors.join("\n"));
    }
}

#[test]
fn the_schema_refuses_what_is_wrong() {
    let schema =
        serde_json::from_str(include_str!("../../../../docs/analysis.schema.json")).expect("JSON");
    let validator = jsonschema::draft202012::new(&schema).expect("schema");
    let good: serde_json::Value =
        serde_json::from_str(&json::render(&analyze(&manifest(), WORKLOAD))).expect("JSON");
    assert!(validator.is_valid(&good));
    for key in [
        "schema",
        "trace",
        "clocks",
        "devices",
        "qemu",
        "images",
        "chains",
        "amplification",
        "findings",
    ] {
        let mut bad = good.clone();
        bad.as_object_mut().expect("object").remove(key);
        assert!(!validator.is_valid(&bad), "without {key}");
    }
    for path in [
        "/devices/0/counts/queued",
        "/devices/0/latency_ns/q2c/n",
        "/qemu/0/reads",
        "/images/0/file_io/dsync",
    ] {
        let mut bad = good.clone();
        *bad.pointer_mut(path).expect(path) = serde_json::json!("many");
        assert!(!validator.is_valid(&bad), "{path}");
    }
}

//! `nestrace import`: what is read is never replaced, and what is missing in it is missing in what is made.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use nestrace_blktrace::{Action, Trace, Writer, category};
use nestrace_trace::Manifest;
use nestrace_trace::manifest::{Loss, Notice, Refused, State, Topology};

use crate::limited::{Outcome, nestrace, nestrace_on_full_disk};
use crate::recording::{GUEST_DEV, batch, bundle, capture, manifest, write_stream};
use crate::repair::{analysis, files, read_manifest};

/// Imports a guest's side (`blktrace BASENAME`, `guest GUEST.nest`), over an older bundle if there is one.
fn import(kind: &str, input: &Path, host: Option<&Path>, out: &Path) -> Outcome {
    nestrace(&words(kind, input, host, out))
}

fn words<'a>(
    kind: &'a str,
    input: &'a Path,
    host: Option<&'a Path>,
    out: &'a Path,
) -> Vec<&'a OsStr> {
    let mut words: Vec<&OsStr> = vec!["import".as_ref(), kind.as_ref(), input.as_ref()];
    words.extend(["--force", "-o"].map(OsStr::new));
    words.push(out.as_ref());
    if let Some(host) = host {
        words.extend([OsStr::new("--guest-of"), host.as_ref()]);
    }
    words
}

fn repair(damaged: &Path, out: &Path) -> Outcome {
    let words = [damaged.as_os_str(), "-o".as_ref(), out.as_os_str()];
    nestrace(&[&[OsStr::new("repair")], &words[..]].concat())
}

/// What an agent leaves in the guest.
fn agents_bundle(folder: &Path, change: impl FnOnce(&mut Manifest)) -> PathBuf {
    let path = bundle(folder, "agent");
    let mut told = manifest();
    told.topology = Topology::default();
    change(&mut told);
    fs::write(path.join("manifest.json"), told.to_json()).expect("manifest");
    path
}

/// What is hidden in a folder.
fn hidden(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).expect("folder").flatten();
    let names = entries.map(|entry| entry.file_name());
    names
        .filter(|name| name.to_string_lossy().starts_with('.'))
        .count()
}

fn notices(trace: &serde_json::Value) -> String {
    trace["trace"]["notices"].to_string()
}

const DAMAGED: &str = "what was recorded inside vm1 is damaged or was not closed";

#[test]
fn a_failure_replaces_nothing() {
    let folder = tempfile::tempdir().expect("folder");
    let host = bundle(folder.path(), "host");
    let older = bundle(folder.path(), "older");
    let typo = folder.path().join("typo");
    let before = files(&older);
    for (kind, input, host, code) in [
        ("blktrace", &typo, None, 3),
        ("blktrace", &typo, Some(&*host), 3),
        ("blktrace", &capture(), Some(&*typo), 3),
        ("guest", &typo, None, 3),
        // The output is what is read.
        ("guest", &older, None, 2),
        ("guest", &older, Some(&*host), 2),
        ("blktrace", &capture(), Some(&*older), 2),
    ] {
        let outcome = import(kind, input, host, &older);
        assert_eq!(outcome.code, Some(code), "{outcome:#?}");
        assert_eq!(files(&older), before, "{outcome:#?}");
        assert_eq!(hidden(folder.path()), 0, "{outcome:#?}");
    }
    import("blktrace", &capture(), Some(&host), &older).done();
    assert_ne!(files(&older), before);
    assert_eq!(hidden(folder.path()), 0);
}

#[test]
fn a_full_disk_is_no_bad_input() {
    let folder = tempfile::tempdir().expect("folder");
    let host = bundle(folder.path(), "host");
    let agents = agents_bundle(folder.path(), |_| {});
    let out = folder.path().join("out.nest");
    // One has room for nothing, one for the beginning of a stream.
    for room in [64, 2000] {
        for (kind, input, host) in [
            ("blktrace", &capture(), None),
            ("blktrace", &capture(), Some(&*host)),
            ("guest", &agents, None),
        ] {
            let outcome = nestrace_on_full_disk(room, &words(kind, input, host, &out));
            assert_eq!(outcome.code, Some(1), "{room}: {outcome:#?}");
            assert!(!out.exists() && hidden(folder.path()) == 0, "{outcome:#?}");
        }
    }
}

#[test]
fn a_host_that_was_not_closed_is_not_whole_later() {
    let folder = tempfile::tempdir().expect("folder");
    let killed = bundle(folder.path(), "killed");
    let mut told = manifest();
    told.state = State::Recording;
    told.end_mono_ns = 0;
    told.end_reason = String::new();

    fs::write(killed.join("manifest.json"), told.to_json()).expect("manifest");
    let repaired = folder.path().join("repaired.nest");
    repair(&killed, &repaired).done();
    let out = folder.path().join("out.nest");
    for host in [&killed, &repaired] {
        import("blktrace", &capture(), Some(host), &out).done();
        assert_eq!(read_manifest(&out).state, State::Repaired);
        assert_eq!(analysis(&out).0["trace"]["truncated"], true);
    }
    // A stream that it did not come to name is taken in first.
    write_stream(&killed, "guest-vm2.arrows", [batch(0, GUEST_DEV)]);
    let outcome = import("blktrace", &capture(), Some(&killed), &out);
    outcome.refused();
    let remedy = format!("nestrace repair {} -o ", killed.display());
    assert!(
        outcome.stderr.contains("guest-vm2.arrows") && outcome.stderr.contains(&remedy),
        "{outcome:#?}"
    );
    fs::remove_dir_all(&repaired).expect("removed");
    repair(&killed, &repaired).done();
    import("blktrace", &capture(), Some(&repaired), &out).done();
    assert!(out.join("guest-vm2.arrows").exists());
}

#[test]
fn what_a_guest_lacks_is_told_by_each_later_analysis() {
    let folder = tempfile::tempdir().expect("folder");
    let host = bundle(folder.path(), "host");
    let out = folder.path().join("out.nest");
    let both = |agents: &Path| {
        import("guest", agents, Some(&host), &out).done();
        analysis(&out).0
    };
    // Nothing is missing.
    let agents = agents_bundle(folder.path(), |_| {});
    let whole = both(&agents);
    assert_eq!(
        (notices(&whole).as_str(), &whole["trace"]["lost"]),
        ("[]", &0.into())
    );
    // It was killed.
    agents_bundle(folder.path(), |told| told.state = State::Recording);
    let killed = both(&agents);
    assert!(notices(&killed).contains(DAMAGED), "{killed}");
    assert_eq!(killed["trace"]["truncated"], false, "the host's is whole");
    import("guest", &agents, None, &out).done();
    assert_eq!(analysis(&out).0["trace"]["truncated"], true);
    // What it said itself.
    agents_bundle(folder.path(), |told| {
        let side = &mut told.guest_sides[0];
        side.probes_refused.push(Refused {
            name: "block_split".to_owned(),
            source: "block".to_owned(),
            ..Refused::default()
        });
        told.notices.push(Notice {
            what: "out_of_order".to_owned(),
            message: "7 events came \u{1b}[2J later".to_owned(),
            ..Notice::default()
        });
    });
    let told = notices(&both(&agents));
    for part in [
        "guest vm1: its agent says: 7 events came \u{fffd}[2J later",
        "not attached inside vm1: block_split",
    ] {
        assert!(told.contains(part), "{told}");
    }
    // Its stream is cut.
    let agents = agents_bundle(folder.path(), |_| {});
    let stream = agents.join("guest-vm1.arrows");
    let bytes = fs::read(&stream).expect("stream");
    fs::write(&stream, &bytes[..bytes.len() / 2]).expect("stream");
    let cut = both(&agents);
    assert!(notices(&cut).contains(DAMAGED), "{cut}");
    assert!(cut["trace"]["lost"].as_u64() > Some(0), "{cut}");
}

#[test]
fn what_a_guest_says_that_it_lost_is_bounded() {
    let folder = tempfile::tempdir().expect("folder");
    let host = bundle(folder.path(), "host");
    let stream = host.join("host.arrows");
    let bytes = fs::read(&stream).expect("stream");
    fs::write(&stream, &bytes[..bytes.len() / 2]).expect("stream");
    let agents = agents_bundle(folder.path(), |told| {
        let loss = |source: &str, events| Loss {
            source: source.to_owned(),
            guest: None,
            events,
        };
        let made_up = (0..1000).map(|n| loss(&format!("made up {n}"), 1));
        told.losses = made_up.collect();
        told.losses.extend([
            loss("block", 3),
            loss("block", u64::MAX),
            loss("disk_full", 5),
            loss("meta", 0),
        ]);
        told.notices = vec![
            Notice {
                message: "again and again".to_owned(),
                ..Notice::default()
            };
            1000
        ];
    });
    let out = folder.path().join("out.nest");
    import("guest", &agents, Some(&host), &out).done();
    let told = read_manifest(&out);
    let loss = |source: &str, events| Loss {
        source: source.to_owned(),
        guest: Some("vm1".to_owned()),
        events,
    };
    assert_eq!(told.losses, [loss("block", u64::MAX), loss("disk_full", 5)]);
    assert_eq!(told.notices.len(), 40);
    let side = told.guest_sides.last().expect("the guest's");
    let refused: Vec<(&str, u64)> = side
        .refused
        .iter()
        .map(|refused| (refused.reason.as_str(), refused.times))
        .collect();
    assert_eq!(
        refused,
        [
            ("loss of a source that is not known", 1000),
            ("notice after too many others", 960)
        ]
    );
    // That a guest's disk was full says nothing about the host's.
    let joined = analysis(&out).0;
    assert_eq!(joined["trace"]["truncated"], true);
    let losses = joined["trace"]["losses"].to_string();
    assert!(losses.contains("damaged"), "{losses}");
    let repaired = folder.path().join("repaired.nest");
    repair(&out, &repaired).done();
    assert_eq!(analysis(&repaired).0, joined);
}

#[test]
fn a_session_takes_no_others_file() {
    let folder = tempfile::tempdir().expect("folder");
    let host = bundle(folder.path(), "host");
    // Of two sessions, the first is gone.
    for end in ["", ".idx"] {
        let file = |name: &str| host.join(format!("{name}{end}"));
        fs::rename(file("guest-vm1.arrows"), file("guest-vm1.2.arrows")).expect("renamed");
    }
    let mut told = manifest();
    for file in [&mut told.streams[1].file, &mut told.guest_sides[0].file] {
        "guest-vm1.2.arrows".clone_into(file);
    }
    fs::write(host.join("manifest.json"), told.to_json()).expect("manifest");
    let out = folder.path().join("out.nest");
    import("blktrace", &capture(), Some(&host), &out).done();
    let sides = read_manifest(&out).guest_sides;
    let files: Vec<&str> = sides.iter().map(|side| side.file.as_str()).collect();
    assert_eq!(files, ["guest-vm1.2.arrows", "guest-vm1.arrows"]);
}

/// Three hundred disks in a file that breaks off; 256 of them are read.
#[test]
fn what_is_missing_of_a_capture_is_told() {
    let folder = tempfile::tempdir().expect("folder");
    let host = bundle(folder.path(), "host");
    let write = Action::Queue as u64 | u64::from(category::QUEUE | category::WRITE) << 16;
    let mut writer = Writer::new(Vec::new());
    for n in 0..300 {
        let mut queue = Trace::default();
        queue.time_ns = 1_000_000_000 + n * 1000;
        (queue.sector, queue.bytes) = (n * 8, 4096);
        queue.raw_action = write;
        queue.device = 8 << 20 | u32::try_from(n).expect("a minor") << 4;
        writer.write(&queue).expect("a record");
    }
    let bytes = writer.into_inner();
    let base = folder.path().join("gt");
    fs::write(
        folder.path().join("gt.blktrace.0"),
        &bytes[..bytes.len() - 1],
    )
    .expect("capture");
    let out = folder.path().join("out.nest");
    import("blktrace", &base, Some(&host), &out).done();
    let joined = analysis(&out).0;
    let told = notices(&joined);
    assert!(told.contains(DAMAGED), "{told}");
    let left_out = |analysis: &serde_json::Value| {
        let losses = analysis["trace"]["losses"].as_array().cloned();
        let mut losses = losses.unwrap_or_default().into_iter();
        losses.find(|loss| loss["source"] == "left_out")
    };
    let of_guest = left_out(&joined).expect("a loss");
    assert_eq!(
        (&of_guest["events"], &of_guest["guest"]),
        (&43.into(), &"vm1".into())
    );
    // Read as it is, the capture lacks the same.
    let (direct, base_text) = (
        analysis(&base).0,
        nestrace(&["analyze".as_ref(), base.as_os_str()]),
    );
    assert_eq!(left_out(&direct).expect("a loss")["events"], 43);
    assert!(direct["trace"]["lost"].as_u64() >= Some(43));
    assert!(
        base_text.stdout.contains("43 events left out"),
        "{base_text:#?}"
    );
    for format in ["text", "btt"] {
        let words = ["analyze", "--strict", "--format", format].map(OsStr::new);
        let strict = nestrace(&[&words[..], &[base.as_os_str()]].concat());
        assert_eq!(strict.code, Some(5), "{format}");
    }
    assert_eq!(joined["trace"]["truncated"], false, "the host's is whole");
    import("blktrace", &base, None, &out).done();
    let text = nestrace(&["analyze".as_ref(), out.as_os_str()]);
    text.done();
    assert_eq!(analysis(&out).0["trace"]["truncated"], true);
    assert!(
        text.stdout.contains("closed (import)") && !text.stdout.contains("no manifest"),
        "{text:#?}"
    );
}

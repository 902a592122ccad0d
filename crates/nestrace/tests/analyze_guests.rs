//! `nestrace analyze` on bundles whose guests' streams are missing, damaged, or not of the bundle: the
//! host's analysis stays what it is.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nestrace_trace::manifest::{GuestSide, Manifest, State};
use nestrace_trace::{Event, Kind, StreamWriter};

/// A request of a disk, again and again.
fn events(n: u64, dev: u32) -> Vec<Event> {
    (0..n)
        .flat_map(|i| {
            let of = |kind: Kind, after: u64, object: u64| Event {
                ts_ns: 1_000_000 * i + after,
                kind: kind as u8,
                dev,
                object,
                offset: i * 4096,
                bytes: 4096,
                flags: 1,
                ..Event::default()
            };
            let issue = Event {
                related: 16 + i,
                ..of(Kind::Issue, 200, 8)
            };
            [
                of(Kind::Queue, 0, 16 + i),
                of(Kind::GetRequest, 100, 16 + i),
                issue,
                of(Kind::Complete, 900, 8),
            ]
        })
        .collect()
}

fn write_stream(bundle: &Path, name: &str, events: &[Event]) {
    let create = |name: String| File::create(bundle.join(name)).expect("file");
    let (stream, index) = (create(name.to_owned()), create(format!("{name}.idx")));
    let mut writer = StreamWriter::new(stream, index).expect("stream");
    events.iter().for_each(|event| {
        writer.push(event).expect("event");
    });
    writer.finish().expect("end");
}

/// A bundle with a host stream, a guest stream and what the manifest says of guests' streams.
fn bundle(folder: &Path, guests: &[&str]) -> PathBuf {
    let bundle = folder.join("x.nest");
    fs::create_dir(&bundle).expect("folder");
    write_stream(&bundle, "host.arrows", &events(500, 7 << 20));
    write_stream(&bundle, "guest-vm1.arrows", &events(300, 254 << 20));
    let side = |file: &&str| GuestSide {
        guest: "vm1".into(),
        file: (*file).to_owned(),
        backend: "ebpf".into(),
        ..GuestSide::default()
    };
    let mut manifest = Manifest::default();
    manifest.state = State::Complete;
    manifest.detail = "full".into();
    manifest.guest_sides = guests.iter().map(side).collect();

    let json = serde_json::to_vec(&manifest).expect("JSON");
    fs::write(bundle.join("manifest.json"), json).expect("manifest");
    bundle
}

fn analyze(bundle: &Path) -> (Output, serde_json::Value) {
    let output = Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(["analyze", "--format", "json"])
        .arg(bundle)
        .output()
        .expect("nestrace runs");
    let json = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output, json)
}

/// The host's device is whole, and so many guests' devices are there; whether a stream cannot be read at all.
fn check(bundle: &Path, guests_devices: usize, note: &str, is_unread: bool) {
    let (output, json) = analyze(bundle);
    let messages = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{messages}");
    assert!(messages.contains(note), "{note}: {messages}");
    let devices = json["devices"].as_array().expect("devices");
    let of_side = |side: &str| {
        devices
            .iter()
            .filter(|device| device["side"] == side)
            .count()
    };
    assert_eq!(of_side("guest"), guests_devices, "{messages}");
    let host = devices
        .iter()
        .find(|device| device["side"] == "host")
        .expect("7:0");
    assert_eq!(host["counts"]["completed"], 500);
    assert_eq!(json["trace"]["truncated"], is_unread);
    let unread = json["trace"]["unread"].as_array().expect("streams");
    assert_eq!(!unread.is_empty(), is_unread, "{messages}");
}

#[test]
fn a_guest_s_stream_is_read_beside_the_host_s() {
    let folder = tempfile::tempdir().expect("folder");
    let bundle = bundle(folder.path(), &["guest-vm1.arrows"]);
    check(&bundle, 1, "", false);
}

#[test]
fn a_missing_stream_is_told() {
    let folder = tempfile::tempdir().expect("folder");
    let bundle = bundle(folder.path(), &["guest-vm1.arrows", "guest-vm1.2.arrows"]);
    check(&bundle, 1, "guest-vm1.2.arrows", true);
}

#[test]
fn only_files_of_the_bundle_are_opened() {
    let folder = tempfile::tempdir().expect("folder");
    write_stream(folder.path(), "elsewhere.arrows", &events(10, 254 << 20));
    let outside = folder.path().join("elsewhere.arrows").display().to_string();
    let names = ["../elsewhere.arrows", outside.as_str(), "", "."];
    let bundle = bundle(folder.path(), &names);
    check(&bundle, 0, "not a file of the bundle", true);
}

#[test]
fn a_damaged_stream_gives_what_is_left() {
    let folder = tempfile::tempdir().expect("folder");
    let bundle = bundle(folder.path(), &["guest-vm1.arrows"]);
    let path = bundle.join("guest-vm1.arrows");
    let mut bytes = fs::read(&path).expect("stream");
    let middle = bytes.len() / 2;
    bytes[middle..].fill(0x5a);
    fs::write(&path, &bytes).expect("stream");
    let (output, json) = analyze(&bundle);
    let messages = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{messages}");
    assert!(messages.contains("from inside vm1"), "{messages}");
    let notices = json["trace"]["notices"].to_string();
    assert!(notices.contains("vm1 is damaged"), "{notices}");
    assert_eq!(
        json["trace"]["truncated"], false,
        "the host's stream is whole"
    );
    // No stream at all, but rubbish.
    fs::write(&path, b"rubbish").expect("stream");
    check(&bundle, 0, "from inside vm1", false);
}

#[test]
fn a_story_that_is_not_there_is_told() {
    let folder = tempfile::tempdir().expect("folder");
    let bundle = bundle(folder.path(), &["guest-vm1.arrows"]);
    let run = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_nestrace"))
            .arg("analyze")
            .args(args)
            .arg(&bundle)
            .output()
            .expect("nestrace runs")
    };
    let output = run(&["--io", "7"]);
    assert_eq!(output.status.code(), Some(3));
    assert!(output.stdout.is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("no bio 7: "));
    assert_eq!(run(&["--slowest", "7"]).status.code(), Some(0));
    for wrong in [
        &["--io", "0"][..],
        &["--slowest", "0"],
        &["--io", "1", "--slowest", "2"],
    ] {
        assert_eq!(run(wrong).status.code(), Some(2), "{wrong:?}");
    }
}

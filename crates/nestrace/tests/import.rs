//! `nestrace import` as a user runs it, on a real capture of blktrace.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use nestrace_trace::{
    Event, Manifest, StreamReader, StreamWriter,
    manifest::{Guest, GuestDisk, GuestSide, State, Stream, Topology},
};

const CAPTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../fixtures/blktrace/ext3-seqw-mq-ide/gt"
);

fn nestrace(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(words)
        .output()
        .unwrap()
}

/// Runs it; stderr and the exit code.
fn import(words: &[&str]) -> (String, Option<i32>) {
    let output = nestrace(&[&["import"], words].concat());
    let stderr = String::from_utf8(output.stderr).unwrap();
    (stderr, output.status.code())
}

fn manifest(bundle: &Path) -> Manifest {
    let bytes = fs::read(bundle.join("manifest.json")).unwrap();
    Manifest::from_slice(&bytes).unwrap().0
}

fn events(bundle: &Path, file: &str) -> Vec<Event> {
    let open = |name: String| File::open(bundle.join(name)).unwrap();
    let index = Some(open(format!("{file}.idx")));
    let mut reader = StreamReader::new(open(file.to_owned()), index).unwrap();
    let events = reader.events().collect();
    assert!(reader.is_closed() && reader.diagnostics().is_empty());
    events
}

/// The capture's events as the library has them, in the order of time.
fn expected() -> Vec<Event> {
    let mut events = Vec::new();
    for cpu in 0..2 {
        let file = File::open(format!("{CAPTURE}.blktrace.{cpu}")).unwrap();
        let traces = nestrace_blktrace::Reader::new(file).unwrap();
        events.extend(traces.filter_map(|t| {
            nestrace_blktrace::event(&t).or_else(|| nestrace_blktrace::thread(&t))
        }));
    }
    events.sort_by_key(|event| event.ts_ns);
    events
}

/// A recording of a host with these guests.
fn host(folder: &Path, guests: &[&str]) -> PathBuf {
    let path = folder.join("host.nest");
    fs::create_dir(&path).unwrap();
    stream(
        &path,
        "host.arrows",
        &[Event {
            ts_ns: 5,
            kind: 1,
            ..Event::default()
        }],
    );
    let guest = |name: &&str| Guest {
        name: (*name).to_owned(),
        ..Guest::default()
    };
    let mut manifest = Manifest::default();
    manifest.state = State::Complete;
    manifest.topology = Topology {
        guests: guests.iter().map(guest).collect(),
        ..Topology::default()
    };
    manifest.streams = ["host.arrows", "../outside.arrows"]
        .map(|file| Stream {
            file: file.to_owned(),
            ..Stream::default()
        })
        .to_vec();

    fs::write(path.join("manifest.json"), manifest.to_json()).unwrap();
    fs::write(path.join("image-maps.json"), "[]").unwrap();
    path
}

fn stream(bundle: &Path, file: &str, events: &[Event]) {
    let new = |name: String| File::create(bundle.join(name)).unwrap();
    let mut writer = StreamWriter::new(new(file.to_owned()), new(format!("{file}.idx"))).unwrap();
    for event in events {
        writer.push(event).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn a_capture_alone() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a.nest");
    let (stderr, code) = import(&["blktrace", CAPTURE, "-o", out.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{stderr}");
    let manifest = manifest(&out);
    let side = &manifest.guest_sides[0];
    assert_eq!(
        (side.backend.as_str(), side.agent_version.as_str()),
        ("blktrace", "imported")
    );
    // The capture's first event is of 20 November 2026.
    assert!(
        side.start_unix_ns / 1_000_000_000 / 86_400 == 20_777,
        "{}",
        side.start_unix_ns
    );
    assert_eq!(side.live_mono_ns, side.start_mono_ns);
    assert_eq!(events(&out, &side.file), expected());
    assert_eq!(events(&out, "host.arrows"), []);
    assert_eq!(manifest.state, State::Complete);
    let again = import(&["blktrace", CAPTURE, "-o", out.to_str().unwrap()]);
    assert_eq!(again.1, Some(2), "{}", again.0);
    let analysed = nestrace(&["analyze", out.to_str().unwrap()]);
    assert!(analysed.status.success());
}

#[test]
fn a_capture_joins_its_host() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), &["vm1", "vm2"]);
    let before = fs::read(host.join("manifest.json")).unwrap();
    let out = folder.path().join("both.nest");
    let join = |more: &[&str]| {
        let words = [
            "blktrace",
            CAPTURE,
            "-o",
            out.to_str().unwrap(),
            "--guest-of",
            host.to_str().unwrap(),
        ];
        import(&[&words, more].concat())
    };
    let (stderr, code) = join(&[]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("--guest") && stderr.contains("vm1, vm2"),
        "{stderr}"
    );
    assert_eq!(join(&["--guest", "vm3"]).1, Some(3));
    assert!(!out.exists());
    let (stderr, code) = join(&["--guest", "vm2"]);
    assert_eq!(code, Some(0), "{stderr}");
    let manifest = manifest(&out);
    let side = &manifest.guest_sides[0];
    assert_eq!(
        (side.guest.as_str(), side.file.as_str()),
        ("vm2", "guest-vm2.arrows")
    );
    assert_eq!(events(&out, "guest-vm2.arrows"), expected());
    assert_eq!(
        fs::read(out.join("host.arrows")).unwrap(),
        fs::read(host.join("host.arrows")).unwrap()
    );
    assert!(out.join("image-maps.json").exists());
    assert!(!folder.path().join("outside.arrows").exists());
    assert_eq!(fs::read(host.join("manifest.json")).unwrap(), before);
    // A second capture of the same guest is another session.
    let three = folder.path().join("three.nest");
    let words = [
        "blktrace",
        CAPTURE,
        "--guest",
        "vm2",
        "-o",
        three.to_str().unwrap(),
        "--guest-of",
        out.to_str().unwrap(),
    ];
    assert_eq!(import(&words).1, Some(0));
    assert!(three.join("guest-vm2.arrows").exists() && three.join("guest-vm2.2.arrows").exists());
}

#[test]
fn a_capture_has_one_span_whatever_it_is_read_from() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), &["vm1"]);
    let (alone, joined) = (folder.path().join("a.nest"), folder.path().join("j.nest"));
    let (alone, joined) = (alone.to_str().unwrap(), joined.to_str().unwrap());
    let host = host.to_str().unwrap();
    for words in [
        &["blktrace", CAPTURE, "-o", alone][..],
        &["blktrace", CAPTURE, "-o", joined, "--guest-of", host],
    ] {
        let (stderr, code) = import(words);
        assert_eq!(code, Some(0), "{stderr}");
    }
    let device = |input: &str| -> serde_json::Value {
        let output = nestrace(&["analyze", "--format", "json", input]);
        let analysis: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let devices = analysis["devices"].as_array().unwrap();
        let most = devices
            .iter()
            .max_by_key(|device| device["counts"]["completed"].as_u64());
        most.unwrap().clone()
    };
    let direct = device(CAPTURE);
    assert!(direct["recorded_ns"].as_u64() > Some(100_000_000));
    for input in [alone, joined] {
        let imported = device(input);
        for key in ["recorded_ns", "queue_depth"] {
            assert_eq!(imported[key], direct[key], "{input}: {key}");
        }
    }
}

#[test]
fn what_cannot_be_imported_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("a.nest");
    let nothing = folder.path().join("nothing");
    fs::write(folder.path().join("bad.blktrace.0"), "no capture").unwrap();
    fs::write(folder.path().join("empty.blktrace.0"), "").unwrap();
    for name in ["nothing", "bad", "empty"] {
        let path = folder.path().join(name);
        let (stderr, code) = import(&[
            "blktrace",
            path.to_str().unwrap(),
            "-o",
            out.to_str().unwrap(),
        ]);
        assert_eq!(code, Some(3), "{name}: {stderr}");
        assert!(!out.exists(), "{name}");
    }
    let (_, code) = import(&[
        "guest",
        nothing.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
    ]);
    assert_eq!((code, out.exists()), (Some(3), false));
}

#[test]
fn what_is_to_be_joined_is_looked_at_before_the_host_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(folder.path(), &["vm1"]);
    // It cannot be copied.
    fs::remove_file(host.join("host.arrows")).unwrap();
    fs::write(folder.path().join("bad.blktrace.0"), "no capture").unwrap();
    for (name, manifest) in [("odd.nest", "[]"), ("other.nest", "{}")] {
        fs::create_dir(folder.path().join(name)).unwrap();
        fs::write(folder.path().join(name).join("manifest.json"), manifest).unwrap();
    }
    let out = folder.path().join("a.nest");
    for (what, name, told) in [
        ("blktrace", "bad", "/bad.blktrace.0: "),
        // Which of two manifests it is.
        ("guest", "odd.nest", "/odd.nest/manifest.json: "),
        ("guest", "other.nest", "/other.nest"),
    ] {
        let path = folder.path().join(name);
        let words = [&path, Path::new("-o"), &out, Path::new("--guest-of"), &host];
        let words = words.map(|word| word.to_str().unwrap());
        let (stderr, code) = import(&[&[what], &words[..]].concat());
        assert_eq!((code, out.exists()), (Some(3), false), "{name}: {stderr}");
        assert!(stderr.contains(told), "{stderr}");
    }
}

#[test]
fn a_guests_own_bundle_is_checked_like_an_agents_stream() {
    let folder = tempfile::tempdir().unwrap();
    let guest = folder.path().join("guest.nest");
    fs::create_dir(&guest).unwrap();
    let vda = 254 << 20;
    let good = Event {
        ts_ns: 100,
        kind: 1,
        dev: vda,
        ..Event::default()
    };
    let foreign = [
        Event { kind: 60, ..good },
        Event { dev: 1, ..good },
        Event {
            ts_ns: u64::MAX,
            ..good
        },
    ];
    stream(
        &guest,
        "guest-x.arrows",
        &[&[good][..], &foreign, &[good]].concat(),
    );
    let side = GuestSide {
        guest: "x".to_owned(),
        file: "guest-x.arrows".to_owned(),
        backend: "ebpf\u{1b}[2J".to_owned(),
        start_mono_ns: 50,
        end_mono_ns: 200,
        disks: vec![GuestDisk {
            dev: vda,
            until_mono_ns: 150,
            ..GuestDisk::default()
        }],
        ..GuestSide::default()
    };
    let write = |side: &GuestSide| {
        let mut manifest = Manifest::default();
        manifest.guest_sides = vec![side.clone()];

        fs::write(guest.join("manifest.json"), manifest.to_json()).unwrap();
    };
    write(&side);
    let host = host(folder.path(), &["vm1"]);
    let out = folder.path().join("out.nest");
    let words = [
        "guest",
        guest.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
        "--guest-of",
        host.to_str().unwrap(),
    ];
    let (stderr, code) = import(&words);
    assert_eq!(code, Some(0), "{stderr}");
    let joined = &manifest(&out).guest_sides[0];
    assert_eq!(events(&out, "guest-vm1.arrows"), [good, good]);
    assert_eq!((joined.refused.len(), &joined.disks), (3, &side.disks));
    assert!(!joined.backend.contains('\u{1b}'));
    write(&GuestSide {
        file: "../host.nest/host.arrows".to_owned(),
        ..side
    });
    fs::remove_dir_all(&out).unwrap();
    let (stderr, code) = import(&words);
    assert_eq!((code, out.exists()), (Some(3), false), "{stderr}");
}

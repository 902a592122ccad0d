//! Bundles that are cut, damaged, of something else, or of nothing.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use nestrace_trace::Event;
use nestrace_trace::manifest::{Device, Image, State};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use crate::limited::{Outcome, RESIDENT_KIB, nestrace, peak_kib};
use crate::recording::{BATCHES, HOST_DEV, batch, bundle, capture, manifest, write_stream};

fn analyze(bundle: &Path) -> Outcome {
    nestrace(&[
        "analyze".as_ref(),
        bundle.as_os_str(),
        "--format=json".as_ref(),
    ])
}

/// Every command that takes a bundle.
fn every_command(input: &Path) -> Vec<Outcome> {
    let folder = tempfile::tempdir().expect("folder");
    let good = bundle(folder.path(), "good");
    let out = |name: &str| folder.path().join(name).display().to_string();
    let (input, good) = (input.display().to_string(), good.display().to_string());
    let capture = capture().display().to_string();
    let mut runs: Vec<Vec<String>> = Vec::new();
    let mut add = |words: &[&str]| runs.push(words.iter().map(|word| (*word).to_owned()).collect());
    for format in ["text", "json", "btt"] {
        add(&["analyze", &input, "--format", format]);
    }
    for format in ["blktrace", "csv", "fio", "parquet", "perfetto"] {
        let to = out(format);
        add(&["export", "--format", format, &input, "-o", &to, "--redact"]);
    }
    add(&["compare", &input, &good]);
    add(&["compare", &good, &input, "--format", "json"]);
    add(&["import", "guest", &input, "-o", &out("i.nest")]);
    add(&[
        "import",
        "blktrace",
        &capture,
        "-o",
        &out("j.nest"),
        "--guest-of",
        &input,
    ]);
    add(&["repair", &input, "-o", &out("r.nest")]);
    add(&["repair", &input, "-o", &out("s.nest"), "--redact"]);
    runs.iter()
        .map(|words| {
            let outcome = nestrace(words);
            outcome.check();
            outcome
        })
        .collect()
}

/// Whatever stands in the place of the folder.
#[test]
fn what_is_no_bundle_is_refused() {
    let folder = tempfile::tempdir().expect("folder");
    let at = |name: &str| folder.path().join(name);
    fs::write(at("empty"), "").expect("file");
    fs::write(at("png"), b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\0\x01").expect("file");
    fs::copy(env!("CARGO_BIN_EXE_nestrace"), at("elf")).expect("file");
    fs::create_dir(at("folder.nest")).expect("folder");
    mkfifo(&at("fifo"), Mode::S_IRWXU).expect("fifo");
    symlink("loop", at("loop")).expect("link");
    let inputs = ["png", "elf", "folder.nest", "fifo", "loop", "nothing"].map(at);
    for input in inputs
        .iter()
        .chain([&PathBuf::from("/dev/null"), &at("empty")])
    {
        for outcome in every_command(input) {
            outcome.refused();
        }
    }
    assert!(peak_kib() < RESIDENT_KIB, "{} KiB", peak_kib());
}

/// Whatever stands in the place of one of its files.
#[test]
fn a_file_of_another_kind_is_told() {
    for name in [
        "host.arrows",
        "host.arrows.idx",
        "manifest.json",
        "guest-vm1.arrows",
        "image-maps.json",
    ] {
        type Make = fn(&Path);
        let kinds: [(&str, Make); 6] = [
            ("empty", |path| fs::write(path, "").expect("file")),
            ("png", |path| {
                fs::write(path, b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR").expect("file")
            }),
            ("folder", |path| fs::create_dir(path).expect("folder")),
            ("fifo", |path| mkfifo(path, Mode::S_IRWXU).expect("fifo")),
            ("device", |path| symlink("/dev/zero", path).expect("link")),
            ("loop", |path| {
                symlink(path.file_name().expect("name"), path).expect("link")
            }),
        ];
        for (kind, make) in kinds {
            let folder = tempfile::tempdir().expect("folder");
            let bundle = bundle(folder.path(), kind);
            let _ = fs::remove_file(bundle.join(name));
            make(&bundle.join(name));
            let outcome = analyze(&bundle);
            // Without the host's stream there is nothing to analyze; all else costs a part.
            // (Its index proves that a file of other bytes was one.)
            if name == "host.arrows" && !["empty", "png"].contains(&kind) {
                outcome.refused();
            } else {
                outcome.done();
                let told = kind == "empty" && name == "image-maps.json";
                assert!(told || outcome.stderr.contains("note: "), "{outcome:#?}");
            }
            if ["fifo", "device"].contains(&kind) {
                every_command(&bundle);
            }
        }
    }
}

/// The manifest of a newer major version refuses, a damaged one costs names.
#[test]
fn manifests_of_other_times_and_shapes() {
    let text = manifest().to_json();
    let newer = text.replacen("\"major\": 1", "\"major\": 2", 1);
    let refused = [
        newer.as_str(),
        r#"{"format":{"major":7},"tool_version":"9.9"}"#,
    ];
    let endless = "[".repeat(200_000);
    let read = [
        "",
        "{",
        "[]",
        "null",
        "{}",
        &text[..text.len() / 2],
        &endless,
        r#"{"format":{"major":"1"}}"#,
    ];
    for (contents, code) in refused
        .iter()
        .map(|it| (it, 3))
        .chain(read.iter().map(|it| (it, 0)))
    {
        let folder = tempfile::tempdir().expect("folder");
        let bundle = bundle(folder.path(), "m");
        fs::write(bundle.join("manifest.json"), contents).expect("manifest");
        let outcome = analyze(&bundle);
        outcome.check();
        assert_eq!(outcome.code, Some(code), "{outcome:#?}");
        let said = if code == 3 {
            "can read it"
        } else {
            "manifest.json"
        };
        assert!(outcome.stderr.contains(said), "{outcome:#?}");
        if code == 0 {
            let analysis = outcome.analysis();
            assert_eq!(analysis["devices"][0]["counts"]["queued"], 25 * BATCHES);
            assert_eq!(analysis["trace"]["truncated"], true);
        }
    }
    let folder = tempfile::tempdir().expect("folder");
    let bundle = bundle(folder.path(), "newer");
    fs::write(bundle.join("manifest.json"), newer).expect("manifest");
    every_command(&bundle).iter().for_each(|outcome| {
        outcome.refused();
    });
}

/// Requests that end within the first `batches`.
fn queued(outcome: &Outcome) -> u64 {
    let analysis = outcome.analysis();
    let devices = analysis["devices"].as_array().expect("devices");
    let host = devices.iter().find(|device| device["side"] == "host");
    host.map_or(0, |host| {
        host["counts"]["queued"].as_u64().expect("a number")
    })
}

#[test]
fn a_cut_bundle_keeps_every_whole_batch() {
    let folder = tempfile::tempdir().expect("folder");
    let good = bundle(folder.path(), "good");
    let whole = fs::read(good.join("host.arrows")).expect("stream");
    let ends: Vec<usize> = ends_of_batches(&good);
    assert_eq!(ends.len() as u64, BATCHES);
    let cut = bundle(folder.path(), "cut");
    // Around the ends of batches, and somewhere within.
    let near = ends.iter().flat_map(|end| [end - 1, *end, end + 1]);
    for at in near.chain([0, 3, 8, 100, whole.len() - 1]) {
        fs::write(cut.join("host.arrows"), &whole[..at]).expect("stream");
        let expected = ends.iter().filter(|end| **end <= at).count() as u64 * 25;
        let outcome = analyze(&cut);
        assert_eq!(queued(&outcome), expected, "cut at {at}: {outcome:#?}");
        let analysis = outcome.analysis();
        assert_eq!(analysis["trace"]["truncated"], true);
        let lost = (BATCHES * 25 - expected) / 25 * 101;
        assert_eq!(analysis["trace"]["lost"], lost, "cut at {at}");
    }
    fs::write(cut.join("host.arrows"), &whole[..ends[2] + 9]).expect("stream");
    every_command(&cut).iter().for_each(|outcome| {
        assert!(outcome.code == Some(0) || outcome.words.starts_with("import guest"));
    });
}

/// Where the batches of the host's stream end, as its index says.
fn ends_of_batches(bundle: &Path) -> Vec<usize> {
    use nestrace_trace::index::{ENTRY_LEN, Entry, EntryKind, HEADER_LEN};
    let index = fs::read(bundle.join("host.arrows.idx")).expect("index");
    let (entries, _) = index[HEADER_LEN..].as_chunks::<ENTRY_LEN>();
    let entries = entries.iter().filter_map(Entry::from_bytes);
    entries
        .filter(|entry| entry.kind == EntryKind::Batch)
        .map(|entry| (entry.offset + entry.length) as usize)
        .collect()
}

#[test]
fn flipped_bits_cost_a_batch_at_most() {
    let folder = tempfile::tempdir().expect("folder");
    let bundle = bundle(folder.path(), "flipped");
    let whole = fs::read(bundle.join("host.arrows")).expect("stream");
    let index = fs::read(bundle.join("host.arrows.idx")).expect("index");
    for n in 0..24 {
        let mut stream = whole.clone();
        stream[n * whole.len() / 24] ^= 1 << (n % 8);
        fs::write(bundle.join("host.arrows"), &stream).expect("stream");
        let left = queued(&analyze(&bundle));
        assert!(left >= 25 * (BATCHES - 1), "{n}: {left}");
    }
    fs::write(bundle.join("host.arrows"), &whole).expect("stream");
    for n in 0..8 {
        let mut damaged = index.clone();
        damaged[n * index.len() / 8 + 3] ^= 1 << n;
        fs::write(bundle.join("host.arrows.idx"), &damaged).expect("index");
        assert_eq!(queued(&analyze(&bundle)), 25 * BATCHES, "{n}");
    }
}

/// Stamps that no clock gives.
#[test]
fn absurd_times() {
    let year_ns = 365 * 86_400 * 1_000_000_000_u64;
    type Stamp = fn(u64, u64) -> u64;
    let stamps: [(&str, Stamp); 4] = [
        ("zero", |_, _| 0),
        ("last", |_, _| u64::MAX),
        ("backwards", |n, year_ns| {
            u64::MAX - n.saturating_mul(year_ns)
        }),
        (
            "a jump",
            |n, year_ns| if n == 100 { 500 * year_ns } else { n * 1000 },
        ),
    ];
    for (name, stamp) in stamps {
        let folder = tempfile::tempdir().expect("folder");
        let bundle = bundle(folder.path(), "times");
        for (file, dev) in [("host.arrows", HOST_DEV), ("guest-vm1.arrows", 254 << 20)] {
            let events = batch(0, dev).into_iter().zip(0..).map(|(event, n)| Event {
                ts_ns: stamp(n, year_ns),
                ..event
            });
            write_stream(&bundle, file, [events.collect()]);
        }
        for outcome in every_command(&bundle) {
            let is_guest = outcome.words.starts_with("import guest");
            assert!(is_guest || outcome.code == Some(0), "{name}: {outcome:#?}");
        }
        let mut absurd = manifest();
        (absurd.start_mono_ns, absurd.live_mono_ns) = (u64::MAX, u64::MAX);
        (absurd.start_unix_ns, absurd.end_mono_ns) = (u64::MAX, 1);
        absurd.guest_sides[0].start_mono_ns = u64::MAX;
        absurd.guest_sides[0].start_unix_ns = u64::MAX;
        fs::write(bundle.join("manifest.json"), absurd.to_json()).expect("manifest");
        every_command(&bundle);
    }
    assert!(peak_kib() < RESIDENT_KIB, "{} KiB", peak_kib());
}

/// More images and devices than any host has. A slow program would look for each among all others.
#[test]
fn lists_without_end() {
    const N: u32 = 17_000;
    let folder = tempfile::tempdir().expect("folder");
    let bundle = bundle(folder.path(), "lists");
    let mut endless = manifest();
    let image = |n: u32| Image {
        format: "raw".to_owned(),
        devices: vec![format!("x{n}")],
        ..Image::default()
    };
    let device = |n: u32| Device {
        name: format!("x{n}"),
        ..Device::default()
    };
    endless.topology.guests[0].disks[0].images = (0..N).map(image).collect();
    endless.topology.devices = (0..N).map(device).collect();
    fs::write(bundle.join("manifest.json"), endless.to_json()).expect("manifest");
    let outcome = analyze(&bundle);
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("are left out"),
        "{}",
        outcome.stderr
    );
}

/// The streams of two machines in one folder.
#[test]
fn mixed_machines_are_told() {
    let folder = tempfile::tempdir().expect("folder");
    let bundle = bundle(folder.path(), "mixed");
    // A guest's stream that the manifest does not name, and a host's stream of another week.
    write_stream(&bundle, "guest-other.arrows", [batch(0, 9 << 20)]);
    let week_ns = 7 * 86_400 * 1_000_000_000;
    let later = (0..BATCHES).map(|n| {
        let events = batch(n, 9 << 20).into_iter();
        events
            .map(|event| Event {
                ts_ns: event.ts_ns + week_ns,
                ..event
            })
            .collect()
    });
    write_stream(&bundle, "host.arrows", later);
    let outcome = analyze(&bundle);
    let notices = outcome.analysis()["trace"]["notices"].to_string();
    assert!(
        notices.contains("at another time than the manifest says"),
        "{notices}"
    );
    assert!(
        outcome.stderr.contains("guest-other.arrows"),
        "{outcome:#?}"
    );
    every_command(&bundle);
}

/// Manifests that name what they must not.
#[test]
fn a_manifest_names_no_file_outside() {
    let folder = tempfile::tempdir().expect("folder");
    let bundle = bundle(folder.path(), "names");
    fs::write(folder.path().join("outside.arrows"), "kept").expect("file");
    let mut odd = manifest();
    odd.state = State::Complete;
    for file in [
        "../outside.arrows",
        "/etc/passwd",
        "",
        "host.arrows",
        "manifest.json",
        "guest-vm1.arrows",
    ] {
        let mut side = odd.guest_sides[0].clone();
        file.clone_into(&mut side.file);
        odd.guest_sides.push(side);
    }
    fs::write(bundle.join("manifest.json"), odd.to_json()).expect("manifest");
    every_command(&bundle);
    let kept = fs::read(folder.path().join("outside.arrows")).expect("file");
    assert_eq!(kept, b"kept");
    assert!(File::open("/etc/passwd").is_ok());
}

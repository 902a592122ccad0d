//! `nestrace repair` keeps what is whole, reports what is lost, and changes nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use nestrace_trace::Manifest;
use nestrace_trace::image_map::{Extent, ImageMap};
use nestrace_trace::manifest::{Loss, State};
use serde_json::Value;

use crate::limited::{Outcome, nestrace, nestrace_on_full_disk};
use crate::recording::{bundle, manifest};

fn repair(damaged: &Path, words: &[&str]) -> (Outcome, PathBuf) {
    let out = damaged.with_extension("repaired.nest");
    let mut all = vec![
        "repair",
        damaged.to_str().expect("UTF-8"),
        "-o",
        out.to_str().expect("UTF-8"),
    ];
    all.extend(words);
    (nestrace(&all), out)
}

/// The analysis, and what is said beside it.
pub fn analysis(bundle: &Path) -> (Value, String) {
    let outcome = nestrace(&[
        "analyze".as_ref(),
        bundle.as_os_str(),
        "--format=json".as_ref(),
    ]);
    (outcome.analysis(), outcome.stderr)
}

pub fn read_manifest(bundle: &Path) -> Manifest {
    let bytes = fs::read(bundle.join("manifest.json")).expect("manifest");
    let (manifest, odd) = Manifest::from_slice(&bytes).expect("a manifest");
    assert!(odd.is_empty(), "{odd:?}");
    manifest
}

/// Every file of a bundle with its bytes.
pub fn files(bundle: &Path) -> Vec<(String, Vec<u8>)> {
    let entries = fs::read_dir(bundle)
        .expect("folder")
        .map(|entry| entry.expect("entry"));
    let mut files: Vec<_> = entries
        .map(|entry| {
            let name = entry.file_name().into_string().expect("UTF-8");
            (name, fs::read(entry.path()).expect("file"))
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_good_bundle_stays_as_it_is() {
    let folder = tempfile::tempdir().expect("folder");
    let good = bundle(folder.path(), "good");
    fs::write(good.join("image-maps.json"), "[]").expect("maps");
    let before = files(&good);
    let (outcome, out) = repair(&good, &[]);
    outcome.done();
    assert_eq!(files(&good), before, "the source is only read");
    let same: Vec<_> = before
        .into_iter()
        .filter(|(name, _)| name != "image-maps.json")
        .collect();
    assert_eq!(files(&out), same);
    assert_eq!(analysis(&out), analysis(&good));
    assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 2);
}

/// What an analysis finds out about damage, a repaired bundle says of itself.
#[test]
fn a_repaired_bundle_analyses_as_the_damaged_one() {
    type Damage = fn(&mut Vec<u8>);
    let damages: [(&str, Damage); 5] = [
        ("host.arrows", |bytes| bytes.truncate(bytes.len() / 2)),
        ("host.arrows", |bytes| bytes.truncate(0)),
        ("host.arrows", |bytes| bytes.truncate(bytes.len() - 8)),
        ("host.arrows", |bytes| {
            let middle = bytes.len() / 2;
            bytes[middle] ^= 4;
        }),
        ("host.arrows.idx", |bytes| bytes.truncate(100)),
    ];
    for (n, (file, damage)) in damages.into_iter().enumerate() {
        let folder = tempfile::tempdir().expect("folder");
        let damaged = bundle(folder.path(), "damaged");
        let mut bytes = fs::read(damaged.join(file)).expect("file");
        damage(&mut bytes);
        fs::write(damaged.join(file), bytes).expect("file");
        let (outcome, out) = repair(&damaged, &[]);
        outcome.done();
        let ((before, told), (after, silence)) = (analysis(&damaged), analysis(&out));
        assert_eq!(after, before, "{n}");
        // An index that ends early costs nothing, for batches prove themselves.
        assert_eq!(told.is_empty(), file == "host.arrows.idx", "{n}: {told}");
        assert_eq!(silence, "", "{n}");
        let lost = before["trace"]["lost"].as_u64().expect("a number");
        if lost > 0 {
            assert!(
                outcome.stderr.contains(&format!("{lost} lost")),
                "{outcome:#?}"
            );
        }
        let state = if before["trace"]["truncated"] == true {
            State::Repaired
        } else {
            State::Complete
        };
        assert_eq!(read_manifest(&out).state, state, "{n}");
    }
}

/// An agent's own bundle, which was imported, may have filled the guest's disk.
#[test]
fn a_guests_full_disk_leaves_the_hosts_damage() {
    let folder = tempfile::tempdir().expect("folder");
    let damaged = bundle(folder.path(), "damaged");
    let mut told = manifest();
    told.losses = vec![Loss {
        source: "disk_full".to_owned(),
        guest: Some("vm1".to_owned()),
        events: 3,
    }];
    fs::write(damaged.join("manifest.json"), told.to_json()).expect("manifest");
    let place = damaged.join("host.arrows");
    let bytes = fs::read(&place).expect("stream");
    fs::write(&place, &bytes[..bytes.len() / 2]).expect("stream");
    let (before, _) = analysis(&damaged);
    let trace = &before["trace"];
    assert_eq!(trace["truncated"], true);
    assert!(trace["lost"].as_u64() > Some(3), "{trace}");
    let (outcome, out) = repair(&damaged, &[]);
    outcome.done();
    assert_eq!(analysis(&out).0, before);
    assert_eq!(read_manifest(&out).state, State::Repaired);
}

/// It cuts a stream, which was counted. A batch that was whole once was not damaged by it.
#[test]
fn a_full_disk_excuses_no_damage_that_came_later() {
    let folder = tempfile::tempdir().expect("folder");
    let damaged = bundle(folder.path(), "damaged");
    let mut told = manifest();
    told.losses = vec![Loss {
        source: "disk_full".to_owned(),
        guest: None,
        events: 3,
    }];
    fs::write(damaged.join("manifest.json"), told.to_json()).expect("manifest");
    let place = damaged.join("host.arrows");
    let mut bytes = fs::read(&place).expect("stream");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 4;
    fs::write(&place, bytes).expect("stream");
    let (before, _) = analysis(&damaged);
    let trace = &before["trace"];
    assert_eq!(trace["truncated"], false);
    assert!(trace["lost"].as_u64() > Some(3), "{trace}");
    let (outcome, out) = repair(&damaged, &[]);
    outcome.done();
    assert_eq!(analysis(&out).0, before);
    assert_eq!(read_manifest(&out).state, State::Complete);
}

#[test]
fn damage_inside_a_guest_is_the_guests() {
    let folder = tempfile::tempdir().expect("folder");
    let damaged = bundle(folder.path(), "damaged");
    let place = damaged.join("guest-vm1.arrows");
    let bytes = fs::read(&place).expect("stream");
    fs::write(&place, &bytes[..bytes.len() / 2]).expect("stream");
    let (before, _) = analysis(&damaged);
    let (outcome, out) = repair(&damaged, &[]);
    outcome.done();
    let (after, silence) = analysis(&out);
    assert_eq!(after["trace"], before["trace"]);
    assert_eq!(
        (after["trace"]["truncated"].as_bool(), silence.as_str()),
        (Some(false), "")
    );
    // Nothing of it is left: the host's analysis goes on.
    fs::remove_file(&place).expect("removed");
    let (outcome, out) = repair(&damaged, &["--force"]);
    outcome.done();
    assert_eq!(read_manifest(&out).guest_sides.len(), 1);
    assert!(analysis(&out).1.is_empty());
}

#[test]
fn without_a_manifest_what_is_unknown_stays_unknown() {
    for contents in [None, Some("{\"format\": {\"maj")] {
        let folder = tempfile::tempdir().expect("folder");
        let damaged = bundle(folder.path(), "damaged");
        match contents {
            None => fs::remove_file(damaged.join("manifest.json")).expect("removed"),
            Some(text) => fs::write(damaged.join("manifest.json"), text).expect("written"),
        }
        let (outcome, out) = repair(&damaged, &[]);
        outcome.done();
        let told = read_manifest(&out);
        assert_eq!(
            (told.state, told.detail.as_str()),
            (State::Repaired, "full")
        );
        assert_eq!((told.start_unix_ns, told.topology.guests.len()), (0, 0));
        assert_eq!(told.guest_sides[0].guest, "vm1");
        assert_eq!(told.guest_sides[0].disks[0].name, "254:0");
        let (analysis, silence) = analysis(&out);
        assert!(silence.is_empty(), "{silence}");
        assert_eq!(analysis["trace"]["truncated"], true);
        let notices = analysis["trace"]["notices"].to_string();
        assert!(notices.contains("the manifest was lost"), "{notices}");
    }
}

#[test]
fn a_host_that_is_lost_leaves_the_guest() {
    let folder = tempfile::tempdir().expect("folder");
    let damaged = bundle(folder.path(), "damaged");
    fs::write(damaged.join("host.arrows"), "not a stream").expect("written");
    fs::remove_file(damaged.join("host.arrows.idx")).expect("removed");
    let (outcome, out) = repair(&damaged, &[]);
    outcome.done();
    let (analysis, silence) = analysis(&out);
    assert!(silence.is_empty(), "{silence}");
    let devices = analysis["devices"].as_array().expect("devices");
    assert!(devices.iter().any(|device| device["side"] == "guest"));
    assert_eq!(analysis["trace"]["truncated"], true);
}

#[test]
fn nothing_is_overwritten_and_nothing_left_behind() {
    let folder = tempfile::tempdir().expect("folder");
    let good = bundle(folder.path(), "good");
    let (first, out) = repair(&good, &[]);
    first.done();
    let (again, _) = repair(&good, &[]);
    assert_eq!(again.code, Some(2), "{again:#?}");
    repair(&good, &["--force"]).0.done();
    let itself = nestrace(&[
        "repair".as_ref(),
        good.as_os_str(),
        "--force".as_ref(),
        "-o".as_ref(),
        good.as_os_str(),
    ]);
    assert_eq!(itself.code, Some(2), "{itself:#?}");
    let before = files(&out);
    fs::write(folder.path().join("empty"), "").expect("file");
    let bad = folder.path().join("bad.nest");
    fs::create_dir(&bad).expect("folder");
    let out_word = out.to_str().expect("UTF-8");
    nestrace(&[
        "repair",
        bad.to_str().expect("UTF-8"),
        "--force",
        "-o",
        out_word,
    ])
    .refused();
    assert_eq!(files(&out), before, "a failure replaces nothing");
    let hidden = fs::read_dir(folder.path()).expect("folder").flatten();
    let hidden = hidden.filter(|entry| entry.file_name().to_string_lossy().starts_with('.'));
    assert_eq!(hidden.count(), 0);
}

/// The last bytes of a file are written when it is closed, and can be what finds no room.
#[test]
fn a_full_disk_is_told_to_the_last_byte() {
    let folder = tempfile::tempdir().expect("folder");
    let good = bundle(folder.path(), "good");
    let extent = |n: u64| Extent {
        guest_offset: n << 16,
        bytes: 1 << 16,
        file_offset: n << 20,
    };
    let maps = [ImageMap {
        extents: (0..3000).map(extent).collect(),
        ..ImageMap::default()
    }];
    let maps = serde_json::to_vec(&maps).expect("JSON");
    fs::write(good.join("image-maps.json"), &maps).expect("maps");
    let whole = maps.len() as u64;
    for (room, code) in [(whole, 0), (whole - 1, 1), (100, 1)] {
        let out = folder.path().join("out.nest");
        let words = ["repair".as_ref(), good.as_os_str(), "-o".as_ref()];
        let outcome = nestrace_on_full_disk(room, &[&words[..], &[out.as_os_str()]].concat());
        assert_eq!(outcome.code, Some(code), "{room}: {outcome:#?}");
        assert_eq!(out.exists(), code == 0, "{room}");
        let _ = fs::remove_dir_all(out);
    }
    assert_eq!(fs::read_dir(folder.path()).expect("folder").count(), 1);
}

#[test]
fn redaction_takes_the_names_and_leaves_the_numbers() {
    let folder = tempfile::tempdir().expect("folder");
    let good = bundle(folder.path(), "good");
    let (outcome, out) = repair(&good, &["--redact"]);
    outcome.done();
    for (name, bytes) in files(&out) {
        let text = String::from_utf8_lossy(&bytes).into_owned() + &name;
        for secret in ["vm1", "secret", "drive0", "postgres"] {
            assert!(!text.contains(secret), "{secret} in {name}");
        }
    }
    let (before, after) = (analysis(&good).0, analysis(&out).0);
    for key in ["counts", "bytes", "latency_ns"] {
        assert_eq!(after["devices"][0][key], before["devices"][0][key], "{key}");
        assert_eq!(after["devices"][1][key], before["devices"][1][key], "{key}");
    }
    assert!(!after.to_string().contains("postgres") && before.to_string().contains("postgres"));
    assert_eq!(read_manifest(&good), manifest());
}

//! A recording that is not whole says so: `--strict` is exit 5 in every command and format, and no text says that
//! nothing was lost.

mod program;

use std::{
    fs,
    path::{Path, PathBuf},
};

use program::{RECORDING, code_and_messages, nestrace, text};

/// A copy of the recording.
fn copy(folder: &Path, name: &str) -> PathBuf {
    let bundle = folder.join(format!("{name}.nest"));
    fs::create_dir(&bundle).expect("a folder");
    for entry in fs::read_dir(RECORDING).expect("the recording") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), bundle.join(entry.file_name())).expect("a copy");
    }
    bundle
}

fn change_manifest(bundle: &Path, change: impl FnOnce(&mut serde_json::Value)) {
    let file = bundle.join("manifest.json");
    let bytes = fs::read(&file).expect("the manifest");
    let mut manifest = serde_json::from_slice(&bytes).expect("JSON");
    change(&mut manifest);
    fs::write(&file, manifest.to_string()).expect("the manifest");
}

/// As `kill -9` leaves it right after a batch: both streams end with a whole batch.
fn killed(folder: &Path) -> PathBuf {
    let bundle = copy(folder, "killed");
    change_manifest(&bundle, |manifest| {
        manifest["state"] = "recording".into();
        manifest["end_reason"] = "".into();
        manifest["end_mono_ns"] = 0.into();
    });
    bundle
}

fn guest_stream(bundle: &Path) -> PathBuf {
    let entries = fs::read_dir(bundle).expect("the bundle");
    let files = entries.map(|entry| entry.expect("an entry").path());
    let is_guests = |file: &PathBuf| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("guest-") && name.ends_with(".arrows")
    };
    files.into_iter().find(is_guests).expect("a guest's stream")
}

fn cut(file: &Path) {
    let bytes = fs::read(file).expect("the stream");
    fs::write(file, &bytes[..bytes.len() / 2]).expect("the stream");
}

/// Each way, and what the first line says of it.
fn ways(folder: &Path) -> Vec<(PathBuf, &'static str)> {
    let host_cut = copy(folder, "host-cut");
    cut(&host_cut.join("host.arrows"));
    let guest_cut = copy(folder, "guest-cut");
    cut(&guest_stream(&guest_cut));
    // It ends with a whole batch, and nothing tells how many are missing.
    let guest_open = copy(folder, "guest-open");
    let stream = guest_stream(&guest_open);
    let bytes = fs::read(&stream).expect("the stream");
    fs::write(&stream, &bytes[..bytes.len() - 8]).expect("the stream");
    fs::remove_file(stream.with_extension("arrows.idx")).expect("the index");
    let guest_missing = copy(folder, "guest-missing");
    fs::remove_file(guest_stream(&guest_missing)).expect("the stream");
    let lost = copy(folder, "lost");
    change_manifest(&lost, |manifest| {
        manifest["losses"] = serde_json::json!([{"source": "block", "guest": null, "events": 3}]);
    });
    let too_long = copy(folder, "too-long");
    change_manifest(&too_long, |manifest| {
        manifest["losses"] = serde_json::json!([{"source": "walk", "guest": null, "events": 3}]);
    });
    let no_manifest = copy(folder, "no-manifest");
    fs::remove_file(no_manifest.join("manifest.json")).expect("the manifest");
    vec![
        (killed(folder), "not closed: up to 0.5 s"),
        (host_cut, "cut: the end of a file"),
        (guest_cut, "cut inside vm1"),
        (guest_open, "cut inside vm1"),
        (guest_missing, "1 stream MISSING"),
        (lost, "3 LOST"),
        (too_long, "3 requests not followed"),
        (no_manifest, "no manifest"),
    ]
}

/// The first lines of the text, and all of it.
fn head(bundle: &Path) -> (String, String) {
    let output = nestrace(&["analyze", text(bundle)]);
    let all = String::from_utf8_lossy(&output.stdout).into_owned();
    let head: Vec<&str> = all.lines().take(6).map(str::trim).collect();
    (head.join(" "), all)
}

#[test]
fn a_whole_recording_passes() {
    assert!(head(Path::new(RECORDING)).0.contains("none lost"));
    for format in ["text", "json", "btt"] {
        let words = ["analyze", "--strict", "--format", format, RECORDING];
        assert_eq!(code_and_messages(&words).0, Some(0), "{format}");
    }
    let words = ["compare", "--strict", RECORDING, RECORDING];
    assert_eq!(code_and_messages(&words).0, Some(0));
}

#[test]
fn strict_is_5_in_every_command_and_format() {
    let folder = tempfile::tempdir().expect("a folder");
    for (bundle, said) in ways(folder.path()) {
        let path = text(&bundle);
        let page = bundle.with_extension("html");
        let plots = bundle.with_extension("plots");
        for words in [
            &["--format", "text"][..],
            &["--format", "json"],
            &["--format", "btt"],
            &["--slowest", "1"],
            &["--report", text(&page)],
            &["--plots", text(&plots)],
        ] {
            let words = [&["analyze", "--strict", path], words].concat();
            let (code, stderr) = code_and_messages(&words);
            assert_eq!(code, Some(5), "{words:?}: {stderr}");
        }
        for (a, b) in [(path, RECORDING), (RECORDING, path)] {
            let words = ["compare", "--strict", a, b];
            assert_eq!(code_and_messages(&words).0, Some(5), "{words:?}");
        }
        let (head, all) = head(&bundle);
        assert!(head.contains(said), "{path}: {head}");
        assert!(!all.contains("none lost"), "{path}: {head}");
        let page = fs::read_to_string(&page).expect("the report");
        assert!(page.contains(said) && !page.contains("none lost"), "{path}");
    }
}

#[test]
fn a_repaired_bundle_says_what_the_damaged_one_said() {
    let folder = tempfile::tempdir().expect("a folder");
    for (bundle, said) in ways(folder.path()) {
        let out = bundle.with_extension("repaired.nest");
        for redact in [None, Some("--redact")] {
            let words = ["repair", "--force", text(&bundle), "-o", text(&out)];
            let words: Vec<&str> = words.into_iter().chain(redact).collect();
            let (code, stderr) = code_and_messages(&words);
            assert_eq!(code, Some(0), "{said}: {stderr}");
            let (head, all) = head(&out);
            assert!(!all.contains("none lost"), "{said}: {head}");
            // A guest's stream that is missing is an empty one afterwards, and guests have other names.
            if !said.starts_with("1 stream") && !said.starts_with("cut inside") {
                assert!(head.contains(said), "{said}: {head}");
            }
            for format in ["text", "json", "btt"] {
                let words = ["analyze", "--strict", "--format", format, text(&out)];
                assert_eq!(
                    code_and_messages(&words).0,
                    Some(5),
                    "{said} {redact:?} {format}"
                );
            }
        }
    }
}

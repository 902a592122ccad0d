//! Options that cannot mean anything are refused for every kind of input, what is unknown is `null`, and the error
//! comes before the notes.

mod program;

use std::{
    fs,
    path::{Path, PathBuf},
};

use program::{RECORDING, code_and_messages, nestrace, text};
use serde_json::Value;

/// A capture of two processors.
const CAPTURE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../fixtures/blktrace/ext3-seqw-mq-ide/gt"
);

fn analysis(words: &[&str]) -> Value {
    let output = nestrace(&[&["analyze", "--format", "json"], words].concat());
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The recording without some of its files.
fn without(folder: &Path, files: &[&str]) -> PathBuf {
    let bundle = folder.join(format!("without-{}.nest", files.len()));
    fs::create_dir(&bundle).expect("a folder");
    for entry in fs::read_dir(RECORDING).expect("the recording") {
        let entry = entry.expect("an entry");
        let name = entry.file_name();
        if !files.iter().any(|file| name == *file) {
            fs::copy(entry.path(), bundle.join(name)).expect("a copy");
        }
    }
    bundle
}

#[test]
fn a_missing_stream_of_a_guest_is_a_loss() {
    let folder = tempfile::tempdir().expect("a folder");
    let (stream, index) = ("guest-vm1.arrows", "guest-vm1.arrows.idx");
    for (files, events) in [
        (&[stream][..], Value::from(2_582)),
        (&[stream, index], Value::Null),
    ] {
        let bundle = without(folder.path(), files);
        for format in ["text", "json", "btt"] {
            let words = ["analyze", "--strict", "--format", format, text(&bundle)];
            let (code, stderr) = code_and_messages(&words);
            assert_eq!(code, Some(5), "{format}: {stderr}");
            assert!(
                stderr.contains("guest-vm1.arrows: No such file"),
                "{stderr}"
            );
        }
        let trace = &analysis(&[text(&bundle)])["trace"];
        assert_eq!(trace["truncated"], true);
        assert_eq!(trace["lost"], events.as_u64().unwrap_or(0));
        let unread = &trace["unread"][0];
        assert_eq!(
            (&unread["name"], &unread["guest"]),
            (&stream.into(), &"vm1".into())
        );
        assert_eq!(unread["events"], events);
        let told = trace["notices"].to_string();
        assert!(told.contains("inside vm1 cannot be read"), "{told}");
        let words = ["compare", "--strict", RECORDING, text(&bundle)];
        assert_eq!(code_and_messages(&words).0, Some(5));
    }
    // What is repaired tells what was lost, as far as it is known.
    let bundle = folder.path().join("without-1.nest");
    let out = folder.path().join("repaired.nest");
    let (code, stderr) = code_and_messages(&["repair", text(&bundle), "-o", text(&out)]);
    assert_eq!(code, Some(0), "{stderr}");
    let (code, stderr) = code_and_messages(&["analyze", "--strict", text(&out)]);
    assert_eq!(code, Some(5), "{stderr}");
}

#[test]
fn a_capture_has_no_guests_and_no_chains() {
    let one = format!("{CAPTURE}.blktrace.0");
    for input in [CAPTURE, one.as_str()] {
        for (options, expected) in [
            (&["--io", "1"][..], 2),
            (&["--slowest", "1"], 2),
            (&["--guest", "x"], 2),
            (&["--guest", "x", "--format", "btt"], 2),
            (&["--from", "99"], 3),
            (&["--from", "99", "--format", "btt"], 3),
        ] {
            let (code, stderr) = code_and_messages(&[&["analyze", input], options].concat());
            assert_eq!(code, Some(expected), "{input} {options:?}: {stderr}");
            let said = match expected {
                2 => "works with bundles only",
                _ => "is after its end: it lasts",
            };
            assert!(stderr.contains(said), "{input} {options:?}: {stderr}");
        }
    }
    // A missing input is reported as missing.
    let (code, stderr) = code_and_messages(&["analyze", "nothing", "--io", "1"]);
    assert_eq!(code, Some(3), "{stderr}");
}

#[test]
fn the_first_line_is_the_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let cut = without(folder.path(), &["guest-vm1.arrows"]);
    let nameless = without(folder.path(), &["manifest.json", "image-maps.json"]);
    let (cut, nameless) = (text(&cut), text(&nameless));
    let out = folder.path().join("out");
    let one = format!("{CAPTURE}.blktrace.0");
    let export = ["export", "--format", "csv", nameless, "-o", text(&out)];
    for words in [
        &["analyze", &one, "--device", "nodev"][..],
        &["analyze", cut, "--io", "5"],
        &["compare", &one, "nope"],
        &[&export[..], &["--guest", "nobody"]].concat(),
        &["analyze", nameless, "--guest", "nobody"],
    ] {
        let (code, stderr) = code_and_messages(words);
        assert_eq!(code, Some(3), "{words:?}: {stderr}");
        assert!(stderr.starts_with("nestrace: "), "{words:?}: {stderr}");
    }
    // A note is said all the same.
    let (_, stderr) = code_and_messages(&["analyze", &one, "--device", "nodev"]);
    assert!(
        stderr.contains("\nnote: this is one processor of 2"),
        "{stderr}"
    );
}

#[test]
fn what_is_not_known_is_null() {
    let folder = tempfile::tempdir().expect("a folder");
    let nameless = without(folder.path(), &["manifest.json"]);
    let trace = &analysis(&[text(&nameless)])["trace"];
    let source = &trace["sources"][0];
    for unknown in [
        &trace["start_unix_ns"],
        &trace["detail"],
        &trace["end_reason"],
        &source["backend"],
        &source["kernel"],
    ] {
        assert_eq!(*unknown, Value::Null, "{trace}");
    }
    let trace = &analysis(&[CAPTURE])["trace"];
    assert!(trace["start_unix_ns"].as_u64().is_some_and(|ns| ns > 0));
    for unknown in [&trace["end_reason"], &trace["sources"][0]["kernel"]] {
        assert_eq!(*unknown, Value::Null, "{trace}");
    }
    // A guest's capture alone: nothing ties its clock to anything.
    let out = folder.path().join("alone.nest");
    let (code, stderr) = code_and_messages(&["import", "blktrace", CAPTURE, "-o", text(&out)]);
    assert_eq!(code, Some(0), "{stderr}");
    let clock = &analysis(&[text(&out)])["clocks"][0];
    assert_eq!(
        (&clock["method"], &clock["pairs"]),
        (&"none".into(), &0.into())
    );
    for unknown in [
        &clock["offset_ns"],
        &clock["reference_unix_ns"],
        &clock["error_bound_ns"]["p50"],
        &clock["error_bound_ns"]["max"],
    ] {
        assert_eq!(*unknown, Value::Null, "{clock}");
    }
}

#[test]
fn names_are_checked_without_a_manifest_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let nameless = without(folder.path(), &["manifest.json"]);
    let out = folder.path().join("out");
    for options in [["--guest", "nobody"], ["--device", "nodev"]] {
        let analyze = ["analyze", text(&nameless)];
        let btt = ["analyze", "--format", "btt", text(&nameless)];
        let mut commands = vec![analyze.to_vec(), btt.to_vec()];
        for format in ["csv", "perfetto", "fio", "blktrace"] {
            let words = [
                "export",
                "--format",
                format,
                text(&nameless),
                "-o",
                text(&out),
            ];
            commands.push(words.to_vec());
        }
        for words in commands {
            let (code, stderr) = code_and_messages(&[&words[..], &options].concat());
            assert_eq!(code, Some(3), "{words:?} {options:?}: {stderr}");
            assert!(
                stderr.contains("hint: the manifest was lost, and with it all names"),
                "{words:?} {options:?}: {stderr}"
            );
        }
    }
}

/// The devices of the host by their number.
fn of_device<'a>(analysis: &'a Value, dev: &str) -> Vec<&'a str> {
    let devices = analysis["devices"].as_array().expect("devices");
    let found = devices.iter().filter(|device| device["dev"] == *dev);
    found.filter_map(|device| device["name"].as_str()).collect()
}

#[test]
fn a_device_goes_by_its_name_or_its_number_everywhere() {
    let folder = tempfile::tempdir().expect("a folder");
    let nameless = without(folder.path(), &["manifest.json"]);
    let all = analysis(&[RECORDING]);
    let devices = all["devices"].as_array().expect("devices");
    let guest = devices.iter().find(|device| device["name"] == "vdc");
    let dev = guest.expect("vdc")["dev"].as_str().expect("a number");
    let host = devices.iter().find(|device| device["side"] == "host");
    let of_host = host.expect("one")["dev"].as_str().expect("a number");
    let with_comma = dev.replace(':', ",");
    for wanted in ["vdc", dev, &with_comma] {
        let of_one = analysis(&[RECORDING, "--device", wanted]);
        assert_eq!(of_device(&of_one, dev), ["vdc"], "{wanted}");
        assert_eq!(
            of_one["devices"].as_array().map(Vec::len),
            Some(1),
            "{wanted}"
        );
        let stories = analysis(&[RECORDING, "--device", wanted, "--slowest", "2"]);
        assert_eq!(
            stories["stories"].as_array().map(Vec::len),
            Some(2),
            "{wanted}"
        );
        let out = folder.path().join("table");
        let export = [
            "export",
            "--format",
            "csv",
            RECORDING,
            "-o",
            text(&out),
            "--force",
        ];
        let (code, stderr) = code_and_messages(&[&export[..], &["--device", wanted]].concat());
        assert_eq!(code, Some(0), "{wanted}: {stderr}");
        let chains = fs::read_to_string(folder.path().join("table.chains.csv")).expect("it");
        assert!(chains.lines().count() > 100, "{wanted}");
    }
    for (input, wanted) in [
        (CAPTURE, "8:0"),
        (CAPTURE, "8,0"),
        (text(&nameless), of_host),
    ] {
        for format in ["text", "btt"] {
            let words = ["analyze", input, "--format", format, "--device", wanted];
            let (code, stderr) = code_and_messages(&words);
            assert_eq!(code, Some(0), "{words:?}: {stderr}");
        }
    }
    for input in [RECORDING, text(&nameless), CAPTURE] {
        let (code, stderr) = code_and_messages(&["analyze", input, "--device", "99:9"]);
        assert_eq!(code, Some(3), "{input}: {stderr}");
        assert!(stderr.contains("no device 99:9"), "{stderr}");
    }
}

#[test]
fn two_listings_do_not_go_into_one_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("both");
    let again = folder.path().join(".").join("both");
    let words = [
        "analyze",
        RECORDING,
        "--format",
        "btt",
        "--per-io",
        text(&file),
        "--iostat",
        text(&again),
    ];
    let (code, stderr) = code_and_messages(&words);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("--per-io and --iostat both name"),
        "{stderr}"
    );
    assert!(!file.exists());
    let table = folder.path().join("table");
    let words = [
        "analyze",
        RECORDING,
        "--format",
        "btt",
        "--iostat",
        text(&table),
        "--interval",
        "0",
    ];
    let (code, stderr) = code_and_messages(&words);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(!table.exists());
}

#[test]
fn messages_name_what_helps() {
    let folder = tempfile::tempdir().expect("a folder");
    for cpu in [0, 1] {
        let to = folder.path().join(format!("gt.blktrace.{cpu}"));
        fs::copy(format!("{CAPTURE}.blktrace.{cpu}"), to).expect("a copy");
    }
    let in_it = format!("{}/gt", folder.path().display());
    for (input, said) in [
        ("/dev/null", "/dev/null: not a regular file"),
        ("nope.nest", "nope.nest: there is no such bundle"),
        (text(folder.path()), in_it.as_str()),
    ] {
        let (code, stderr) = code_and_messages(&["analyze", input]);
        assert_eq!(code, Some(3), "{stderr}");
        assert!(stderr.contains(said) && !stderr.contains("-i"), "{stderr}");
    }
    let out = folder.path().join("logs");
    let words = ["export", "--format", "fio", RECORDING, "-o", text(&out)];
    let (code, stderr) = code_and_messages(&words);
    assert_eq!(code, Some(0), "{stderr}");
    let log = stderr.split("--read_iolog=").nth(1).expect("the next step");
    let log = fs::read_to_string(log.split(' ').next().expect("a name")).expect("it");
    assert!(log.contains(" read ") || log.contains(" write "), "{log}");
    // What begins with a folder's name would be hidden in it.
    let dir = format!("{}/", folder.path().display());
    for format in ["csv", "fio", "blktrace"] {
        let (code, stderr) =
            code_and_messages(&["export", "--format", format, RECORDING, "-o", &dir]);
        assert_eq!(code, Some(2), "{format}: {stderr}");
    }
    let out = folder.path().join("inside.nest");
    let words = ["import", "guest", RECORDING, "-o", text(&out)];
    let (code, stderr) = code_and_messages(&words);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(
        stderr.contains("recorded on its host is left out"),
        "{stderr}"
    );
}

#[test]
fn schemas_are_those_of_the_documents() {
    for of in ["analysis", "comparison", "lab", "fleet"] {
        let page = format!("{}/../../docs/{of}.schema.json", env!("CARGO_MANIFEST_DIR"));
        let expected = fs::read(page).expect("the committed schema");
        assert!(nestrace(&["schema", of]).stdout == expected, "{of}");
    }
    let (code, said) = code_and_messages(&["schema", "bundle"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("analysis, comparison, lab, fleet"), "{said}");
}

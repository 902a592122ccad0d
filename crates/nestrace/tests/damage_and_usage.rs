//! Every command that reads a stream reports its damage, and an option that would do nothing is
//! refused.

mod program;

use std::{
    fs,
    path::{Path, PathBuf},
};

use program::{RECORDING, code_and_messages, nestrace, text};

/// The recording with the end of the host's stream cut off.
fn cut(folder: &Path) -> PathBuf {
    let bundle = folder.join("cut.nest");
    fs::create_dir(&bundle).expect("a folder");
    for entry in fs::read_dir(RECORDING).expect("the recording") {
        let entry = entry.expect("an entry");
        fs::copy(entry.path(), bundle.join(entry.file_name())).expect("a copy");
    }
    let stream = bundle.join("host.arrows");
    let mut bytes = fs::read(&stream).expect("the stream");
    bytes.truncate(60_000);
    fs::write(&stream, bytes).expect("the stream");
    bundle
}

#[test]
fn damage_is_told_whatever_the_format() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = cut(folder.path());
    for format in ["text", "json", "btt"] {
        let words = ["analyze", "--strict", "--format", format, text(&bundle)];
        let (code, stderr) = code_and_messages(&words);
        assert_eq!(code, Some(5), "{format}: {stderr}");
        assert!(stderr.contains("7754 events lost"), "{format}: {stderr}");
    }
    for format in ["blktrace", "csv", "fio", "parquet", "perfetto"] {
        let out = folder.path().join(format);
        let words = [
            "export",
            "--format",
            format,
            text(&bundle),
            "-o",
            text(&out),
        ];
        let (code, stderr) = code_and_messages(&words);
        assert_eq!(code, Some(0), "{format}: {stderr}");
        assert!(stderr.contains("7754 events lost"), "{format}: {stderr}");
    }
}

/// The place in a condition, and what may stand there. No right is needed to hear it.
#[test]
fn a_condition_that_is_none_is_shown_with_its_place() {
    let words = |until| {
        [
            "record", "--device", "loop0", "--flight", "10", "--until", until,
        ]
    };
    for (until, place, expected) in [
        ("p99(writes, guest) > 100ms", 4, "an operation: read, write"),
        ("p99(write) > 100", 13, "a time with its unit"),
        ("(max(any) > 1s", 14, "or a closing parenthesis"),
    ] {
        let (code, stderr) = code_and_messages(&words(until));
        assert_eq!(code, Some(2), "{stderr}");
        let shown = format!("  {until}\n  {}^ expected", " ".repeat(place));
        assert!(stderr.contains(&shown), "{stderr}");
        assert!(stderr.contains(expected), "{stderr}");
    }
    let (code, stderr) = code_and_messages(&["record", "--until", "max(any) > 1s"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("--flight"), "{stderr}");
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("listing");
    for words in [
        &["--per-io", text(&file)][..],
        &["--iostat", text(&file)],
        &["--format", "json", "--per-io", text(&file)],
        &["--format", "btt", "--interval", "2"],
        &["--format", "btt", "--io", "1"],
        &["--format", "btt", "--slowest", "1"],
        &["--from", "2", "--to", "1"],
        &["--to", "0"],
    ] {
        let (code, stderr) = code_and_messages(&[&["analyze", RECORDING][..], words].concat());
        assert_eq!(code, Some(2), "{words:?}: {stderr}");
        assert!(!file.exists(), "{words:?}");
    }
    for format in ["text", "btt"] {
        let words = ["analyze", RECORDING, "--format", format, "--from", "100"];
        let (code, stderr) = code_and_messages(&words);
        assert_eq!(code, Some(3), "{stderr}");
        assert!(stderr.contains("it lasts 2.88 s"), "{stderr}");
    }
}

#[test]
fn a_bio_that_is_not_there_is_told_with_those_that_are() {
    let (code, stderr) = code_and_messages(&["analyze", RECORDING, "--io", "99999"]);
    assert_eq!(code, Some(3), "{stderr}");
    let line = stderr.lines().next().unwrap_or_default();
    assert!(
        line.starts_with("nestrace: ") && line.contains("no bio 99999: vdc of vm1 has "),
        "{line}"
    );
    let last = line.rsplit_once("has bios 1 to ").expect("the range").1;
    for (io, expected) in [(last.to_owned(), 0), (format!("{last}0"), 3)] {
        let (code, stderr) = code_and_messages(&["analyze", RECORDING, "--io", &io]);
        assert_eq!(code, Some(expected), "{io}: {stderr}");
    }
}

#[test]
fn a_folder_that_is_not_there_is_named_before_anything_is_read() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("not there");
    let out = missing.join("out");
    let capture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/blktrace/ext3-seqw-mq-ide/gt");
    let exports = ["blktrace", "csv", "fio", "parquet", "perfetto"];
    let exports = exports.map(|format| vec!["export", "--format", format, RECORDING, "-o"]);
    let others = [
        vec!["analyze", RECORDING, "--report"],
        vec!["analyze", RECORDING, "--format", "btt", "--per-io"],
        vec!["analyze", RECORDING, "--format", "btt", "--iostat"],
        vec!["compare", RECORDING, RECORDING, "--report"],
        vec!["repair", RECORDING, "-o"],
        vec!["import", "blktrace", text(&capture), "-o"],
        vec!["record", "--device", "loop0", "-o"],
    ];
    for mut words in exports.into_iter().chain(others) {
        words.push(text(&out));
        let (code, stderr) = code_and_messages(&words);
        assert_eq!(code, Some(2), "{words:?}: {stderr}");
        let expected = format!(
            "nestrace: cannot write {}: there is no folder {}\nhint: mkdir -p {}\n",
            out.display(),
            missing.display(),
            missing.display()
        );
        assert_eq!(stderr, expected, "{words:?}");
        assert!(!missing.exists());
    }
    // A folder of plots is made.
    let (code, stderr) = code_and_messages(&["analyze", RECORDING, "--plots", text(&out)]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(out.is_dir());
}

#[test]
fn what_a_lost_manifest_leaves_out_is_told_with_the_remedy() {
    let folder = tempfile::tempdir().expect("a folder");
    let bundle = folder.path().join("lost.nest");
    fs::create_dir(&bundle).expect("a folder");
    for entry in fs::read_dir(RECORDING).expect("the recording") {
        let entry = entry.expect("an entry");
        if entry.file_name() != "manifest.json" {
            fs::copy(entry.path(), bundle.join(entry.file_name())).expect("a copy");
        }
    }
    let remedy = format!("nestrace repair {} -o ", bundle.display());
    let output = nestrace(&["analyze", "--strict", "--format", "json", text(&bundle)]);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{stderr}");
    assert!(stderr.contains(&remedy), "{stderr}");
    let analysis: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(analysis["trace"]["lost"], 2_582);
    let notices = analysis["trace"]["notices"].to_string();
    assert!(
        notices.contains(&remedy) && notices.contains("the manifest was lost"),
        "{notices}"
    );
    let (code, _) = code_and_messages(&["analyze", "--strict", "--format", "btt", text(&bundle)]);
    assert_eq!(code, Some(5));
    // The remedy works as it is printed.
    let words = remedy.split_whitespace().skip(1).map(str::to_owned);
    let out = folder.path().join("lost-repaired.nest");
    let words: Vec<String> = words.chain([text(&out).to_owned()]).collect();
    assert!(stderr.contains(&format!("{remedy}{}", out.display())));
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert_eq!(code_and_messages(&words).0, Some(0));
    // All streams are in it, and what was lost while recording is still not known.
    let (code, stderr) = code_and_messages(&["analyze", "--strict", text(&out)]);
    assert_eq!(code, Some(5), "{stderr}");
    assert!(!stderr.contains("left out"), "{stderr}");
}

#[test]
fn pages_of_the_manual_are_written_into_a_folder() {
    let folder = tempfile::tempdir().expect("a folder");
    let pages = folder.path().join("man/man1");
    let (code, stderr) = code_and_messages(&["man", "--dir", text(&pages)]);
    assert_eq!(code, Some(0), "{stderr}");
    for page in ["nestrace.1", "nestrace-record.1", "nestrace-lab-run.1"] {
        let text = fs::read_to_string(pages.join(page)).expect(page);
        assert!(text.contains(".TH nestrace") && text.contains("SEE ALSO"));
    }
    let one = nestrace(&["man", "lab", "run"]);
    let file = fs::read(pages.join("nestrace-lab-run.1")).expect("a page");
    assert_eq!((one.status.code(), one.stdout), (Some(0), file));
    let (code, stderr) = code_and_messages(&["man", "lab", "walk"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("no command walk") && stderr.contains("plan, run, report"),
        "{stderr}"
    );
}

#[test]
fn a_listing_replaces_nothing_unless_told() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("mine");
    for option in ["--per-io", "--iostat"] {
        fs::write(&file, "mine").expect("a file");
        let words = ["analyze", RECORDING, "--format", "btt", option, text(&file)];
        let (code, stderr) = code_and_messages(&words);
        assert_eq!(code, Some(2), "{option}: {stderr}");
        assert!(stderr.contains("--force"), "{stderr}");
        assert_eq!(fs::read_to_string(&file).expect("it"), "mine");
        let (code, stderr) = code_and_messages(&[&words[..], &["--force"]].concat());
        assert_eq!(code, Some(0), "{option}: {stderr}");
        assert_ne!(fs::read_to_string(&file).expect("it"), "mine");
    }
}

/// The lines of a listing of the recording's machines.
fn listing(folder: &Path, option: &str, words: &[&str]) -> Vec<String> {
    let file = folder.join("listing");
    let listing = ["--format", "btt", "--force", option, text(&file)];
    let (code, stderr) =
        code_and_messages(&[&["analyze", RECORDING][..], &listing, words].concat());
    assert_eq!(code, Some(0), "{words:?}: {stderr}");
    let text = fs::read_to_string(&file).expect("it");
    text.lines().map(str::to_owned).collect()
}

#[test]
fn each_machine_has_its_part_of_a_listing() {
    let folder = tempfile::tempdir().expect("a folder");
    for (option, above) in [("--per-io", 0), ("--iostat", 1)] {
        let list = |words: &[&str]| listing(folder.path(), option, words);
        let both = list(&[]);
        let is_heading = |line: &&String| line.starts_with('#');
        let headings: Vec<&String> = both.iter().filter(is_heading).collect();
        assert_eq!(
            headings,
            ["######## host ########", "######## guest vm1 ########"]
        );
        let guest = both.iter().rposition(|line| is_heading(&line));
        let (of_host, of_guest) = both.split_at(guest.expect("the guest's"));
        assert_eq!(of_guest[2..], list(&["--guest", "vm1"]), "{option}");
        // The number of the guest's disks is none of the host's.
        assert!(!of_host.iter().any(|line| line.contains("254, 32")));
        assert!(!of_host.iter().any(|line| line.contains("254,32")));
        // A machine without the device is not looked at.
        let of_disk = list(&["--device", "vdc"]);
        assert!(!of_disk.iter().any(|line| is_heading(&line)));
        let columns = of_disk.iter().filter(|line| line.starts_with("Device:"));
        assert_eq!(columns.count(), 2 * above, "{option}");
        assert!(of_disk.len() > 3, "{of_disk:?}");
    }
}

#[test]
fn a_device_that_btt_does_not_know_is_told_with_those_that_it_does() {
    // QEMU's name of vdc, and a device of the host where only the guest was asked for.
    for words in [
        &["--device", "qcow2-grows"][..],
        &["--guest", "vm1", "--device", "loop5"],
    ] {
        let analyze = ["analyze", RECORDING, "--format", "btt"];
        let (code, stderr) = code_and_messages(&[&analyze[..], words].concat());
        assert_eq!(code, Some(3), "{stderr}");
        assert!(!stderr.contains("no I/O"), "{stderr}");
        assert!(stderr.contains("kernel names"), "{stderr}");
        assert!(
            stderr.contains("the recording has: ") && stderr.contains("vdc"),
            "{stderr}"
        );
    }
    let (code, stderr) = code_and_messages(&["analyze", RECORDING, "--device", "qcow2-grows"]);
    assert_eq!(code, Some(0), "{stderr}");
}

#[test]
fn a_flush_has_no_place_in_the_table() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("table");
    let words = ["export", "--format", "csv", RECORDING, "-o", text(&out)];
    let (code, stderr) = code_and_messages(&words);
    assert_eq!(code, Some(0), "{stderr}");
    let table = fs::read_to_string(folder.path().join("table.requests.csv")).expect("it");
    let mut columns = table.lines().next().expect("a header").split(',');
    let offset = columns.position(|name| name == "offset_bytes");
    let offset = offset.expect("the column");
    let (mut n_flushes, mut n_others) = (0, 0);
    for row in table.lines().skip(1) {
        let fields: Vec<&str> = row.split(',').collect();
        if fields[4] == "flush" {
            n_flushes += 1;
            assert_eq!(fields[offset], "", "{row}");
        } else if ["read", "write", "discard"].contains(&fields[4]) {
            n_others += 1;
            assert!(fields[offset].parse::<u64>().is_ok_and(|at| at < 1 << 40));
        }
    }
    assert!(n_flushes > 50 && n_others > 1_000, "{n_flushes} {n_others}");
}

#[test]
fn what_is_no_bundle_is_told_how_to_become_one() {
    let capture =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/blktrace/ext3-seqw-mq-ide/gt");
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out");
    let words = [
        "export",
        "--format",
        "csv",
        text(&capture),
        "-o",
        text(&out),
    ];
    let (code, stderr) = code_and_messages(&words);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("hint: ") && stderr.contains("nestrace import blktrace"));
}

//! blktrace in and out, as a user runs it: `analyze` of captures, `--format btt`, `export`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use nestrace_trace::blktrace::{Reader, Trace, Writer};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/blktrace");

fn capture(name: &str) -> PathBuf {
    Path::new(FIXTURES).join(name).join("gt")
}

fn nestrace(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(words)
        .output()
        .unwrap()
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// What it prints; it must end well.
fn prints(words: &[&str]) -> String {
    let output = nestrace(words);
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {stderr}");
    String::from_utf8(output.stdout).unwrap()
}

fn fails(words: &[&str]) -> (Option<i32>, String) {
    let output = nestrace(words);
    let stderr = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), stderr)
}

/// One file of all processors with times from 0, as `blkparse -d` writes.
fn dump(capture: &Path, to: &Path) {
    let mut traces: Vec<Trace> = (0..2)
        .flat_map(|cpu| {
            let file = File::open(format!("{}.blktrace.{cpu}", capture.display())).unwrap();
            Reader::new(file).unwrap()
        })
        .collect();
    traces.sort_by_key(|trace| trace.time_ns);
    let first = traces.iter().find(|trace| trace.action().is_some());
    let start_ns = first.unwrap().time_ns;
    let mut writer = Writer::new(File::create(to).unwrap());
    for trace in &mut traces {
        // Notifications keep the machine's own time.
        if trace.action().is_some() {
            trace.time_ns -= start_ns;
        }
        writer.write(trace).unwrap();
    }
}

#[test]
fn a_base_name_and_a_dump_say_the_same_as_btt() {
    let folder = tempfile::tempdir().unwrap();
    let base = capture("ext4-mail-none-scsi");
    let whole = prints(&["analyze", text(&base), "--format", "btt"]);
    let theirs = fs::read_to_string(base.with_file_name("btt.txt")).unwrap();
    let ours: Vec<&str> = whole.lines().collect();
    let differing = theirs.lines().filter(|line| !ours.contains(line));
    // The median of the seeks at D, of the device and overall: docs/btt.md.
    assert_eq!(differing.count(), 2);
    let file = folder.path().join("dump.bin");
    dump(&base, &file);
    assert_eq!(prints(&["analyze", text(&file), "--format", "btt"]), whole);
}

#[test]
fn one_file_is_one_processor() {
    let file = capture("ext3-seqw-mq-ide").with_file_name("gt.blktrace.1");
    let output = nestrace(&["analyze", text(&file), "--format", "btt"]);
    assert!(output.status.success());
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert!(stderr.contains("one processor of 2"), "{stderr}");
}

#[test]
fn json_of_a_capture_has_the_devices() {
    let base = capture("ext4-mail-none-scsi");
    let json = prints(&["analyze", text(&base), "--format", "json"]);
    let analysis: serde_json::Value = serde_json::from_str(&json).unwrap();
    let device = &analysis["devices"][0];
    assert_eq!(device["dev"], "8:0");
    assert_eq!(device["counts"]["queued"], 3771);
    assert_eq!(device["latency_ns"]["q2c"]["n"], 3771);
    let path = &device["stats"]["path_ns"];
    let parts = ["q2g", "g2i", "g2d", "i2d", "q2m", "m2d", "q2d", "d2c"];
    let sum: u64 = parts.iter().map(|part| path[part].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), path["q2c"].as_u64());
    assert_eq!(device["latency_ns"]["q2c"]["sum"], path["q2c"]);
    let processes = device["stats"]["processes"].as_array().unwrap();
    assert!(processes.iter().any(|process| process["name"] == "jbd2"));
    let writes = &device["stats"]["histograms"]["all"]["write"];
    let counts = writes["length"].as_array().unwrap().iter();
    let counted: u64 = counts.map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(Some(counted), writes["queued"].as_u64());
    assert_eq!(analysis["trace"]["sources"][0]["backend"], "blktrace");
}

#[test]
fn what_is_exported_reads_as_what_was_recorded() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["ext3-seqw-mq-ide", "ext4-mail-none-scsi"] {
        let base = capture(name);
        let bundle = folder.path().join(format!("{name}.nest"));
        let out = folder.path().join(name);
        prints(&["import", "blktrace", text(&base), "-o", text(&bundle)]);
        let export = ["export", "--format", "blktrace", text(&bundle)];
        let to = ["--guest", "guest", "-o", text(&out)];
        prints(&[export, to].concat());
        let btt = |input: &Path| prints(&["analyze", text(input), "--format", "btt"]);
        assert_eq!(btt(&out), btt(&base), "{name}");
        assert_eq!(btt(&bundle), btt(&base), "{name}");
        // Nothing is overwritten unless told.
        let (code, stderr) = fails(&[export, to].concat());
        assert_eq!(code, Some(2), "{stderr}");
        let redacted = prints(&[&export[..], &to, &["--force", "--redact"]].concat());
        assert!(redacted.is_empty());
        assert!(!btt(&out).contains("jbd2") && btt(&base).contains("jbd2"));
    }
}

#[test]
fn every_io_and_every_second() {
    let folder = tempfile::tempdir().unwrap();
    let (ios, iostat) = (folder.path().join("ios"), folder.path().join("iostat"));
    let base = capture("ext4-mail-none-scsi");
    let files = ["--per-io", text(&ios), "--iostat", text(&iostat)];
    prints(&[&["analyze", text(&base), "--format", "btt"][..], &files].concat());
    let ios = fs::read_to_string(ios).unwrap();
    assert_eq!(
        ios.lines().filter(|line| line.contains(" C ")).count(),
        3771
    );
    assert_eq!(
        ios.lines().filter(|line| line.starts_with("---")).count(),
        2247
    );
    let iostat = fs::read_to_string(iostat).unwrap();
    let rows: Vec<&str> = iostat
        .lines()
        .filter(|line| line.starts_with('('))
        .collect();
    assert_eq!(rows.len(), 4, "three seconds and the total");
    assert!(rows[3].ends_with("TOTAL"));
}

#[test]
fn what_cannot_be_read_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    for path in [
        folder.path().join("missing"),
        file("empty.blktrace.0", b""),
        file(
            "text",
            b"nothing of the kind, and rather long for that, so that a record would fit",
        ),
        file(
            "newer",
            b"\x09tae56789012345678901234567890123456789012345678901234567890",
        ),
    ] {
        for format in ["text", "btt"] {
            let (code, stderr) = fails(&["analyze", text(&path), "--format", format]);
            assert_eq!(code, Some(3), "{}: {stderr}", path.display());
            assert!(stderr.starts_with("nestrace: "), "{stderr}");
        }
    }
    let base = capture("ext3-seqw-mq-ide");
    let (code, stderr) = fails(&["analyze", text(&base), "--device", "9:9"]);
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("8:0"), "{stderr}");
}

//! blktrace in and out, as a user runs it: `analyze` of captures, `--format btt`, `export`.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Output},
};

use nestrace_blktrace::{Reader, Trace, Writer};
use nestrace_trace::{Event, Kind, Manifest, Source, StreamWriter, manifest::State};

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

/// A bundle of a host with these events.
fn bundle(folder: &Path, manifest: &Manifest, events: &[Event]) -> PathBuf {
    let path = folder.join("host.nest");
    fs::create_dir(&path).unwrap();
    let file = |name: &str| File::create(path.join(name)).unwrap();
    let mut writer = StreamWriter::new(file("host.arrows"), file("host.arrows.idx")).unwrap();
    for event in events {
        writer.push(event).unwrap();
    }
    writer.finish().unwrap();
    fs::write(path.join("manifest.json"), manifest.to_json()).unwrap();
    path
}

/// The steps of a read on loop0; the last one may be missing.
fn steps(kinds: &[Kind]) -> Vec<Event> {
    let mut steps = Vec::new();
    for (kind, n) in kinds.iter().zip(1..) {
        let of_request = matches!(kind, Kind::Issue | Kind::Complete | Kind::RequestDone);
        steps.push(Event {
            ts_ns: n * 1000,
            kind: *kind as u8,
            dev: 7 << 20,
            object: if of_request { 0x80 } else { 0x1000 },
            related: if *kind == Kind::Issue { 0x1000 } else { 0 },
            bytes: 4096,
            ..Event::default()
        });
    }
    steps
}

/// Events of the block layer that were dropped so far.
fn loss(total: u64) -> Event {
    Event {
        ts_ns: 900,
        kind: Kind::Loss as u8,
        sub: Source::Block as u8,
        object: total,
        ..Event::default()
    }
}

fn closed() -> Manifest {
    let mut manifest = Manifest::default();
    manifest.state = State::Complete;
    manifest
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> = entries
        .map(|entry| entry.file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
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
        // Nothing is overwritten without --force.
        let (code, stderr) = fails(&[export, to].concat());
        assert_eq!(code, Some(2), "{stderr}");
        let redacted = prints(&[&export[..], &to, &["--force", "--redact"]].concat());
        assert!(redacted.is_empty());
        assert!(!btt(&out).contains("jbd2") && btt(&base).contains("jbd2"));
    }
}

#[test]
fn what_an_export_of_more_processors_left_is_no_part_of_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let base = capture("ext3-seqw-mq-ide");
    let input = folder.path().join("gt.nest");
    prints(&["import", "blktrace", text(&base), "-o", text(&input)]);
    let outs = tempfile::tempdir().unwrap();
    let out = outs.path().join("out");
    let words = ["export", "--format", "blktrace", text(&input), "-o"];
    let words = [&words[..], &[text(&out), "--guest", "guest"]].concat();
    for cpu in [2, 7, 12] {
        let file = base.with_file_name("gt.blktrace.0");
        fs::copy(file, format!("{}.blktrace.{cpu}", out.display())).unwrap();
    }
    fs::write(outs.path().join("out.blktrace.txt"), "mine").unwrap();
    let before = names(outs.path());
    // None of them would be replaced, and yet they are in the way.
    let (code, stderr) = fails(&words);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(stderr.contains("out.blktrace.2 exists"), "{stderr}");
    assert_eq!(names(outs.path()), before);
    let (code, stderr) = fails(&[&words[..], &["--force"]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stderr.contains("removed 3 files"), "{stderr}");
    let left = ["out.blktrace.0", "out.blktrace.1", "out.blktrace.txt"];
    assert_eq!(names(outs.path()), left);
    let btt = |input: &Path| prints(&["analyze", text(input), "--format", "btt"]);
    assert_eq!(btt(&out), btt(&base));
}

#[test]
fn a_processor_that_no_machine_has_makes_no_file() {
    let mut events = steps(&[Kind::Queue, Kind::GetRequest, Kind::Issue, Kind::Complete]);
    for (cpu, expected) in [(40, Some(0)), (u16::MAX, Some(3))] {
        events[2].cpu = cpu;
        let folder = tempfile::tempdir().unwrap();
        let input = bundle(folder.path(), &closed(), &events);
        let out = folder.path().join("out");
        let words = ["export", "--format", "blktrace", text(&input), "-o"];
        let (code, stderr) = fails(&[&words[..], &[text(&out)]].concat());
        assert_eq!(code, expected, "{stderr}");
        // Those before it are there, with nothing in them.
        let made = names(folder.path()).len() - 1;
        assert_eq!(made, if code == Some(0) { 41 } else { 0 });
        assert_eq!(code == Some(3), stderr.contains("processor 65535"));
    }
}

#[test]
fn a_light_recording_leaves_no_file() {
    let folder = tempfile::tempdir().unwrap();
    let events = [&[loss(3)][..], &steps(&[Kind::RequestDone])].concat();
    let input = bundle(folder.path(), &closed(), &events);
    let out = folder.path().join("out");
    let words = ["export", "--format", "blktrace", text(&input), "-o"];
    let (code, stderr) = fails(&[&words[..], &[text(&out)]].concat());
    assert_eq!(code, Some(3), "{stderr}");
    assert!(stderr.contains("--detail full"), "{stderr}");
    assert_eq!(names(folder.path()), ["host.nest"]);
}

/// The same in every format: losses that the stream counts after a crash, and a missing end that no counter holds.
#[test]
fn what_is_missing_is_an_exit_code_in_every_format() {
    let io = [Kind::Queue, Kind::GetRequest, Kind::Issue, Kind::Complete];
    let whole = steps(&io);
    let lossy = [&[loss(3)][..], &whole].concat();
    // The address of a request that has no end serves the next one.
    let mut later = whole.clone();
    later.iter_mut().for_each(|event| event.ts_ns += 10_000);
    let no_end = [&whole[..3], &later].concat();
    let killed = Manifest::default();
    for (manifest, events, expected) in [
        (closed(), &whole, 0),
        (closed(), &lossy, 5),
        (killed, &lossy, 5),
        (closed(), &no_end, 5),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let input = bundle(folder.path(), &manifest, events);
        for format in ["text", "json", "btt"] {
            let words = ["analyze", "--format", format, text(&input)];
            assert_eq!(fails(&words).0, Some(0), "{format}");
            let (code, stderr) = fails(&[&words[..], &["--strict"]].concat());
            assert_eq!(code, Some(expected), "{format}: {stderr}");
            let is_told = stderr.contains("3 events lost") || stderr.contains("1 request has");
            assert_eq!(is_told, format == "btt" && expected == 5, "{stderr}");
        }
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
    for format in ["text", "btt"] {
        let words = [
            "analyze",
            text(&base),
            "--device",
            "9:9",
            "--format",
            format,
        ];
        let (code, stderr) = fails(&words);
        assert_eq!(code, Some(3), "{stderr}");
        assert!(
            stderr.contains("no device 9:9") && stderr.contains("8:0"),
            "{stderr}"
        );
    }
}

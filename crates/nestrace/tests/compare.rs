//! `nestrace compare`, as a user runs it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nestrace_trace::manifest::{Manifest, State};
use nestrace_trace::{Event, Kind, StreamWriter};

fn capture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../fixtures/blktrace/{name}/gt"))
}

fn mail() -> PathBuf {
    capture("ext4-mail-none-scsi")
}

fn sequential() -> PathBuf {
    capture("ext3-seqw-mq-ide")
}

fn compare(a: &Path, b: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .arg("compare")
        .args([a, b])
        .args(arguments)
        .output()
        .expect("start nestrace")
}

fn object(output: &Output) -> serde_json::Value {
    assert_eq!(
        output.status.code(),
        Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// Every value of a comparison.
fn metrics(comparison: &serde_json::Value) -> Vec<serde_json::Value> {
    let pairs = ["disks", "devices"].map(|kind| comparison[kind].as_array().expect("pairs"));
    let metrics = pairs
        .into_iter()
        .flatten()
        .flat_map(|pair| pair["metrics"].as_array().expect("metrics"));
    metrics.cloned().collect()
}

/// A recording of a device that takes `device_ns` and up to as much again for each of 2,000 writes.
fn bundle(folder: &Path, name: &str, device_ns: u64) -> PathBuf {
    let bundle = folder.join(name);
    fs::create_dir(&bundle).expect("a folder");
    let create = |name: &str| File::create(bundle.join(name)).expect("a file");
    let (stream, index) = (create("host.arrows"), create("host.arrows.idx"));
    let mut writer = StreamWriter::new(stream, index).expect("a stream");
    let mut random = device_ns;
    for i in 0..2_000u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let took_ns = device_ns + (random >> 33) % device_ns;
        let (bio, request) = (0x1000 + i * 16, 0x8000_0000 + i * 16);
        for (kind, after_ns, object, related) in [
            (Kind::Queue, 0, bio, 0),
            (Kind::GetRequest, 1_000, bio, 0),
            (Kind::Issue, 5_000, request, bio),
            (Kind::Complete, 5_000 + took_ns, request, 0),
        ] {
            let event = Event {
                ts_ns: 1_000_000_000 + i * 1_000_000 + after_ns,
                kind: kind as u8,
                dev: 7 << 20,
                object,
                related,
                offset: i * 4096,
                bytes: 4096,
                flags: 1,
                ..Event::default()
            };
            writer.push(&event).expect("an event");
        }
    }
    writer.finish().expect("the end");
    let mut manifest = Manifest::default();
    manifest.state = State::Complete;
    manifest.detail = "full".into();

    let json = serde_json::to_vec(&manifest).expect("JSON");
    fs::write(bundle.join("manifest.json"), json).expect("the manifest");
    bundle
}

#[test]
fn a_slower_device_is_found_in_bundles() {
    let folder = tempfile::tempdir().expect("a folder");
    let fast = bundle(folder.path(), "fast.nest", 100_000);
    let slow = bundle(folder.path(), "slow.nest", 200_000);
    let comparison = object(&compare(&fast, &slow, &["--format", "json"]));
    let find = |name: &str| {
        let metrics = metrics(&comparison).into_iter();
        let mut own = metrics.filter(|it| it["name"] == name && it["operation"] == "write");
        own.next().unwrap_or_else(|| panic!("no {name}"))
    };
    for name in ["q2c_mean", "q2c_p50", "d2c_mean"] {
        let metric = find(name);
        assert_eq!(metric["verdict"], "higher", "{metric}");
        assert!(
            metric["interval"]["difference"][0].as_f64() > Some(0.0),
            "{metric}"
        );
    }
    for name in ["per_second", "bytes_per_second", "q2d_mean"] {
        assert_eq!(find(name)["verdict"], "no_difference", "{name}");
    }
    let explanation = &comparison["devices"][0]["explanations"][0];
    assert_eq!(explanation["largest"], "d2c_mean");
    let text = compare(&fast, &slow, &[]);
    let text = String::from_utf8(text.stdout).expect("text");
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("writes take") && said.contains("of the difference at the device"),
        "{text}"
    );
}

#[test]
fn captures_are_compared() {
    let output = compare(&mail(), &sequential(), &["--format", "json"]);
    let comparison = object(&output);
    assert_eq!(comparison["schema"], "nestrace-comparison/1");
    let device = &comparison["devices"][0];
    assert_eq!(device["matched"], "name");
    let metrics = metrics(&comparison);
    let size = metrics
        .iter()
        .find(|it| it["name"] == "request_bytes")
        .expect("the size of requests");
    assert!(
        size["b"].as_f64() > size["a"].as_f64(),
        "sequential writes are larger: {size}"
    );
    let output = compare(&mail(), &sequential(), &[]);
    let text = String::from_utf8(output.stdout).expect("text");
    assert!(
        text.starts_with("A  ") && text.contains("In short"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
}

#[test]
fn a_capture_is_like_itself() {
    let comparison = object(&compare(&mail(), &mail(), &["--format", "json"]));
    let metrics = metrics(&comparison);
    assert!(metrics.len() > 10);
    for metric in metrics {
        assert_eq!(metric["a"], metric["b"], "{metric}");
        assert!(
            !["lower", "higher"].contains(&metric["verdict"].as_str().expect("a verdict")),
            "{metric}"
        );
    }
}

#[test]
fn an_error_names_the_input() {
    let missing = Path::new("/nonexistent/b.nest");
    for (a, b, which) in [(mail(), missing.into(), "B"), (missing.into(), mail(), "A")] {
        let output = compare(&a, &b, &[]);
        assert_eq!(output.status.code(), Some(3));
        assert!(output.stdout.is_empty());
        let stderr = String::from_utf8_lossy(&output.stderr);
        let error = stderr.lines().next().unwrap_or_default();
        assert!(
            error.starts_with(&format!("nestrace: {which}: /nonexistent/b.nest")),
            "{error}"
        );
    }
    assert_eq!(
        compare(&mail(), &mail(), &["--format", "btt"])
            .status
            .code(),
        Some(2)
    );
}

#[test]
fn a_report_is_written_and_other_pages_are_not_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("compare.html");
    let report = ["--report", page.to_str().expect("a path")];
    for _ in 0..2 {
        assert_eq!(
            compare(&mail(), &sequential(), &report).status.code(),
            Some(0)
        );
        let html = fs::read_to_string(&page).expect("the report");
        assert!(
            html.contains("How long do writes take in A and in B?") && html.ends_with("</html>\n")
        );
    }
    fs::write(&page, "<!doctype html><title>mine</title>").expect("a page");
    assert_eq!(
        compare(&mail(), &sequential(), &report).status.code(),
        Some(2)
    );
    let mut forced = report.to_vec();
    forced.push("--force");
    assert_eq!(
        compare(&mail(), &sequential(), &forced).status.code(),
        Some(0)
    );
}

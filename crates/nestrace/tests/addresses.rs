//! Addresses of kernels and processes: hidden, and an analysis says the same.

mod program;

use std::{
    fs::{self, File},
    io::BufReader,
    path::{Path, PathBuf},
    process::Command,
};

use nestrace_trace::{
    Batch, Event, Kind, Manifest, StreamReader, StreamWriter,
    address::{Column, Shift, columns},
    bundle::{HOST_STREAM, index_of},
    manifest::Addresses,
    redact,
};
use program::{RECORDING, code_and_messages, text};

const FIXTURES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");
/// No kernel has addresses below: x86-64 with five levels of page tables.
const LOWEST_KERNEL: u64 = 0xff00_0000_0000_0000;
/// No process has addresses above.
const HIGHEST_PROCESS: u64 = 1 << 57;

fn recordings() -> Vec<PathBuf> {
    let in_folder = |folder: &str| {
        let entries = fs::read_dir(Path::new(FIXTURES).join(folder)).expect("fixtures");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        paths.filter(|path| path.join("manifest.json").exists())
    };
    in_folder("findings").chain(in_folder("guests")).collect()
}

fn streams_of(bundle: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(bundle).expect("the bundle");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    let is_stream = |path: &PathBuf| path.extension().is_some_and(|it| it == "arrows");
    paths.filter(is_stream).collect()
}

fn each_batch(stream: &Path, mut take: impl FnMut(Vec<Event>)) {
    let index = PathBuf::from(index_of(text(stream)));
    let index = File::open(index).ok().map(BufReader::new);
    let mut reader = StreamReader::new(File::open(stream).expect("it"), index).expect("a stream");
    let mut batch = Batch::default();
    while reader.read_into(&mut batch) {
        take(batch.events().collect());
    }
}

/// How many addresses of kernels, and of processes, a bundle has.
fn addresses(bundle: &Path) -> (u64, u64) {
    let (mut of_kernels, mut of_processes) = (0, 0);
    for stream in streams_of(bundle) {
        each_batch(&stream, |events| {
            for event in &events {
                let kind = event.kind();
                for column in kind.map_or(&Column::ALL[..], columns) {
                    let value = column.of(event);
                    let is_error = value > u64::MAX - 4096;
                    of_kernels += u64::from(value >= LOWEST_KERNEL && !is_error);
                    of_processes += u64::from((0x1_0000..HIGHEST_PROCESS).contains(&value));
                }
            }
        });
    }
    (of_kernels, of_processes)
}

/// As a recorder would have written it.
fn shift(bundle: &Path, out: &Path, secret: [u8; 16]) {
    fs::create_dir(out).expect("a folder");
    let shift = Shift::of_random(secret);
    for entry in fs::read_dir(bundle).expect("the bundle") {
        let path = entry.expect("an entry").path();
        let copy = out.join(path.file_name().expect("a name"));
        if path
            .extension()
            .is_none_or(|it| it != "arrows" && it != "idx")
        {
            fs::copy(&path, copy).expect("a copy");
        }
    }
    for stream in streams_of(bundle) {
        let copy = out.join(stream.file_name().expect("a name"));
        let index = File::create(index_of(text(&copy))).expect("an index");
        let file = File::create(copy).expect("a stream");
        let mut writer = StreamWriter::new(file, index).expect("a stream");
        each_batch(&stream, |events| {
            for mut event in events {
                shift.event(&mut event);
                writer.push(&event).expect("written");
            }
            writer.flush_batch().expect("written");
        });
        writer.finish().expect("written");
    }
    let file = out.join("manifest.json");
    let (mut manifest, _) = Manifest::from_slice(&fs::read(&file).expect("it")).expect("one");
    redact::addresses(&mut manifest, &shift);
    fs::write(file, manifest.to_json()).expect("written");
}

fn analysis(folder: &Path, more: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(["analyze", "it.nest", "--format", "json"])
        .args(more)
        .current_dir(folder)
        .output()
        .expect("nestrace starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn an_analysis_of_shifted_addresses_says_the_same() {
    let mut linked = 0;
    for (number, bundle) in (1u8..).zip(recordings()) {
        let folder = tempfile::tempdir().expect("a folder");
        let (before, after) = (folder.path().join("before"), folder.path().join("after"));
        for place in [&before, &after] {
            fs::create_dir(place).expect("a folder");
        }
        std::os::unix::fs::symlink(&bundle, before.join("it.nest")).expect("a link");
        // Other secrets for each; the kernel's and the processes' differ.
        let secret: [u8; 16] = std::array::from_fn(|at| number.wrapping_mul(31 + at as u8 * 7));
        shift(&bundle, &after.join("it.nest"), secret);
        assert_eq!(addresses(&after.join("it.nest")), (0, 0), "{bundle:?}");
        for more in [&[][..], &["--slowest", "5"]] {
            let (one, other) = (analysis(&before, more), analysis(&after, more));
            assert_eq!(one, other, "{}", bundle.display());
            let one: serde_json::Value = serde_json::from_str(&one).expect("JSON");
            for chains in one["chains"].as_array().expect("chains") {
                linked += chains["linked"].as_u64().expect("a number");
            }
        }
    }
    assert!(
        linked > 10_000,
        "nothing was linked that a shift could break: {linked}"
    );
}

#[test]
fn the_fixtures_have_addresses_that_could_be_given_away() {
    let (of_kernels, of_processes) = addresses(Path::new(RECORDING));
    assert!(
        of_kernels > 1_000 && of_processes > 1_000,
        "{of_kernels} {of_processes}"
    );
}

#[test]
fn a_redacted_recording_has_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("out.nest");
    let words = ["repair", "--redact", RECORDING, "-o", text(&out)];
    let (code, stderr) = code_and_messages(&words);
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(addresses(&out), (0, 0));
    let bytes = fs::read(out.join("manifest.json")).expect("the manifest");
    let (manifest, _) = Manifest::from_slice(&bytes).expect("a manifest");
    let of_streams = manifest.streams.iter().map(|stream| stream.addresses);
    assert!(
        of_streams.clone().count() == 2 && of_streams.clone().all(|it| it == Addresses::Shifted)
    );
    // The BlockBackends are those of the events.
    let backends = manifest
        .topology
        .guests
        .iter()
        .flat_map(|guest| &guest.backends);
    let backends: Vec<u64> = backends.map(|backend| backend.address).collect();
    assert!(!backends.is_empty());
    let mut n_calls = 0;
    each_batch(&out.join(HOST_STREAM), |events| {
        let calls = events
            .iter()
            .filter(|it| it.kind().is_some_and(Kind::is_aio_call));
        for call in calls {
            n_calls += 1;
            assert!(backends.contains(&call.related), "{:#x}", call.related);
        }
    });
    assert!(n_calls > 0);
    // Each time others.
    let again = folder.path().join("again.nest");
    let words = ["repair", "--redact", RECORDING, "-o", text(&again)];
    assert_eq!(code_and_messages(&words).0, Some(0));
    let stream = |bundle: &Path| fs::read(bundle.join(HOST_STREAM)).expect("the stream");
    assert_ne!(stream(&out), stream(&again));
}

//! An old guest's capture joins a host's recording of the same time: same clock, same chains. Recordings of live guests
//! with BPF are the yardstick: what their guests recorded becomes a capture of blktrace, which says less.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use nestrace_trace::Manifest;
use serde_json::Value;

/// Reads one by one, many at once, flushes and journals, bios in pieces, a SCSI-like bus.
const RECORDINGS: [&str; 7] = [
    "lone-reads",
    "native-many",
    "ext4-on-ext4",
    "btrfs",
    "jfs-fsync",
    "in-pieces",
    "ide",
];
/// Writes of a journal to the same blocks, several of them in flight at once.
const EQUAL_BIOS: &str = "metadata-and-data";

/// What the clock only bounds: the border between guest and host.
const BORDER: [&str; 2] = ["virt_submit", "virt_complete"];

fn nestrace(words: &[&str]) -> Output {
    let output = Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .args(words)
        .output()
        .expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {said}");
    output
}

/// The recording, and the same with a capture of its guest in place of the agent's stream.
struct Both {
    folder: tempfile::TempDir,
    recorded: PathBuf,
    imported: PathBuf,
}

impl Both {
    fn of(name: &str) -> Self {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/findings");
        let recorded = fixtures.join(format!("{name}.nest"));
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let (capture, host, imported) = (at("gt"), at("host.nest"), at("both.nest"));
        let words = ["export", "--format", "blktrace", "--guest", "vm1"];
        nestrace(&[&words[..], &[text(&recorded), "-o", text(&capture)]].concat());
        without_guests(&recorded, &host);
        let words = ["import", "blktrace", text(&capture), "-o", text(&imported)];
        nestrace(&[&words[..], &["--guest-of", text(&host)]].concat());
        Self {
            folder,
            recorded,
            imported,
        }
    }

    /// What `of` says of each.
    fn each<T>(&self, of: impl Fn(&Self, &Path) -> T) -> [T; 2] {
        [&self.recorded, &self.imported].map(|bundle| of(self, bundle))
    }

    fn analysis(&self, bundle: &Path) -> Value {
        let output = nestrace(&["analyze", "--format", "json", text(bundle)]);
        serde_json::from_slice(&output.stdout).expect("JSON")
    }

    /// Each bio by disk and number, with its columns but for those that the clock or the name of its device is in.
    fn bios(&self, bundle: &Path) -> BTreeMap<(String, String), BTreeMap<String, String>> {
        let table = self.folder.path().join("table");
        let words = ["export", "--format", "csv", "--force", text(bundle)];
        nestrace(&[&words[..], &["-o", text(&table)]].concat());
        let table = fs::read_to_string(table.with_extension("chains.csv")).expect("a table");
        let mut rows = table.lines().map(|line| line.split(',').map(str::to_owned));
        let columns: Vec<String> = rows.next().expect("a head").collect();
        let row = |cells| {
            let mut row: BTreeMap<String, String> = columns.iter().cloned().zip(cells).collect();
            for column in ["guest_device", "at_ns", "clock_bound_ns"] {
                row.remove(column);
            }
            let border = BORDER.map(|name| {
                let ns = row.remove(&format!("{name}_ns")).unwrap_or_default();
                ns.parse::<u64>().unwrap_or(0)
            });
            row.insert("border".to_owned(), border.iter().sum::<u64>().to_string());
            let key = (row["disk"].clone(), row["io"].clone());
            (key, row)
        };
        rows.map(row).collect()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// A recording of the host alone.
fn without_guests(recorded: &Path, host: &Path) {
    fs::create_dir(host).expect("a folder");
    for entry in fs::read_dir(recorded).expect("the recording") {
        let entry = entry.expect("a file");
        let name = entry.file_name();
        if !name.to_string_lossy().starts_with("guest-") {
            fs::copy(entry.path(), host.join(&name)).expect("copied");
        }
    }
    let path = host.join("manifest.json");
    let bytes = fs::read(&path).expect("a manifest");
    let (mut manifest, _) = Manifest::from_slice(&bytes).expect("a manifest");
    manifest.guest_sides.clear();
    manifest.streams.retain(|stream| stream.guest.is_none());
    manifest.losses.retain(|loss| loss.guest.is_none());
    fs::write(&path, manifest.to_json()).expect("written");
}

/// The only disk with I/O.
fn chains(analysis: &Value) -> &Value {
    let all = analysis["chains"].as_array().expect("chains");
    let mut busy = all.iter().filter(|it| it["guest_bios"].as_u64() > Some(0));
    let chains = busy.next().expect("a disk with I/O");
    assert!(busy.next().is_none(), "{analysis}");
    chains
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value}"))
}

/// The clock's exchanges are the same; how far it may be off, and what it said of each request, need not be: without an
/// agent there are no round trips, so the clock is found later, from more exchanges, and the guest's corrections of its
/// clock are not known.
fn check_clock(recorded: &Value, imported: &Value) {
    for key in ["method", "pairs", "rejected", "violations", "pieces"] {
        assert_eq!(imported[key], recorded[key], "{key}");
    }
    let bound_ns = number(&recorded["error_bound_ns"]["p50"]);
    let (one, other) = (
        number(&recorded["offset_ns"]),
        number(&imported["offset_ns"]),
    );
    assert!((one - other).abs() <= 2.0 * bound_ns, "{one} {other}");
    assert_eq!(
        imported["error_bound_ns"]["p50"],
        recorded["error_bound_ns"]["p50"]
    );
}

/// Each segment is the same; the two between guest and host are as a sum, and each within the clock's bound.
fn check_segments(recorded: &Value, imported: &Value, bound_ns: f64) {
    let means = |segments: &Value| {
        let segments = segments.as_array().expect("segments").iter();
        let named = segments.map(|it| (it["name"].as_str().unwrap_or("").to_owned(), it.clone()));
        named.collect::<BTreeMap<String, Value>>()
    };
    let (mut recorded, mut imported) = (means(recorded), means(imported));
    let mut sums = [0.0; 2];
    for name in BORDER {
        let found = [&mut recorded, &mut imported].map(|it| it.remove(name).expect(name));
        let [one, other] = found.map(|segment| number(&segment["mean_ns"]));
        assert!((one - other).abs() <= bound_ns, "{name}: {one} {other}");
        sums = [sums[0] + one, sums[1] + other];
    }
    assert!((sums[0] - sums[1]).abs() < 0.01, "{sums:?}");
    assert_eq!(imported, recorded);
}

#[test]
fn a_capture_has_the_chains_that_its_guest_recorded() {
    for name in RECORDINGS {
        let both = Both::of(name);
        let [recorded, imported] = both.each(Both::analysis);
        let clocks = [&recorded, &imported].map(|it| &it["clocks"][0]);
        check_clock(clocks[0], clocks[1]);
        let (one, other) = (chains(&recorded), chains(&imported));
        for key in [
            "disk",
            "guest_bios",
            "guest_requests",
            "linked",
            "unlinked",
            "wrong_order",
            "q2c_mean_ns",
            "residual_share",
            "deferred",
        ] {
            assert_eq!(other[key], one[key], "{name}: {key}");
        }
        assert_eq!(one["linked"], one["guest_bios"], "{name}");
        let bounds = clocks.map(|clock| number(&clock["error_bound_ns"]["max"]));
        let bound_ns = bounds[0].max(bounds[1]);
        check_segments(&one["segments"], &other["segments"], bound_ns);
        let [recorded, imported] = both.each(Both::bios);
        assert_eq!(imported, recorded, "{name}");
    }
}

/// Which of two equal bios in flight has which request is nothing that blktrace says: none of these is linked, and all others
/// are, as they were.
#[test]
fn of_equal_bios_a_capture_links_none_to_anothers_request() {
    let both = Both::of(EQUAL_BIOS);
    let [recorded, imported] = both.each(Both::analysis);
    let (one, other) = (chains(&recorded), chains(&imported));
    for key in ["guest_bios", "guest_requests", "wrong_order"] {
        assert_eq!(other[key], one[key], "{key}");
    }
    let unlinked = other["unlinked"].as_object().expect("reasons");
    let reasons: Vec<&str> = unlinked.keys().map(String::as_str).collect();
    assert_eq!(reasons, ["ambiguous"], "{unlinked:?}");
    let n_ambiguous = unlinked["ambiguous"].as_u64().unwrap_or(0);
    assert!((2..=40).contains(&n_ambiguous), "{n_ambiguous}");
    let [recorded, imported] = both.each(Both::bios);
    let linked = imported
        .iter()
        .filter(|(_, bio)| bio["unlinked"].is_empty());
    let n_linked = linked.clone().count() as u64;
    assert_eq!(Some(n_linked + n_ambiguous), one["guest_bios"].as_u64());
    for (bio, told) in linked {
        assert_eq!(Some(told), recorded.get(bio), "{bio:?}");
    }
}

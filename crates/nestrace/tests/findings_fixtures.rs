//! Each rule of the findings on recordings of live guests (`cargo xtask fixtures`): it fires on its positive
//! and stays silent on its own control and on every other rule's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use serde_json::Value;

/// Of a bundle, and of all of them.
const LARGEST: u64 = 1 << 20;
const LARGEST_IN_ALL: u64 = 24 << 20;
/// It fires where no other rule does, so on other rules' controls it is right.
const NOTHING: &str = "nothing-to-gain";

/// Recordings that were made once: two guests are translated, one inside the other, which takes an hour.
const MADE_ONCE: &[&str] = &[
    "crypt",
    "crypt-inline",
    "io-max",
    "mirror-in-sync",
    "raid5-blocks",
    "raid5-reads",
    "resync",
    "thin-new-blocks",
    "thin-old-blocks",
];

/// A rule and its recordings.
struct Held {
    id: String,
    positive: String,
    control: String,
}

/// What the analysis of a recording said.
#[derive(Debug, Default)]
struct Said {
    /// Rules that fired.
    findings: BTreeSet<String>,
    /// Rules that could not judge.
    unjudged: BTreeSet<String>,
}

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/findings")
}

fn index(name: &str) -> Value {
    let text = fs::read_to_string(folder().join(name)).expect("the index");
    serde_json::from_str(&text).expect("JSON")
}

fn rules() -> Vec<Held> {
    let index = index("index.json");
    let word = |rule: &Value, key: &str| rule[key].as_str().expect(key).to_owned();
    let rules = index["rules"].as_array().expect("rules").iter();
    rules
        .map(|rule| Held {
            id: word(rule, "id"),
            positive: word(rule, "positive"),
            control: word(rule, "control"),
        })
        .collect()
}

/// The recordings' analyses, once for all tests.
fn said() -> &'static BTreeMap<String, Said> {
    static SAID: OnceLock<BTreeMap<String, Said>> = OnceLock::new();
    SAID.get_or_init(|| {
        let names: BTreeSet<String> = rules()
            .into_iter()
            .flat_map(|rule| [rule.positive, rule.control])
            .collect();
        names
            .into_iter()
            .map(|name| (name.clone(), analyze(&name)))
            .collect()
    })
}

fn analyze(name: &str) -> Said {
    let analysis = analysis(name);
    let ids = |list: &str| -> BTreeSet<String> {
        let entries = analysis[list].as_array().expect(list).iter();
        entries
            .map(|it| it["id"].as_str().expect("id").to_owned())
            .collect()
    };
    Said {
        findings: ids("findings"),
        unjudged: ids("findings_unjudged"),
    }
}

fn analysis(name: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_nestrace"))
        .arg("analyze")
        .arg(folder().join(format!("{name}.nest")))
        .args(["--format", "json"])
        .output()
        .expect("start nestrace");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{name}: {stderr}");
    let analysis: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(analysis["trace"]["lost"], 0, "{name}");
    analysis
}

/// The first paragraph says what costs most without need, what to do first, and what that may save.
#[test]
fn the_answer_comes_first() {
    for (name, expected) in [
        (
            "writethrough",
            "vm1/writethrough (vdd): writes take 673 µs on average; every write waits until the device has it \
             (cache=writethrough). First: use cache=writeback; may save up to 204 µs a write.",
        ),
        (
            "threads-many",
            "vm1/threads-many (vdg): reads take 824 ms on average; 30 % of the latency is waiting for QEMU's worker \
             threads. First: use aio=native or aio=io_uring; may save up to 244 ms a read.",
        ),
        (
            "capped",
            "vm1/capped (vdi): reads take 144 ms on average; a limit in the kernel holds requests back for 94 % of their \
             time. First: raise `io.max` of QEMU's cgroup or of one above it; may save up to 119 ms a request.",
        ),
        (
            "few-tags",
            "vm1/few-tags (vdg): reads take 284 ms on average; requests wait for a free tag for 87 % of their time (loop17 \
             on the host, 4 tags). First: raise `/sys/block/loop17/queue/nr_requests` on the host, or keep fewer requests \
             in flight; may save up to 219 ms a request.",
        ),
        // A gain in the time of a program's call.
        (
            "fsync-in-place",
            "logger waits 97 % of the time of its calls in fsync of /mnt/load/table: 217 ms each (119 calls), of which \
             122 ms between guest and QEMU, 24.4 ms in the host's file system, 23.5 ms in QEMU. Of the 217 ms, 161 ms are \
             for the guest's journal with its I/O and 27.6 ms are for QEMU's syncs of the image. vm1/fsync-in-place (vde): logger's syncs of /mnt/load/table commit only times, \
             72 % of the time of all calls. First: use `fdatasync` instead of `fsync`, and O_DSYNC instead of O_SYNC \
             (`wal_sync_method=fdatasync` in PostgreSQL, `innodb_use_fdatasync=ON` in MySQL from 8.0.26); may save up to \
             161 ms a sync.",
        ),
        // A gain in bytes.
        (
            "qcow2-grows",
            "vm1/qcow2-grows (vdc): writes take 4.50 ms on average; qcow2 writes 26 % more than the data, for its own \
             tables. First: preallocate the image (`preallocation=metadata` or `falloc`); may save up to 2.00 MiB of \
             writes.",
        ),
        // No gain is known.
        (
            "overlay",
            "vm1/overlay (vdh): reads take 6.09 ms on average; 99 % of the bytes read come from 1 backing file. First: \
             flatten the image (`qemu-img rebase` or `virsh blockpull`).",
        ),
        // Nothing to change.
        (
            "large-sequential",
            "vm1/large-sequential (vdd): 250 reads took 19.9 ms on average (86 % in the host's stacked devices, 10 % between \
             guest and QEMU). No avoidable cost was found. Change nothing in the virtualization. For a faster disk, use a faster \
             device.",
        ),
    ] {
        let output = Command::new(env!("CARGO_BIN_EXE_nestrace"))
            .arg("analyze")
            .arg(folder().join(format!("{name}.nest")))
            .output()
            .expect("start nestrace");
        let text = String::from_utf8_lossy(&output.stdout);
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        let after = text.split_once("In short ").map(|(_, after)| after);
        assert!(
            after.is_some_and(|it| it.starts_with(expected)),
            "{name}: {text}"
        );
    }
}

/// A guest's disk names who queued its I/O in the guest, and the files by what can be looked up there.
#[test]
fn a_guests_disk_tells_processes_and_files() {
    let analysis = analysis("ext4-on-ext4");
    let devices = analysis["devices"].as_array().expect("devices");
    let disk = devices.iter().find(|it| it["side"] == "guest");
    let disk = disk.expect("the guest's disk");
    let users = disk["users"].as_array().expect("users");
    assert!(users.iter().any(|user| user["name"] == "fio"), "{users:?}");
    let files = disk["files"].as_array().expect("files");
    let first = files.first().expect("a file");
    let mount_point = first["mount_point"].as_str().expect("a place");
    assert!(mount_point.starts_with('/'), "{first}");
    assert!(first["inode"].as_u64() > Some(1), "{first}");
    let shares = files.iter().filter_map(|file| file["share"].as_f64());
    assert!(shares.sum::<f64>() < 1.0 + 1e-6, "{files:?}");
    for device in devices.iter().filter(|it| it["side"] == "host") {
        assert!(device["files"].is_null(), "{device}");
    }
}

/// Advice that is followed as it stands must not cost data, and what is said must fit the numbers beside it.
#[test]
fn advice_is_complete_and_words_fit_the_numbers() {
    let cases: [(&str, &str, &[&str], &[&str]); 16] = [
        (
            "ext3-blocks",
            "unmerged-small-requests",
            &[
                "/etc/fstab",
                "rootfstype=",
                "make a backup",
                "cannot be undone",
                "none was merged",
            ],
            &["only 0"],
        ),
        (
            "cached-short-runs",
            "unmerged-small-requests",
            &["600 small requests. 88 % of them", "none was merged"],
            &["only 0", "600 small requests follow"],
        ),
        (
            "ext4-on-ext4",
            "journal-on-journal",
            &["power failure", "e2fsck"],
            &[],
        ),
        (
            "btrfs",
            "direct-io-fallback",
            &["new, empty", "checksums and compression"],
            &[],
        ),
        (
            "btrfs",
            "cow-on-cow",
            &["loses checksums and compression", "snapshot"],
            &[],
        ),
        (
            "capped",
            "queue-idle",
            &["Raise the limit that holds"],
            &["Keep more requests in flight"],
        ),
        (
            "lone-sync-writes",
            "queue-idle",
            &["Keep more requests in flight"],
            &["the limit that holds"],
        ),
        (
            "capped",
            "host-throttled",
            &["requests or 3.06 MiB per second"],
            &["MiB/s per"],
        ),
        (
            "ordered-stream",
            "sync-drags-others",
            &[
                "remove `nodelalloc`",
                "data=writeback",
                "old data of deleted files",
            ],
            &["fallocate"],
        ),
        (
            "small-syncs",
            "small-syncs",
            &[
                "group commit",
                "reported as done",
                "before 1.46 cannot recover",
            ],
            &[],
        ),
        (
            "fsync-in-place",
            "sync-of-metadata",
            &["109 of 119 syncs", "backup that compares times"],
            &[],
        ),
        (
            "log-beside-others",
            "log-on-shared-journal",
            &[
                "other for /mnt/load/mail",
                "a disk of its own",
                "logger stops",
            ],
            &[],
        ),
        (
            "evicted",
            "cold-reads",
            &["72.", "more memory", "swap", "POSIX_FADV_DONTNEED"],
            &[],
        ),
        (
            "short-readahead",
            "readahead-short",
            &[
                "read_ahead_kb=16",
                "dd (/mnt/load/f)",
                "blockdev --setra",
                "Risk",
            ],
            &[],
        ),
        (
            "few-dirty",
            "dirty-throttled",
            &["1.00 MiB of dirty pages", "vm.dirty_bytes", "power failure"],
            &[],
        ),
        (
            "mmap-random",
            "mmap-faults",
            &[
                "fio (/mnt/load/f)",
                "MADV_WILLNEED",
                "MAP_POPULATE",
                "push others out of the cache",
            ],
            &[],
        ),
    ];
    for (recording, id, said, unsaid) in cases {
        let analysis = analysis(recording);
        let findings = analysis["findings"].as_array().expect("findings");
        let finding = findings.iter().find(|it| it["id"] == id).expect(id);
        let advice = finding["advice"].as_array().expect("advice").iter();
        let mut text = finding["explanation"].as_str().expect("text").to_owned();
        for advice in advice {
            text.push(' ');
            text.push_str(advice.as_str().expect("text"));
        }
        for said in said {
            assert!(text.contains(said), "{recording}, {id}: no {said}: {text}");
        }
        for unsaid in unsaid {
            assert!(
                !text.contains(unsaid),
                "{recording}, {id}: {unsaid}: {text}"
            );
        }
    }
}

/// The stream of `ordered-stream` is 350 writes of 32 KiB, which nothing writes back before the log's syncs do.
#[test]
fn a_sync_names_all_that_another_program_had_made_dirty() {
    let dragging = |recording: &str| {
        let analysis = analysis(recording);
        let findings = analysis["findings"].as_array().expect("findings").iter();
        let mut findings = findings.filter(|it| it["id"] == "sync-drags-others");
        findings.next().map(|it| it["evidence"].clone())
    };
    let evidence = dragging("ordered-stream").expect("it fires");
    assert_eq!(evidence["others_bytes"], 350 * (32 << 10));
    for (key, expected) in [
        ("program", "logger"),
        ("file", "/mnt/load/log"),
        ("other_program", "other"),
        ("other_file", "/mnt/load/stream"),
    ] {
        assert_eq!(evidence[key], expected, "{key}");
    }
    assert_eq!(dragging("writeback-stream"), None);
}

#[test]
fn every_rule_of_the_documentation_has_its_recordings() {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/findings.md");
    let page = fs::read_to_string(page).expect("docs/findings.md");
    let documented: BTreeSet<String> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once("` | "))
        .map(|(id, _)| id.to_owned())
        .collect();
    let held: BTreeSet<String> = rules().into_iter().map(|rule| rule.id).collect();
    assert_eq!(held, documented);
}

/// The analysis of second recordings, made with another seed. `cargo xtask fixtures --check` kept only these
/// results of them.
fn said_of_second() -> BTreeMap<String, Said> {
    let index = index("second.json");
    let recordings = index["recordings"].as_array().expect("recordings").iter();
    let ids = |of: &Value| -> BTreeSet<String> {
        let said = of.as_object().expect("rules");
        said.keys().cloned().collect()
    };
    recordings
        .map(|made| {
            let said = Said {
                findings: ids(&made["findings"]),
                unjudged: ids(&made["unjudged"]),
            };
            (made["name"].as_str().expect("a name").to_owned(), said)
        })
        .collect()
}

/// What is not as it should be, as rule and recording.
fn all_wrong(said: &BTreeMap<String, Said>) -> BTreeSet<(String, String)> {
    let right_there = &index("index.json")["right_there"];
    let mut wrong = BTreeSet::new();
    for Held {
        id,
        positive,
        control,
    } in rules()
    {
        // Only of second recordings, and these are named.
        if [&positive, &control]
            .into_iter()
            .any(|name| !said.contains_key(name))
        {
            continue;
        }
        if !said[&positive].findings.contains(&id) {
            wrong.insert((id.clone(), positive));
        }
        let on_control = &said[&control];
        if on_control.findings.contains(&id) || on_control.unjudged.contains(&id) {
            wrong.insert((id.clone(), control.clone()));
        }
        // What there is to gain on that rule's own control is another one's business.
        if id != NOTHING {
            let others = on_control.findings.iter().filter(|other| *other != NOTHING);
            let is_right = |other: &&String| {
                let names = right_there[other.as_str()].as_array();
                names.is_some_and(|names| names.iter().any(|name| name == control.as_str()))
            };
            let others = others.filter(|other| !is_right(other));
            wrong.extend(others.map(|other| (other.clone(), control.clone())));
        }
    }
    wrong
}

#[test]
fn a_rule_fires_on_its_positive_and_is_silent_on_every_control() {
    let wrong = all_wrong(said());
    assert!(wrong.is_empty(), "{wrong:#?} of {:#?}", said());
}

#[test]
fn second_recordings_confirm_the_limits() {
    let said = said_of_second();
    let made_first: BTreeSet<String> = rules()
        .into_iter()
        .flat_map(|rule| [rule.positive, rule.control])
        .collect();
    let missing = made_first.iter().filter(|name| !said.contains_key(*name));
    let missing: Vec<&str> = missing.map(String::as_str).collect();
    assert_eq!(missing, MADE_ONCE, "without a second recording");
    let wrong = all_wrong(&said);
    assert!(wrong.is_empty(), "{wrong:#?} of {said:#?}");
}

#[test]
fn the_recordings_are_small() {
    let mut in_all = 0;
    for name in said().keys() {
        let files = fs::read_dir(folder().join(format!("{name}.nest"))).expect("a bundle");
        let size: u64 = files
            .map(|file| file.unwrap().metadata().unwrap().len())
            .sum();
        assert!(size <= LARGEST, "{name}: {size} bytes");
        in_all += size;
    }
    assert!(in_all <= LARGEST_IN_ALL, "{in_all} bytes");
}

#[test]
fn an_image_on_nfs_ends_at_the_server_s_calls() {
    let analysis = analysis("image-on-nfs");
    let chains = &analysis["chains"][0];
    assert_eq!(
        (&chains["linked"], &chains["fraction"]),
        (&154.into(), &1.0.into())
    );
    assert_eq!(chains["folded"], serde_json::json!([]));
    assert!(chains["residual_share"].as_f64() < Some(0.0005), "{chains}");
    let image = &analysis["images"][0];
    let rpcs = ["reads", "writes"].map(|op| image["rpcs"][op].as_u64());
    assert_eq!(rpcs, [Some(72), Some(78)], "{image}");
    for op in ["read", "write"] {
        let segments = chains["by_op"][op].as_array().expect("segments");
        let remote = segments
            .iter()
            .find(|it| it["name"] == "remote")
            .expect("remote");
        let calls = &image["rpcs"]["at_server_ns"][op];
        assert_eq!(remote["n"], calls["n"], "{op}: {remote} {calls}");
        let (mine, theirs) = (remote["mean_ns"].as_f64(), calls["mean"].as_f64());
        let apart = mine.zip(theirs).map(|(mine, theirs)| (mine - theirs).abs());
        assert!(apart < Some(1.0), "{op}: {remote} {calls}");
    }
    let server = &image["servers"][0];
    assert_eq!(server["address"], "127.0.0.1", "{server}");
}

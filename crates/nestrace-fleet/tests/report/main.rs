//! `nestrace fleet report` on data sets that are whole, damaged, of several schemas, or none.

mod data_set;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use data_set::{DataSet, Recording, number, text};

fn fleet(place: &Path, more: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_nestrace-fleet"))
        .arg("report")
        .arg(place)
        .args(more)
        .output()
        .expect("nestrace-fleet starts")
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The JSON form of a report that is made.
fn report(place: &Path) -> Value {
    report_within(place, "512")
}

/// The same, in so many MiB.
fn report_within(place: &Path, memory: &str) -> Value {
    let made = fleet(place, &["--format", "json", "--memory", memory]);
    assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    serde_json::from_slice(&made.stdout).expect("JSON")
}

fn usual() -> (tempfile::TempDir, DataSet) {
    let folder = tempfile::tempdir().expect("a folder");
    let set = DataSet::new(&folder.path().join("set"));
    set.add_usual();
    (folder, set)
}

#[test]
fn equal_disks_give_counts_and_no_outlier() {
    let (_folder, set) = usual();
    let report = report(&set.place);
    assert_eq!(report["schema"], "nestrace-fleet/1");
    assert_eq!(report["recordings"], 40);
    assert_eq!(
        (&report["hosts"], &report["disks"]),
        (&20.into(), &20.into())
    );
    assert_eq!(report["findings"][0]["disks"], 20);
    assert_eq!(report["findings"][0]["share"], 1.0);
    assert_eq!(report["findings"][0]["advice"][0], "use `cache=none`");
    assert_eq!(report["compared"], 20);
    assert_eq!(report["outliers"], Value::Array(Vec::new()));
    assert_eq!(report["changes"]["compared"], 20);
    assert_eq!(report["changes"]["slower"], Value::Array(Vec::new()));
    let worst = &report["worst_disks"][0];
    assert_eq!((&worst["host"], &worst["n"]), (&"h19".into(), &400.into()));
    assert_eq!(worst["p99_ns"], 1_090_000);
}

#[test]
fn what_is_slower_than_its_peers_or_than_before_is_named() {
    let (_folder, set) = usual();
    for (host, before_ns, last_ns) in [
        ("slow", 5_000_000, 5_000_000),
        ("slower", 1_000_000, 3_000_000),
    ] {
        for (day, latency_ns) in [(2, before_ns), (9, last_ns)] {
            let host = host.to_owned();
            set.add(&Recording {
                host,
                day,
                latency_ns,
                reads: 200,
            });
        }
    }
    let report = report(&set.place);
    let outliers = report["outliers"].as_array().expect("a list");
    let hosts: Vec<&Value> = outliers.iter().map(|one| &one["host"]).collect();
    assert_eq!(hosts, ["slow", "slower"], "{outliers:?}");
    assert_eq!(outliers[0]["peers"], 22);
    assert!(outliers[0]["q"].as_f64() < Some(0.001), "{outliers:?}");
    let slower = report["changes"]["slower"].as_array().expect("a list");
    assert_eq!(slower.len(), 1, "{slower:?}");
    assert_eq!(slower[0]["host"], "slower");
    let ratio = slower[0]["ratio"].as_f64().expect("a number");
    assert!((ratio - 3.0).abs() < 1e-9, "{ratio}");
}

#[test]
fn older_and_newer_files_are_read_together() {
    let (_folder, mut set) = usual();
    // Before there was a column for advice, and the calls' tables had their names.
    set.schema = "nestrace-parquet/1";
    set.with_advice = false;
    let of = |host: &str| Recording {
        host: host.to_owned(),
        day: 3,
        latency_ns: 950_000,
        reads: 150,
    };
    set.add(&of("older"));
    // With a column that is not known yet.
    set.schema = data_set::SCHEMA;
    set.with_advice = true;
    let [disks, ..] = set.add(&of("newer"));
    let columns = vec![
        ("side", text(Some("guest"))),
        ("guest", text(Some("vm"))),
        ("device", text(Some("vda"))),
        ("layer", text(Some("block"))),
        ("op", text(Some("read"))),
        ("n", number(Some(7))),
        ("sum_ns", number(Some(7_000))),
        ("recording", text(Some("newer"))),
        ("from_the_future", text(Some("?"))),
    ];
    data_set::write(&disks, columns, data_set::SCHEMA);
    let report = report(&set.place);
    assert_eq!(report["recordings"], 42);
    assert_eq!(report["disks"], 22);
    assert_eq!(report["findings"][0]["disks"], 22);
    assert_eq!(report["n_left_out"], 0);
}

#[test]
fn damaged_files_are_named_and_left_out() {
    let (_folder, set) = usual();
    let whole = report(&set.place);
    let of = |host: &str| Recording {
        host: host.to_owned(),
        day: 4,
        latency_ns: 9_000_000,
        reads: 150,
    };
    let [cut, ..] = set.add(&of("cut"));
    let bytes = fs::read(&cut).expect("a file");
    fs::write(&cut, &bytes[..bytes.len() / 2]).expect("half a file");
    let [foreign, ..] = set.add(&of("foreign"));
    fs::write(&foreign, "no table at all").expect("a file");
    // To open it would wait for ever.
    let [pipe, ..] = set.add(&of("pipe"));
    fs::remove_file(&pipe).expect("a file");
    let made = Command::new("mkfifo").arg(&pipe).status();
    assert!(made.is_ok_and(|status| status.success()), "no FIFO");
    let damaged = report(&set.place);
    assert_eq!(damaged["n_left_out"], 3);
    let files: Vec<&str> = damaged["left_out"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|one| one["file"].as_str())
        .collect();
    assert_eq!(
        files,
        [
            "disks/host=cut/date=2026-11-05/r4.parquet",
            "disks/host=foreign/date=2026-11-05/r4.parquet",
            "disks/host=pipe/date=2026-11-05/r4.parquet",
        ]
    );
    for key in [
        "recordings",
        "hosts",
        "disks",
        "worst_disks",
        "outliers",
        "changes",
        "kinds",
    ] {
        assert_eq!(damaged[key], whole[key], "{key}");
    }
    let said = fleet(&set.place, &[]);
    assert!(
        stderr(&said).contains("note: left out: disks/host=cut/"),
        "{}",
        stderr(&said)
    );
    assert!(String::from_utf8_lossy(&said.stdout).contains("host=foreign"));
}

#[test]
fn an_eighth_of_the_memory_gives_the_same_report() {
    let (_folder, set) = usual();
    set.add_crowd(5_000);
    let report = report(&set.place);
    assert_eq!(report["disks"], 5_020);
    assert_eq!(report_within(&set.place, "64"), report);
}

/// Whatever a byte becomes, there is a report, and the file is whole in it or not at all.
#[test]
fn changed_bytes_never_end_the_program() {
    let (_folder, set) = usual();
    let [disks, ..] = set.add(&Recording {
        host: String::from("x"),
        day: 4,
        latency_ns: 900_000,
        reads: 150,
    });
    let bytes = fs::read(&disks).expect("a file");
    let mut n_left_out = 0;
    for step in 0..24 {
        let mut changed = bytes.clone();
        let place = bytes.len() * step / 24;
        changed[place] ^= 0xff;
        fs::write(&disks, &changed).expect("a file");
        let report = report(&set.place);
        let recordings = report["recordings"].as_u64();
        let left_out = report["n_left_out"].as_u64().unwrap_or(0);
        n_left_out += left_out;
        assert!(
            recordings == Some(40 + 1 - left_out) || left_out == 0,
            "byte {place}: {report}"
        );
    }
    assert!(n_left_out > 0);
}

#[test]
fn what_is_no_data_set_ends_with_3() {
    let folder = tempfile::tempdir().expect("a folder");
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("other")).expect("a folder");
    fs::write(at("file"), "x").expect("a file");
    DataSet::new(&at("empty"));
    let mut mixed = DataSet::new(&at("mixed"));
    mixed.add_usual();
    mixed.schema = "nestrace-parquet/9";
    let of = |host: &str| Recording {
        host: host.to_owned(),
        day: 1,
        latency_ns: 1_000_000,
        reads: 150,
    };
    mixed.add(&of("newer"));
    let damaged = DataSet::new(&at("damaged"));
    let [disks, ..] = damaged.add(&of("h"));
    fs::write(disks, "PAR1").expect("a file");
    for (name, expected) in [
        ("none", "open the data set"),
        ("file", "open the data set"),
        ("other", "is not a data set of nestrace"),
        ("empty", "is empty"),
        ("mixed", "mixed schemas: disks/host=newer/"),
        ("damaged", "no file of the data set"),
    ] {
        let refused = fleet(&at(name), &[]);
        let said = stderr(&refused);
        assert_eq!(refused.status.code(), Some(3), "{name}: {said}");
        assert!(
            said.starts_with("nestrace: ") && said.contains(expected),
            "{name}: {said}"
        );
        assert!(
            said.contains("\nhint: ") && refused.stdout.is_empty(),
            "{name}: {said}"
        );
    }
}

#[test]
fn the_page_replaces_pages_only() {
    let (folder, set) = usual();
    let page = folder.path().join("page.html");
    let name = page.to_str().expect("a name");
    for _ in 0..2 {
        let made = fleet(&set.place, &["--report", name]);
        assert_eq!(made.status.code(), Some(0), "{}", stderr(&made));
    }
    let text = fs::read_to_string(&page).expect("a page");
    assert!(text.starts_with("<!doctype html>") && text.contains("sync-writes"));
    fs::write(&page, "my notes").expect("a file");
    let refused = fleet(&set.place, &["--report", name]);
    assert_eq!(refused.status.code(), Some(2), "{}", stderr(&refused));
    let forced = fleet(&set.place, &["--report", name, "--force"]);
    assert_eq!(forced.status.code(), Some(0), "{}", stderr(&forced));
}

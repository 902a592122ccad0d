//! What stands beside the published figures.

use super::super::results::{Cell, CellRun, Latency, Metric, RunHeader};
use super::super::{Comparison, Results};
use super::*;

fn published(experiment: &str, cells: Vec<Cell>) -> Vec<Published> {
    let results = Results {
        header: RunHeader {
            experiment: Some(experiment.to_owned()),
            ..RunHeader::default()
        },
        cells,
        ..Results::default()
    };
    Comparison::new(&results).published
}

fn cell(workload: &str, axes: &[(&str, &str)], values: &[f64]) -> Cell {
    let words = axes.iter().map(|(axis, word)| (*axis, *word));
    let name = words.clone().map(|(_, word)| word).collect::<Vec<_>>();
    Cell {
        id: format!("{}-{workload}", name.join("-")),
        axes: words
            .map(|(axis, word)| (axis.to_owned(), word.to_owned()))
            .collect(),
        workload: workload.to_owned(),
        metric: Metric::BytesPerSecond,
        runs: CellRun::of_values(values),
        ..Cell::default()
    }
}

fn ours<'p>(all: &'p [Published], what: &str) -> Option<&'p str> {
    let one = all.iter().find(|one| one.what == what);
    one.unwrap_or_else(|| panic!("{all:#?}")).ours.as_deref()
}

#[test]
fn the_upgrade_is_held_against_what_was_before() {
    let ext3 = [("format", "raw"), ("guest_fs", "ext3"), ("host_fs", "ext4")];
    let cells = vec![
        cell("rewrite", &ext3, &[100.0, 101.0, 102.0]),
        cell("upgraded-new-rewrite", &ext3, &[150.0, 151.5, 152.0]),
        cell("upgraded-old-rewrite", &ext3, &[99.0, 101.0, 103.0]),
        cell("read", &ext3, &[100.0]),
        cell("upgraded-old-read", &ext3, &[200.0]),
    ];
    let told = published("E2", cells);
    let upgraded = |what: &str| {
        ours(
            &told,
            &format!("ext3 upgraded in place to ext3 in a {what}"),
        )
        .map(str::to_owned)
    };
    let new = upgraded("raw image, rewrite of new files").unwrap();
    assert_eq!(
        new,
        "150 % (149 % to 150 %, no overlap; equal ones do that in 1 of 10 cases)"
    );
    let old = upgraded("raw image, rewrite of old files").unwrap();
    assert!(old.ends_with(", within the spread)"), "{old}");
    let once = upgraded("raw image, read of old files").unwrap();
    assert!(once.ends_with(", too few repetitions to decide)"), "{once}");
    assert_eq!(upgraded("qcow2 image, read of new files"), None);
}

#[test]
fn the_largest_of_many_is_told_beside_what_chance_would_have() {
    let nested = |n_slower: usize| {
        let mut cells = Vec::new();
        for n in 0..12 {
            let guest = format!("fs{n}");
            let value = if n < n_slower { 50.0 } else { 100.5 };
            let base = cell(
                "w",
                &[("guest_fs", &guest), ("host_fs", "bd")],
                &[100.0, 101.0],
            );
            let mut own = cell(
                "w",
                &[("guest_fs", &guest), ("host_fs", "ext4")],
                &[value; 2],
            );
            own.baseline = Some(base.id.clone());
            cells.extend([base, own]);
        }
        let told = published("E1", cells);
        ours(&told, "largest degradation").unwrap().to_owned()
    };
    // Of twelve equal ones with two repetitions two seem slower.
    assert_eq!(
        nested(2),
        "none beyond chance: 2 of 12 are slower, and 2 would be if all were equal"
    );
    assert_eq!(
        nested(8),
        "50 %; 8 of 12 are slower (2 would be if all were equal)"
    );
    assert_eq!(
        nested(0),
        "none beyond chance: 0 of 12 are slower, and 2 would be if all were equal"
    );
}

/// Cells of guests on hosts with four values each, all beside the same values of the bare device.
fn nested(workload: &str, cells: &[(&str, &str, f64)]) -> Vec<Published> {
    let values = |middle: f64| [0.99, 1.0, 1.01, 1.02].map(|part| part * middle);
    let mut all = Vec::new();
    for (guest, host, value) in cells {
        let axes = |host| [("guest_fs", *guest), ("host_fs", host)];
        let base = cell(workload, &axes("bd"), &values(100.0));
        let mut own = cell(workload, &axes(host), &values(*value));
        own.baseline = Some(base.id.clone());
        if all.iter().all(|other: &Cell| other.id != base.id) {
            all.push(base);
        }
        all.push(own);
    }
    for cell in &mut all {
        let waits = if workload.contains("read") {
            "read"
        } else {
            "write"
        };
        for run in &mut cell.runs {
            let latency = Latency {
                n: 100,
                mean_ns: 1e6,
                ..Latency::default()
            };
            run.latency.insert(waits.to_owned(), latency);
        }
    }
    published("E1", all)
}

fn judgement(all: &[Published], what: &str) -> Option<Judgement> {
    let one = all.iter().find(|one| one.what == what);
    one.unwrap_or_else(|| panic!("{all:#?}")).judgement
}

#[test]
fn what_nesting_does_is_judged_by_how_many_it_does_it_to() {
    const READS: &str = "workloads that mostly wait for reads";
    const WRITES: &str = "workloads that mostly wait for writes and syncs";
    let with = |workload: &str, losses: &[f64]| {
        let guests = ["ext2", "ext3", "ext4", "xfs", "jfs", "btrfs"];
        let cells: Vec<(&str, &str, f64)> = guests
            .iter()
            .zip(losses)
            .map(|(guest, value)| (*guest, "ext4", *value))
            .collect();
        nested(workload, &cells)
    };
    let lost = with("w", &[30.0, 60.0, 70.0, 80.0, 100.0, 100.0]);
    assert_eq!(judgement(&lost, WRITES), Some(Judgement::Held));
    assert_eq!(
        judgement(&lost, "largest degradation"),
        Some(Judgement::Held)
    );
    assert_eq!(judgement(&lost, READS), None);
    let little = with("w", &[100.0, 100.5, 99.5, 100.0, 100.0, 100.0]);
    assert_eq!(judgement(&little, WRITES), Some(Judgement::DidNotHold));
    assert_eq!(
        judgement(&little, "largest degradation"),
        Some(Judgement::NotDecidable)
    );
    let reads = with("seqread", &[100.0, 100.5, 99.5, 120.0, 130.0, 110.0]);
    assert_eq!(judgement(&reads, READS), Some(Judgement::Held));
    assert_eq!(judgement(&reads, "sequential reads"), Some(Judgement::Held));
}

#[test]
fn a_host_file_system_suits_some_guests_and_not_others() {
    const WHAT: &str = "which host file system suits";
    let cells = [
        ("ext2", "xfs", 50.0),
        ("ext2", "ext4", 80.0),
        ("ext3", "xfs", 60.0),
        ("ext3", "ext4", 90.0),
        ("jfs", "xfs", 90.0),
        ("jfs", "ext4", 60.0),
        ("xfs", "xfs", 99.0),
        ("xfs", "ext4", 70.0),
    ];
    let told = nested("w", &cells);
    assert_eq!(judgement(&told, WHAT), Some(Judgement::Held));
    let sentence = ours(&told, WHAT).unwrap();
    assert!(
        sentence.ends_with("w: jfs, xfs run better on xfs, ext2, ext3 on ext4"),
        "{sentence}"
    );
    // All on one side: the guests do not matter.
    let same = cells.map(|(guest, host, value)| match host {
        "xfs" => (guest, host, value.min(60.0)),
        _ => (guest, host, value.max(70.0)),
    });
    assert_eq!(
        judgement(&nested("w", &same), WHAT),
        Some(Judgement::NotDecidable)
    );
}

/// Where words alone were published, no figure stands for them.
#[test]
fn what_was_published_is_told_as_it_was() {
    for (experiment, what, expected) in [
        ("E2", "ext4 to ext3 in a raw image, write", "160 %"),
        (
            "E2",
            "ext4 to ext3 in a qcow2 image, write",
            "122 % (the row of ext4 is marked 2 GB, the test has 6 GB)",
        ),
        ("E4", "qcow2 without preallocated metadata to raw", "20 %"),
        (
            "E4",
            "qcow2 with preallocated metadata to raw",
            "about equal",
        ),
        ("E5", "xfs to ext4, seqrd-4k", "about equal"),
        ("E5", "xfs to ext4, oltp-point-select", "103 %"),
        ("E5", "xfs to ext4, oltp-insert", "writes no faster on xfs"),
        (
            "E5",
            "xfs to ext4, oltp-update-index-60",
            "writes no faster on xfs",
        ),
        (
            "E5",
            "xfs to ext4, oltp-read-write",
            "nothing by itself; reads some 3 % faster on xfs, writes not",
        ),
    ] {
        let all = published(experiment, Vec::new());
        let one = all.iter().find(|one| one.what == what);
        assert_eq!(one.unwrap().published, expected, "{what}");
    }
    for experiment in ["E2", "E3", "E4", "E5"] {
        let all = published(experiment, Vec::new());
        assert!(all.iter().all(|one| one.published != "100 %"), "{all:#?}");
    }
}

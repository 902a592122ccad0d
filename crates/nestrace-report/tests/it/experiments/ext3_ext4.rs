//! E3.

use nestrace_report::lab::{Cell, Comparison, Counters, Row};

use super::{Page, median, part, percent, range, relative_word, spread};
use crate::lab::{comparison, results};

const RUN: &str = "ext3-ext4";
const GUESTS: [&str; 2] = ["ext3", "ext4"];
const HOSTS: [&str; 3] = ["bd", "ext4", "xfs"];
/// Files and records, and how the names of their workloads end.
const FILES: [(&str, &str); 3] = [
    ("256 MiB, 512 KiB", ""),
    ("16 MiB, 512 KiB", "-small"),
    ("250 MiB, 10 MiB", "-10m"),
];
const TESTS: [&str; 6] = [
    "write",
    "rewrite",
    "read",
    "reread",
    "randread",
    "randwrite",
];

fn row<'c>(run: &'c Comparison, guest: &str, host: &str, workload: &str) -> &'c Row {
    let id = format!("{guest}-on-{host}-{workload}");
    let row = run.rows.iter().find(|row| row.id == id);
    row.unwrap_or_else(|| panic!("{id}"))
}

/// A row of a table: on the bare device the value, nested per cent of it.
fn line(run: &Comparison, guest: &str, host: &str, workloads: &[String], bare: &str) -> String {
    let mut line = String::new();
    for workload in workloads {
        let row = row(run, guest, host, workload);
        let value = row.value.expect("it has a result").median;
        let word = match (host, bare) {
            ("bd", "MiB/s") => format!("{:.0}", value / f64::from(1 << 20)),
            ("bd", _) if value < 10.0 => format!("{value:.2}"),
            ("bd", _) => format!("{value:.0}"),
            _ => relative_word(row),
        };
        line += &format!(" {word} |");
    }
    line
}

#[test]
fn the_tables_of_e3_are_those_of_the_cells() {
    let run = comparison(RUN);
    let mut text = format!(
        "| file, records | guest | host | {} |\n|---|---|---|---|---|---|---|---|---|\n",
        TESTS.join(" | ")
    );
    for (files, suffix) in FILES {
        let workloads = TESTS.map(|test| format!("{test}{suffix}"));
        for guest in GUESTS {
            for host in HOSTS {
                let line = line(&run, guest, host, &workloads, "MiB/s");
                text += &format!("| {files} | {guest} | {host} |{line}\n");
            }
        }
    }
    text += "\nFiles made and opened a second, and seconds of a check; nested in per cent of the bare device:\n\n\
             | guest | host | create | open | fsck |\n|---|---|---|---|---|\n";
    for guest in GUESTS {
        for host in HOSTS {
            let workloads = ["create", "open", "fsck"].map(str::to_owned);
            let line = line(&run, guest, host, &workloads, "");
            text += &format!("| {guest} | {host} |{line}\n");
        }
    }
    part("ext3-ext4 tables", &text);
}

#[test]
fn what_is_said_of_e3_is_in_its_files() {
    let (run, results) = (comparison(RUN), results(RUN));
    let mut sentences = Vec::new();
    let of = |on: &str, workload: &str, figure: &dyn Fn(&Counters) -> f64| {
        let id = format!("{on}-{workload}");
        let cell: &Cell = results.cells.iter().find(|cell| cell.id == id).unwrap();
        median(cell.runs.iter().map(|run| figure(&run.host)))
    };
    let mib = |counters: &Counters| counters.disk_read_bytes as f64 / f64::from(1 << 20);
    let reads = |counters: &Counters| counters.disk_reads as f64;
    let fsck = |on: &str| {
        let (mib, reads) = (of(on, "fsck", &mib), of(on, "fsck", &reads));
        format!("{mib:.1} MiB in {reads:.0} requests")
    };
    sentences.push(format!(
        "a check of ext3 reads {}, of ext4 {}",
        fsck("ext3-on-bd"),
        fsck("ext4-on-bd")
    ));
    sentences.push(format!(
        "of an image on ext4 {}, on xfs {}",
        fsck("ext3-on-ext4"),
        fsck("ext3-on-xfs")
    ));
    let busy = |workload: &str| {
        let share = |guest: &str| {
            let on = format!("{guest}-on-bd");
            percent(of(&on, workload, &|counters| counters.disk_utilisation))
        };
        format!("{} and {} %", share("ext3"), share("ext4"))
    };
    sentences.push(format!(
        "the disk is busy for {} of the time (ext3 and ext4), in the second for {}",
        busy("write"),
        busy("rewrite")
    ));
    let relative = |host: &str| {
        let rows = run.rows.iter();
        let rows = rows.filter(|row| row.word("host_fs") == host && row.workload != "fsck");
        spread(rows.filter_map(|row| Some(row.relative?.median)))
    };
    for host in ["ext4", "xfs"] {
        let of = relative(host);
        sentences.push(format!(
            "an image on {host} has {} % of the bare disk's speed, in the median {} %",
            range(of),
            percent(of.median)
        ));
    }
    assert!(run.rows.iter().all(|row| row.explanation.is_some()));
    Page::read().check(&sentences);
}

//! Every call is there, with its latency, and the parts of the latency sum to the whole.

use std::collections::BTreeMap;

use anyhow::Context;
use nestrace_stamp::CallLine;
use serde_json::Value;
use xtask::case::Case;

use super::links::Matched;
use super::scene::{OfDisk, Seen};
use super::trees::CallTree;
use crate::analysis::{entry, number};
use crate::measure::Measured;
use crate::with_agents::counts::DiskCounts;

/// Operations of the log; `open` and faults on mapped pages are calls too.
const OPERATIONS: [&str; 5] = ["read", "write", "fsync", "fdatasync", "msync"];
/// What the program itself takes around a call in a translated guest, in the middle.
const AROUND_NS: u64 = 100_000;

/// Calls of a disk's log, but for those that no event shows.
pub fn countable(disk: &OfDisk) -> Vec<CallLine> {
    let is_shown = |line: &&CallLine| line.op != "msync" || disk.disk.msync_is_known();
    disk.log.iter().filter(is_shown).cloned().collect()
}

/// Each operation on each file has as many calls in `calls[]` and among the trees as in the log.
pub fn calls(
    case: &mut Case,
    seen: &Seen,
    disk: &OfDisk,
    trees: &[&CallTree],
    process: &str,
    log: &[CallLine],
) {
    let mut expected: BTreeMap<(&str, u64), u64> = BTreeMap::new();
    for line in log {
        *expected.entry((&line.op, line.inode)).or_default() += 1;
    }
    let mount = format!("/mnt/{}", disk.disk.id);
    let rows = seen.measured.analysis["calls"].as_array();
    let rows: Vec<&Value> = rows
        .into_iter()
        .flatten()
        .filter(|row| {
            row["process"] == process
                && row["file"]["mount"] == mount.as_str()
                && OPERATIONS.iter().any(|op| row["op"] == *op)
        })
        .collect();
    for ((op, inode), n) in &expected {
        let of_row = |row: &&&Value| row["op"] == *op && row["file"]["inode"] == *inode;
        let in_rows: u64 = rows
            .iter()
            .filter(of_row)
            .filter_map(|row| row["n"].as_u64())
            .sum();
        case.equal(
            &format!("calls[] of {process}: {op} of inode {inode}"),
            in_rows,
            *n,
        );
        let of_tree = |call: &&&CallTree| call.op == *op && call.file.inode == Some(*inode);
        let in_trees = trees.iter().filter(of_tree).count() as u64;
        case.equal(
            &format!("trees of {process}: {op} of inode {inode}"),
            in_trees,
            *n,
        );
    }
    let all: u64 = rows.iter().filter_map(|row| row["n"].as_u64()).sum();
    case.equal(&format!("calls of {process}"), all, log.len() as u64);
}

/// The program's own time of a call contains the recorded one, and is not much longer.
pub fn latencies(case: &mut Case, log: &[CallLine], matched: &[Matched<'_>]) {
    case.equal(
        "calls within the times of the log",
        matched.len(),
        log.len(),
    );
    let mut around: Vec<u64> = matched
        .iter()
        .filter(|one| one.line.end_ns - one.line.begin_ns >= one.call.latency_ns)
        .map(|one| one.line.end_ns - one.line.begin_ns - one.call.latency_ns)
        .collect();
    around.sort_unstable();
    let at = |part: f64| {
        around
            .get((around.len() as f64 * part) as usize)
            .copied()
            .unwrap_or(0)
    };
    case.figure(format!(
        "the program's time is longer by {} µs (median), {} µs (p99)",
        at(0.5) / 1000,
        at(0.99) / 1000
    ));
    case.holds(
        "median of the program's time minus the recorded one",
        at(0.5) <= AROUND_NS,
        &format!("{} ns", at(0.5)),
    );
}

/// Segments of each call sum to its latency.
pub fn segments(case: &mut Case, analysis: &Value, trees: &[CallTree]) -> anyhow::Result<()> {
    let uneven = trees.iter().filter(|call| {
        let sum: u64 = call.segments.iter().map(|segment| segment.ns).sum();
        call.linked && sum != call.latency_ns
    });
    case.equal(
        "calls whose segments do not sum to their latency",
        uneven.count(),
        0,
    );
    let linked = trees.iter().filter(|call| call.linked).count();
    case.figure(format!("segments of {linked} calls"));
    let rows = analysis["calls"].as_array().context("find calls[]")?;
    let residual = |row: &&Value| row["residual_share"].as_f64() != Some(0.0);
    case.equal(
        "rows with a residual",
        rows.iter().filter(residual).count(),
        0,
    );
    Ok(())
}

/// All bios of the guest's disks are somebody's once, and their bytes are those that the kernel counted.
pub fn sums(case: &mut Case, measured: &Measured<DiskCounts>, guest: &str) -> anyhow::Result<()> {
    let analysis = &measured.analysis;
    let calls = entry(analysis, "guest_calls", &[("guest", guest)])?;
    let (mut bios, mut bytes, mut told) = (0, 0, String::new());
    for key in ["waited", "deferred", "journal", "other"] {
        let n = number(calls, &format!("/{key}/bios"))?;
        bios += n;
        bytes += number(calls, &format!("/{key}/bytes"))?;
        told += &format!("{n} {key} ");
    }
    case.figure(format!("bios: {told}"));
    let devices = analysis["devices"].as_array().context("find devices[]")?;
    let mut expected = 0;
    for device in devices.iter().filter(|device| device["side"] == "guest") {
        expected += number(device, "/counts/queued")? + number(device, "/counts/flushes")?;
    }
    case.equal(
        "bios of guest_calls[] against the guest's disks",
        bios,
        expected,
    );
    let of_stat = |counts: &DiskCounts| {
        let stat = &counts.guest;
        (stat.read_sectors + stat.write_sectors + stat.discard_sectors) * 512
    };
    let expected: u64 = measured.truth.iter().map(of_stat).sum();
    case.equal(
        "bytes of guest_calls[] against /sys/block/*/stat",
        bytes,
        expected,
    );
    case.equal("guest_calls.unended", number(calls, "/unended")?, 0);
    // A row has the bios that its calls were the first to wait for.
    let rows = analysis["calls"].as_array().context("find calls[]")?;
    for key in ["waited", "deferred"] {
        let of_rows: u64 = rows
            .iter()
            .filter_map(|row| row[key]["bios"].as_u64())
            .sum();
        let whole = number(calls, &format!("/{key}/bios"))?;
        case.equal(&format!("{key} of calls[]"), of_rows, whole);
    }
    Ok(())
}

//! Plans on modelled disks. Cells are as slow as the disk, say how far it was from its model, and leave nothing; where a
//! flush takes longer, the results show it and the recordings say so.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder::nestrace;
use serde_json::Value;
use xtask::case::Case;

use super::{name, read, rows};
use crate::context::LiveContext;

/// Two disks that differ in one parameter: what a flush takes besides writing what is cached.
const PLAN: &str = "name = 'modelled'
repetitions = 2
seconds = 4
warm_up_seconds = 0
record_seconds = 4
image_size = '128M'
data_size = '8M'

[axes]
guest_fs = 'ext4'
host_fs = 'xfs'
host_disk = ['hdd-7200', 'SLOWER']

[[workload]]
name = 'synced'
fio = '--rw=randwrite --bs=4k --ioengine=psync --fsync=1'
";
/// Its parameters.
const MODEL: &str = include_str!("../../../../crates/nestrace-modelled-disk/models/hdd-7200.toml");
/// How much longer the other's flush takes: what a quiet machine shows, and what a busy one does.
const QUIET_SLOWER_MS: f64 = 2.0;
const SLOWER_MS: f64 = 20.0;

/// Turns of a 7200 rpm disk a second: a synced write waits for one at least, or for a seek.
const TURNS: f64 = 120.0;

pub fn run(
    ctx: &LiveContext,
    case: &mut Case,
    program: &Path,
    folder: &Path,
) -> anyhow::Result<()> {
    let slower_ms = if ctx.full { QUIET_SLOWER_MS } else { SLOWER_MS };
    let slower = folder.join("slower flush.toml");
    std::fs::write(&slower, format!("{MODEL}\nflush_ms = {slower_ms}\n"))
        .context("write a model")?;
    let plan = folder.join("modelled.toml");
    std::fs::write(&plan, PLAN.replace("SLOWER", name(&slower)?)).context("write a plan")?;
    let shown = nestrace(program, &["lab", "plan", name(&plan)?])?;
    let words: Vec<&str> = shown.stdout.split_whitespace().collect();
    let words = words.join(" ");
    for said in [
        "flush.toml, hdd-7200)",
        "equal cells are called different in 33 %",
    ] {
        case.holds("lab plan", words.contains(said), &shown.stdout);
    }
    let results = folder.join("modelled");
    let end = nestrace(
        program,
        &["lab", "run", name(&plan)?, "-o", name(&results)?],
    )?;
    case.equal("exit", end.code.unwrap_or(-1), 0);
    let report = read(&results.join("report.json"))?;
    let disk = &report["run"]["modelled_disk"];
    let has_both = disk
        .as_str()
        .is_some_and(|disk| disk.ends_with("flush.toml, hdd-7200"));
    case.holds("the run's disks", has_both, &disk.to_string());
    // A small disk is the outer edge of the drive.
    let speed = number(&report, "/run/bases/0/read_bytes_per_s")? / 1e6;
    let is_disks = (110.0..128.0).contains(&speed);
    case.holds(
        "speed of the bare disk",
        is_disks,
        &format!("{speed:.0} MB/s"),
    );
    let rows = rows(&results)?;
    for host in ["bd", "xfs"] {
        let row = |disk: &str| {
            let id = format!("ext4-on-{host}-{disk}");
            let row = rows.iter().find(|row| row["id"] == id.as_str());
            row.with_context(|| format!("find the row {id}"))
        };
        slower_flush(case, host, row("hdd-7200")?, row("slower-flush")?)?;
    }
    for row in rows {
        let id = row["id"].as_str().unwrap_or_default().to_owned();
        let value = number(&row, "/value/median")?;
        case.holds(&id, value > 5.0 && value < TURNS, &format!("{value} op/s"));
        let n = number(&row, "/modelled/n")?;
        case.holds(&format!("{id}: completions"), n >= value, &n.to_string());
        let late = number(&row, "/modelled/late")?;
        case.figure(format!("{id}: {value:.1} op/s, {late} of {n} late"));
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").context("read mounts")?;
    let is_left = mounts.contains(name(folder)?);
    case.holds("mounts", !is_left, "one is left");
    Ok(())
}

/// Every repetition is slower, and of all segments the device's flush has grown most.
fn slower_flush(case: &mut Case, host: &str, usual: &Value, slower: &Value) -> anyhow::Result<()> {
    let (least, most) = (number(usual, "/value/min")?, number(slower, "/value/max")?);
    let figures = format!("{most:.1} op/s at most, {least:.1} at least on the usual disk");
    case.holds(&format!("{host}: slower"), most < least, &figures);
    let segments = |row: &Value| -> BTreeMap<String, f64> {
        let segments = row["explanation"]["segments"].as_array();
        let segments = segments.into_iter().flatten();
        segments
            .filter_map(|one| Some((one["name"].as_str()?.to_owned(), one["mean_ns"].as_f64()?)))
            .collect()
    };
    let (before, after) = (segments(usual), segments(slower));
    let grown = after
        .iter()
        .map(|(name, ns)| (name, ns - before.get(name).unwrap_or(&0.0)));
    let grown_most = grown.max_by(|(_, a), (_, b)| a.total_cmp(b));
    let is_flush = grown_most.is_some_and(|(name, _)| name == "device_flush");
    case.holds(
        &format!("{host}: where"),
        is_flush,
        &format!("{before:?} {after:?}"),
    );
    case.figure(format!("{host}: {figures}, {grown_most:?} ns"));
    Ok(())
}

fn number(value: &Value, pointer: &str) -> anyhow::Result<f64> {
    let number = value.pointer(pointer).and_then(Value::as_f64);
    number.with_context(|| format!("find {pointer} in the results"))
}

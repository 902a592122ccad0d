//! A plan on a modelled disk: its cells are as slow as the disk, say how far it was from its model, and leave nothing.

use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder::nestrace;
use serde_json::Value;
use xtask::case::Case;

use super::{name, read, rows};

const PLAN: &str = "name = 'modelled'
repetitions = 2
seconds = 4
warm_up_seconds = 0
record = false
agent = false
image_size = '128M'
data_size = '8M'

[host]
disk = 'hdd-7200'

[axes]
guest_fs = 'ext4'
host_fs = 'xfs'

[[workload]]
name = 'synced'
fio = '--rw=randwrite --bs=4k --ioengine=psync --fsync=1'
";

/// Turns of a 7200 rpm disk a second: a synced write waits for one at least, or for a seek.
const TURNS: f64 = 120.0;

pub fn run(case: &mut Case, program: &Path, folder: &Path) -> anyhow::Result<()> {
    let plan = folder.join("modelled.toml");
    std::fs::write(&plan, PLAN).context("write a plan")?;
    let shown = nestrace(program, &["lab", "plan", name(&plan)?])?;
    let says = shown.stdout.contains("on modelled disks (hdd-7200)")
        && shown
            .stdout
            .contains("equal cells are called different in 33 %");
    case.holds("lab plan", says, &shown.stdout);
    let results = folder.join("modelled");
    let end = nestrace(
        program,
        &["lab", "run", name(&plan)?, "-o", name(&results)?],
    )?;
    case.equal("exit", end.code.unwrap_or(-1), 0);
    let report = read(&results.join("report.json"))?;
    let disk = &report["run"]["modelled_disk"];
    case.holds("the run's disk", disk == "hdd-7200", &disk.to_string());
    // The whole of a small disk: from the first zone to the last.
    let speed = number(&report, "/run/bases/0/read_bytes_per_s")? / 1e6;
    let is_disks = (64.0..128.0).contains(&speed);
    case.holds(
        "speed of the bare disk",
        is_disks,
        &format!("{speed:.0} MB/s"),
    );
    for row in rows(&results)? {
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

fn number(value: &Value, pointer: &str) -> anyhow::Result<f64> {
    let number = value.pointer(pointer).and_then(Value::as_f64);
    number.with_context(|| format!("find {pointer} in the results"))
}

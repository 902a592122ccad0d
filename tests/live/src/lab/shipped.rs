//! One cell of each plan that comes with nestrace and has a modelled disk, up to its first repetition.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, bail};
use nestrace_rig::recorder::nestrace;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use xtask::case::Case;

use super::failures::wait_for;
use super::{name, read, rows};

const CELLS: [(&str, &str, &str); 6] = [
    ("fast12", "hdd-7200", "btrfs-on-ext4-mailserver"),
    ("fast12-macro", "hdd-7200", "ext4-on-xfs-dbserver"),
    ("raw-qcow2", "hdd-7200", "ext3-on-ext4-qcow2-write"),
    ("ext3-ext4", "hdd-7200", "ext4-on-ext4-read-small"),
    (
        "image-format-cache-bus",
        "hdd-sw-raid10",
        "ext4-on-ext4-qcow2-none-virtio-off-unpack",
    ),
    ("ext4-xfs", "nvme", "xfs-on-xfs-seqwr-64k"),
];

pub fn run(case: &mut Case, program: &Path, folder: &Path) -> anyhow::Result<()> {
    for (plan, disk, cell) in CELLS {
        let begin = Instant::now();
        let results = folder.join(format!("shipped-{plan}"));
        first_repetition(program, plan, cell, &results)?;
        let end = nestrace(program, &["lab", "report", name(&results)?])?;
        case.equal(&format!("{plan}: report"), end.code.unwrap_or(-1), 0);
        let rows = rows(&results)?;
        let row = rows.iter().find(|row| row["id"] == cell);
        let row = row.with_context(|| format!("find the row {cell}"))?;
        case.equal(plan, row["axes"]["host_disk"].as_str().unwrap_or(""), disk);
        let relative = row["relative"]["median"].as_f64().unwrap_or(0.0);
        let completions = row["modelled"]["n"].as_u64().unwrap_or(0);
        let is_measured = relative > 0.0 && completions > 0;
        case.holds(plan, is_measured, &row.to_string());
        let took = begin.elapsed().as_secs();
        case.figure(format!("{cell} {:.0} % in {took} s", relative * 100.0));
    }
    Ok(())
}

/// Starts the plan with this cell alone, and stops it when the cell and its baseline have a result.
fn first_repetition(program: &Path, plan: &str, cell: &str, results: &Path) -> anyhow::Result<()> {
    let mut lab = Command::new(program)
        .args(["lab", "run", plan, "-o", name(results)?])
        .args(["--only", cell, "--install"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start nestrace lab run")?;
    let file = |id: &str| -> PathBuf { results.join(format!("{id}.json")) };
    let has_result = |cell: &Value| cell["runs"][0]["value"].is_number();
    let both = || {
        let own = read(&file(cell)).ok().filter(has_result)?;
        read(&file(own["baseline"].as_str()?))
            .ok()
            .filter(has_result)
    };
    let came = wait_for(&mut lab, || both().is_some());
    let _ = kill(Pid::from_raw(lab.id() as i32), Signal::SIGINT);
    let output = lab.wait_with_output().context("wait for the lab")?;
    if !came? {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        bail!("see the first repetition of {cell} in {plan}: {said}");
    }
    Ok(())
}

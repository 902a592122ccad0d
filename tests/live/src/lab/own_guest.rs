//! `nestrace lab` with a running guest, which gets disks and loses them again.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use nestrace_rig::external_tool::{Tool, last_lines};
use nestrace_rig::interrupt;
use nestrace_rig::recorder::analyze;
use xtask::case::Case;

use super::read;
use crate::analysis::number;
use crate::context::LiveContext;

/// Until a lab has measured its devices and given a guest its first disk.
const ATTACH_PATIENCE: Duration = Duration::from_secs(90);
const CELLS: [&str; 2] = ["ext4-on-bd", "ext4-on-ext4"];
/// Where a recording begins and ends under load a few bios are cut.
const LINKED: f64 = 0.98;

/// A guest that runs.
pub struct OwnGuest<'a> {
    /// For the plan and its results; whoever runs the guest has to see what is mounted in it.
    pub folder: &'a Path,
    /// `[guest]` in the plan.
    pub section: String,
    /// What the lab's environment has besides.
    pub environment: Vec<(&'a str, String)>,
    /// The guest's disks now.
    pub disks: &'a dyn Fn() -> anyhow::Result<String>,
}

/// The lab is killed while the guest has its disks, and goes on afterwards; its recordings have its disks, and
/// the guest has its own ones at the end.
pub fn run(case: &mut Case, ctx: &LiveContext, own: &OwnGuest<'_>) -> anyhow::Result<()> {
    let before = (own.disks)()?;
    let plan = own.folder.join("plan.toml");
    let results = own.folder.join("results");
    let text = format!(
        "name = 'own'\nrepetitions = 1\nseconds = 2\nwarm_up_seconds = 0\nrecord_seconds = 1\n\
         image_size = '128M'\ndata_size = '4M'\n\
         [guest]\n{}\n[axes]\nhost_fs = 'ext4'\n[[workload]]\nname = 'randwrite'\n",
        own.section
    );
    std::fs::write(&plan, text).context("write a plan")?;
    let start = Instant::now();
    let lab = || {
        let mut command = Command::new(&ctx.nestrace);
        command
            .args(["lab", "run"])
            .arg(&plan)
            .arg("-o")
            .arg(&results)
            .envs(own.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null());
        command
    };
    kill_with_disks_attached(&mut lab(), || Ok((own.disks)()? != before))?;
    // Takes away what the first one left, and goes on.
    let output = lab().output().context("start nestrace lab run")?;
    let stderr = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() {
        bail!("nestrace lab run: {}", last_lines(&stderr, 12));
    }
    for id in CELLS {
        cell(case, ctx, &results, id)?;
    }
    case.equal("disks afterwards", (own.disks)()?, before);
    let left = Tool::new("losetup")
        .args(["--list", "--noheadings"])
        .run()?;
    let own = own.folder.display().to_string();
    case.holds("loop devices", !left.contains(&own), &left);
    case.figure(format!("{:.0} s", start.elapsed().as_secs_f64()));
    Ok(())
}

/// A cell has a value, and a recording of this very disk from both sides, under the name that the lab gave it.
fn cell(case: &mut Case, ctx: &LiveContext, results: &Path, id: &str) -> anyhow::Result<()> {
    let cell = read(&results.join(format!("{id}.json")))?;
    case.equal(id, cell["failures"].to_string().as_str(), "[]");
    let value = cell["runs"][0]["value"].as_f64().unwrap_or(0.0);
    case.holds(id, value > 0.0, "no value");
    let analysis = analyze(&ctx.nestrace, &results.join(format!("{id}.nest")))?;
    let disk = cell["disk"].as_str().unwrap_or_default();
    case.holds(id, disk.contains("nestrace-lab-"), disk);
    let of_disk = |key: &str| {
        let mut rows = analysis[key].as_array().into_iter().flatten();
        rows.find(|row| row["disk"] == disk)
    };
    case.holds(id, of_disk("qemu").is_some(), &format!("no {disk} in QEMU"));
    let chain = of_disk("chains").with_context(|| format!("{id}: find the chains of {disk}"))?;
    let (bios, linked) = (number(chain, "/guest_bios")?, number(chain, "/linked")?);
    let figures = format!("{linked} of {bios} guest bios, not: {}", chain["unlinked"]);
    let enough = linked > 100 && linked as f64 >= LINKED * bios as f64;
    case.holds(id, enough, &figures);
    case.equal(id, number(chain, "/wrong_order")?, 0);
    case.figure(format!("{id}: {linked} of {bios} bios linked"));
    Ok(())
}

/// Kills a lab as soon as the guest has more disks than it had.
fn kill_with_disks_attached(
    lab: &mut Command,
    has_more: impl Fn() -> anyhow::Result<bool>,
) -> anyhow::Result<()> {
    let mut child = lab
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("start nestrace lab run")?;
    let attached = wait_for_disks(&mut child, has_more);
    let _ = child.kill();
    let output = child
        .wait_with_output()
        .context("wait for nestrace lab run")?;
    if !attached? {
        let said = last_lines(&String::from_utf8_lossy(&output.stderr), 6);
        bail!("see a disk in the guest ({}): {said}", output.status);
    }
    Ok(())
}

fn wait_for_disks(
    lab: &mut Child,
    has_more: impl Fn() -> anyhow::Result<bool>,
) -> anyhow::Result<bool> {
    let begin = Instant::now();
    while begin.elapsed() < ATTACH_PATIENCE && lab.try_wait()?.is_none() {
        interrupt::check()?;
        thread::sleep(Duration::from_millis(100));
        if has_more()? {
            return Ok(true);
        }
    }
    Ok(false)
}

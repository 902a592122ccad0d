//! The host's role inside a guest, as the plan that comes with nestrace has it: file systems that this machine's kernel
//! lacks. Everything is translated twice, which takes half an hour: `--full` alone.

use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder::{analyze, nestrace};
use serde_json::Value;
use xtask::case::Case;

use super::{name, rows};
use crate::analysis::number;

/// The plan, with fewer repetitions and a recording of each cell.
const PLAN: &str = include_str!("../../../../crates/nestrace-lab/plans/reiserfs-jfs.toml");
const OTHERWISE: [(&str, &str); 2] = [
    ("repetitions = 4", "repetitions = 2"),
    ("record = false", "record_seconds = 5"),
];
const HOSTS: [&str; 2] = ["ext4-on-reiserfs", "ext4-on-jfs"];
/// With the bare device.
const CELLS: usize = 3;

pub fn run(case: &mut Case, program: &Path, folder: &Path) -> anyhow::Result<()> {
    let (results, plan) = (folder.join("in-guest"), folder.join("in-guest.toml"));
    let mut text = PLAN.to_owned();
    for (from, to) in OTHERWISE {
        anyhow::ensure!(text.contains(from), "find {from} in the plan");
        text = text.replace(from, to);
    }
    std::fs::write(&plan, text).context("write the plan")?;
    let mut line = vec!["lab", "run", name(&plan)?, "-o", name(&results)?];
    line.extend(HOSTS.iter().flat_map(|cell| ["--only", cell]));
    let end = nestrace(program, &line)?;
    case.holds("exit", end.code == Some(0), &end.stderr);
    let rows = rows(&results)?;
    let has_runs = |row: &Value| row["value"]["n"].as_u64() > Some(0);
    let rows: Vec<Value> = rows.into_iter().filter(has_runs).collect();
    case.equal("cells", rows.len(), CELLS);
    for row in &rows {
        let id = row["id"].as_str().context("read the id of a cell")?;
        case.equal(id, row["failures"].to_string().as_str(), "[]");
        case.equal(id, row["value"]["n"].as_u64().unwrap_or(0), 2);
        // Recorded by the collector in the guest, and none of its writes was lost between QEMU and the image.
        let analysis = analyze(program, &results.join(format!("{id}.nest")))?;
        case.equal("lost", number(&analysis, "/trace/lost")?, 0);
        let writes = analysis["qemu"][0]["writes"].as_u64().unwrap_or(0);
        let to_image = analysis["images"][0]["file_io"]["writes"].as_u64();
        let to_image = to_image.unwrap_or(0);
        case.holds(
            id,
            writes > 10 && to_image > 0,
            &analysis["qemu"].to_string(),
        );
        case.figure(format!("{id}: {writes} writes, {to_image} to its image"));
    }
    Ok(())
}

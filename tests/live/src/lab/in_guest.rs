//! The host's role inside a guest, as the plan that comes with nestrace has it: file systems that this machine's kernel
//! lacks. Everything is translated twice, which takes half an hour: `--full` alone.

use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder::{analyze, nestrace};
use xtask::case::Case;

use super::{name, rows};
use crate::analysis::number;

const PLAN: &str = "reiserfs-jfs";
/// ext4 on reiserfs, on jfs and on the bare device.
const CELLS: usize = 3;

pub fn run(case: &mut Case, program: &Path, folder: &Path) -> anyhow::Result<()> {
    let results = folder.join("in-guest");
    let end = nestrace(program, &["lab", "run", PLAN, "-o", name(&results)?])?;
    case.holds("exit", end.code == Some(0), &end.stderr);
    let rows = rows(&results)?;
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

//! A data set of many recordings: what DuckDB computes from `disks/`, `findings/` and `topology/` is what
//! `nestrace analyze` says of each, also by the questions in `sql/`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use anyhow::Context;
use nestrace_rig::recorder;
use serde_json::Value;
use xtask::cargo_build::workspace;
use xtask::case::{Case, Report};

use super::Scenario;
use super::context::LiveContext;
use super::export::{self, READERS};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "data-set",
    about: "a data set of forty recordings in DuckDB: counts, sums and percentiles are those of analyze",
    run,
    alone: false,
};

const COMPARE: &str = include_str!("data_set/compare.py");

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    READERS.prepare(|line| ctx.progress.say(line))?;
    if ctx.wants("data-set/fixtures") {
        report.case("data-set/fixtures", |case| of_fixtures(ctx, case))?;
    }
    Ok(())
}

fn of_fixtures(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for the data set")?;
    let (set, analyses) = (folder.path().join("set"), folder.path().join("analyses"));
    fs::create_dir(&analyses)?;
    symlink(workspace().join("sql/duckdb"), folder.path().join("sql"))?;
    let mut known = Vec::new();
    for input in inputs()? {
        export::to_parquet(ctx, &input, &set, &[])?;
        // What is new is called as the recording is.
        let recording = recordings(&set)?
            .into_iter()
            .find(|name| !known.contains(name))
            .with_context(|| format!("find {} in the data set", input.display()))?;
        let analysis = recorder::analyze(&ctx.nestrace, &input)?;
        fs::write(
            analyses.join(format!("{recording}.json")),
            serde_json::to_vec(&analysis)?,
        )?;
        known.push(recording);
    }
    // Again, the same one: nothing is counted twice.
    if let Some(input) = inputs()?.first() {
        export::to_parquet(ctx, input, &set, &[])?;
    }
    let read = READERS.read(COMPARE, folder.path())?;
    for wrong in read["wrong"].as_array().into_iter().flatten().take(20) {
        case.holds("as analyze says", false, &wrong.to_string());
    }
    let number = |what: &str| read["checked"][what].as_u64().unwrap_or(0);
    for what in ["count", "sum", "percentile", "segment", "question"] {
        case.holds(what, number(what) > 0, "nothing was compared");
        case.figure(format!("{} of {what}", number(what)));
    }
    case.equal("recordings", whole(&read["recordings"]), known.len() as u64);
    Ok(())
}

/// Every recording of the repository's fixtures for findings, and captures of blktrace.
fn inputs() -> anyhow::Result<Vec<PathBuf>> {
    let fixtures = workspace().join("fixtures");
    let mut inputs = Vec::new();
    for entry in fs::read_dir(fixtures.join("findings"))? {
        let path = entry?.path();
        inputs.extend(Some(path).filter(|path| path.extension().is_some_and(|it| it == "nest")));
    }
    for capture in ["ext3-seqw-mq-ide", "ext4-mail-none-scsi"] {
        inputs.push(fixtures.join("blktrace").join(capture).join("gt"));
    }
    inputs.sort();
    Ok(inputs)
}

/// The names of the recordings in a data set.
fn recordings(set: &Path) -> anyhow::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(set.join("streams"))? {
        let path = entry?.path();
        let stem = path.file_stem().context("name a file")?;
        names.push(stem.to_string_lossy().into_owned());
    }
    Ok(names)
}

fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

//! `nestrace lab` as a user runs it: the plan that comes first, its results, and its report in a browser.

mod devices;
mod failures;
mod in_guest;
mod kinds;
mod modelled;
mod over_ssh;
pub mod own_guest;
mod partitions;
mod shipped;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::Context;
use serde_json::Value;

use super::Scenario;
use super::browser;
use super::context::LiveContext;
use nestrace_rig::recorder::nestrace;
use xtask::case::{Case, Report};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "lab",
    about: "a plan of experiments: cells, baselines, recordings, the report in a browser",
    run,
    alone: false,
};

const PLAN: &str = "quick";
/// Of it, what is run where not everything is: one of its two host file systems.
const PLAN_TEXT: &str = include_str!("../../../crates/nestrace-lab/plans/quick.toml");
const HOSTS: [&str; 2] = ["host_fs = [\"ext4\", \"xfs\"]", "host_fs = [\"xfs\"]"];
/// One for each guest file system, and one of the latencies.
const FIGURES: usize = 3;

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    browser::install(&ctx.progress)?;
    let folder = tempfile::tempdir().context("make a folder for the lab")?;
    let program = programs(ctx, folder.path())?;
    let results = folder.path().join("results");
    type Body<'a> = &'a dyn Fn(&mut Case) -> anyhow::Result<()>;
    let cases: [(&str, Body<'_>); 10] = [
        ("plan", &|case| plans(&program, case)),
        ("devices-refused", &|case| devices::refused(&program, case)),
        ("devices-used", &|case| devices::used(case)),
        ("partitions", &|case| {
            partitions::run(case, &program, folder.path())
        }),
        ("failures", &|case| {
            failures::run(case, &program, folder.path())
        }),
        ("over-ssh", &|case| over_ssh::run(case, ctx)),
        ("kinds", &|case| kinds::run(case, &program, folder.path())),
        ("modelled", &|case| {
            modelled::run(ctx, case, &program, folder.path())
        }),
        ("shipped", &|case| {
            shipped::run(case, &program, folder.path())
        }),
        ("in-guest", &|case| {
            in_guest::run(case, &program, folder.path())
        }),
    ];
    for (name, body) in cases {
        let name = format!("{}/{name}", SCENARIO.name);
        if ctx.wants(&name) {
            report.case(&name, body)?;
        }
    }
    if !ctx.wants("lab/run") {
        return Ok(());
    }
    // Two guest file systems on each host file system, and on the bare device.
    let (plan, cells) = match ctx.full {
        true => (PLAN.to_owned(), 6),
        false => (part_of_plan(folder.path())?, 4),
    };
    let ran = report.case("lab/run", |case| run_plan(&program, &plan, &results, case))?;
    if !ran {
        return Ok(());
    }
    report.case("lab/results", |case| check_results(&results, cells, case))?;
    report.case("lab/report", |case| look(&results, folder.path(), case))?;
    report.case("lab/again", |case| again(&program, &plan, &results, case))?;
    Ok(())
}

/// nestrace with its lab and the agent beside it, as an installation has them.
fn programs(ctx: &LiveContext, folder: &Path) -> anyhow::Result<PathBuf> {
    let place = folder.join("bin");
    std::fs::create_dir(&place).context("make a folder for the programs")?;
    let program = place.join("nestrace");
    std::fs::copy(&ctx.nestrace, &program).context("copy nestrace")?;
    let lab = ctx.nestrace.with_file_name("nestrace-lab");
    std::fs::copy(&lab, place.join("nestrace-lab"))
        .with_context(|| format!("copy {}", lab.display()))?;
    let disk = ctx.disk_program();
    std::fs::copy(&disk, place.join("nestrace-disk"))
        .with_context(|| format!("copy {}", disk.display()))?;
    std::fs::copy(ctx.agent()?, place.join("nestrace-agent")).context("copy the agent")?;
    Ok(program)
}

fn name(path: &Path) -> anyhow::Result<&str> {
    path.to_str().context("name a file")
}

fn plans(program: &Path, case: &mut Case) -> anyhow::Result<()> {
    let end = nestrace(program, &["lab", "plan", PLAN])?;
    case.equal("exit", end.code.unwrap_or(-1), 0);
    for word in ["ext4-on-xfs", "xfs-on-bd", "about", "of disk"] {
        case.holds("the plan", end.stdout.contains(word), &end.stdout);
    }
    let folder = tempfile::tempdir().context("make a folder for a plan")?;
    let wrong = folder.path().join("wrong.toml");
    let text = "name = 'a'\n[axes]\ncache = ['writeback']\n[[workload]]\nname = 'randread'\n";
    std::fs::write(&wrong, text).context("write a plan")?;
    let end = nestrace(program, &["lab", "run", name(&wrong)?])?;
    case.equal("exit of an impossible plan", end.code.unwrap_or(-1), 3);
    let told = end.stderr.starts_with("nestrace: ") && end.stderr.contains("line 3, column 10");
    case.holds("an impossible plan", told, &end.stderr);
    Ok(())
}

/// A file with the plan, of whose host file systems one is left.
fn part_of_plan(folder: &Path) -> anyhow::Result<String> {
    let [both, one] = HOSTS;
    anyhow::ensure!(PLAN_TEXT.contains(both), "find {both} in the plan {PLAN}");
    let plan = folder.join("part.toml");
    std::fs::write(&plan, PLAN_TEXT.replace(both, one)).context("write a plan")?;
    Ok(name(&plan)?.to_owned())
}

fn run_plan(program: &Path, plan: &str, results: &Path, case: &mut Case) -> anyhow::Result<()> {
    let start = Instant::now();
    let output = Command::new(program)
        .args(["lab", "run", plan, "-o", name(results)?])
        .stdin(Stdio::null())
        .output()
        .context("start nestrace lab run")?;
    let took = start.elapsed().as_secs_f64();
    let stderr = String::from_utf8_lossy(&output.stderr);
    case.figure(format!("{took:.0} s"));
    case.holds("exit", output.status.success(), &stderr);
    let work = results.join("work");
    case.holds("nothing is left", !work.exists(), "the folder of devices");
    Ok(())
}

/// A file of JSON among results.
fn read(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("read {}", path.display()))
}

fn rows(results: &Path) -> anyhow::Result<Vec<Value>> {
    let report = read(&results.join("report.json"))?;
    let rows = report["rows"].as_array().context("find the rows")?;
    Ok(rows.clone())
}

/// Every cell has its repetitions and a recording, and a baseline is 100 %.
fn check_results(results: &Path, cells: usize, case: &mut Case) -> anyhow::Result<()> {
    let rows = rows(results)?;
    case.equal("cells", rows.len(), cells);
    let ids: BTreeSet<&str> = rows.iter().filter_map(|row| row["id"].as_str()).collect();
    case.equal("ids", ids.len(), cells);
    for row in &rows {
        let id = row["id"].as_str().context("read the id of a cell")?;
        case.equal(id, row["value"]["n"].as_u64().unwrap_or(0), 3);
        case.holds(
            id,
            row["failures"] == Value::Array(Vec::new()),
            &row["failures"].to_string(),
        );
        let relative = row["relative"]["median"].as_f64().unwrap_or(0.0);
        case.holds(id, relative > 0.0, "no relative value");
        if row["baseline"].is_null() {
            case.equal(id, relative, 1.0);
            case.equal(id, row["verdict"].as_str().unwrap_or(""), "baseline");
        } else {
            let baseline = row["baseline"].as_str().unwrap_or_default();
            case.holds(
                id,
                ids.contains(baseline) && baseline.ends_with("-on-bd"),
                baseline,
            );
            case.figure(format!("{id} {:.0} %", relative * 100.0));
        }
        let bundle = results.join(format!("{id}.nest"));
        case.holds(id, bundle.join("manifest.json").is_file(), "no recording");
        // The recording says where the time of this cell's disk goes, from inside the guest too.
        let segments = row["explanation"]["segments"]
            .as_array()
            .map_or(0, Vec::len);
        case.holds(id, segments > 3, &format!("{segments} segments"));
    }
    Ok(())
}

/// The page opens, and shows what the JSON says.
fn look(results: &Path, folder: &Path, case: &mut Case) -> anyhow::Result<()> {
    let page = results.join("report.html");
    let html = std::fs::read_to_string(&page).context("read the report")?;
    case.figure(format!("{} KiB", html.len() >> 10));
    for outside in ["http://", "https://", "<script", "@import", "url("] {
        let namespace = html.replace("http://www.w3.org/2000/svg", "");
        case.holds("needs nothing else", !namespace.contains(outside), outside);
    }
    for row in rows(results)? {
        let id = row["id"].as_str().unwrap_or_default();
        let relative = row["relative"]["median"].as_f64().unwrap_or(0.0);
        let shown = format!("{:.0}\u{a0}%", relative * 100.0);
        let begin = format!("<tr><td><a href=\"{id}.html\">{id}</a></td>");
        let line = html.split_once(&begin).map(|(_, rest)| rest);
        let line = line.and_then(|rest| rest.split("</tr>").next());
        case.holds(id, line.is_some_and(|line| line.contains(&shown)), &shown);
        let own = results.join(format!("{id}.html"));
        case.holds(
            id,
            own.is_file() && html.contains(&format!("href=\"{id}.html\"")),
            "no page of its own",
        );
    }
    let console = browser::console(&page, folder)?;
    case.holds("console", console.is_empty(), &console.join(" / "));
    for seen in browser::look(&html, folder)? {
        let what = format!("at {} px", seen.width);
        case.equal(&what, seen.figures, FIGURES);
        case.holds(&what, seen.wrong.is_empty(), &seen.wrong.join("; "));
    }
    Ok(())
}

/// A finished plan is not run again.
fn again(program: &Path, plan: &str, results: &Path, case: &mut Case) -> anyhow::Result<()> {
    let start = Instant::now();
    let before = std::fs::read(results.join("ext4-on-bd.json")).context("read a cell")?;
    let end = nestrace(program, &["lab", "run", plan, "-o", name(results)?])?;
    case.equal("exit", end.code.unwrap_or(-1), 0);
    let after = std::fs::read(results.join("ext4-on-bd.json")).context("read a cell")?;
    case.holds(
        "cells are kept",
        before == after,
        "ext4-on-bd.json has changed",
    );
    case.figure(format!("{:.1} s", start.elapsed().as_secs_f64()));
    Ok(())
}

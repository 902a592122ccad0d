//! A data set of many recordings: what DuckDB, Spark, ClickHouse and `nestrace fleet report` answer to the questions in
//! `sql/` is what `nestrace analyze` says of each recording.

mod engine;
pub mod fleet;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::thread::{self, ScopedJoinHandle};
use std::time::Instant;

use anyhow::Context;
use nestrace_rig::recorder;
use serde_json::json;
use xtask::cargo_build::workspace;
use xtask::case::{Case, Report};

use super::Scenario;
use super::browser;
use super::context::LiveContext;
use super::export::{self, READERS};
use engine::ENGINES;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "data-set",
    about: "a data set of forty recordings in DuckDB, Spark, ClickHouse and nestrace-fleet: figures are those of analyze",
    run,
    alone: false,
};

const COMPARE: &str = include_str!("data_set/compare.py");
/// Makes a data set of several releases' files.
const MIXED: &str = include_str!("data_set/mixed.py");
/// What is asked of it: the columns of these are in files of all releases.
const OF_MIXED: [&str; 5] = [
    "worst_disks",
    "by_kind",
    "findings",
    "noisy_hosts",
    "recordings",
];
/// Tables that are kept for years: they have a folder for each host and day.
const KEPT: [&str; 4] = ["disks", "calls", "findings", "topology"];
/// The contract of reports.
const LARGEST_PAGE: usize = 5 << 20;
/// Plots of a fleet that was followed to the device.
const PLOTS: usize = 3;

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    browser::install(&ctx.progress)?;
    if ctx.wants("data-set/fixtures") {
        report.case("data-set/fixtures", |case| of_fixtures(ctx, case))?;
    }
    Ok(())
}

fn of_fixtures(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    // What takes longest to get ready does so beside the exports.
    let ready = thread::scope(|scope| {
        let engines = scope.spawn(|| engine::prepare(|line| ctx.progress.say(line)));
        let fleet = scope.spawn(|| {
            let begin = Instant::now();
            fleet::program(ctx).map(|program| (program, begin.elapsed()))
        });
        let folder = exported(ctx);
        joined(engines)?;
        anyhow::Ok((folder?, joined(fleet)?))
    })?;
    let (exported, (program, took)) = ready;
    case.figure(format!("nestrace-fleet was built in {took:.0?}"));
    let folder = exported.folder.path();
    let mixed = READERS.read(MIXED, folder)?;
    case.figure(format!("files of other releases: {mixed}"));
    let sets = json!({
        "together": folder.join("together"),
        "apart": folder.join("apart"),
        "mixed": folder.join("mixed"),
    });
    let answers = folder.join("answers");
    fs::create_dir(&answers)?;
    for engine in &ENGINES {
        let begin = Instant::now();
        let said = engine.ask(&sets, &json!({ "mixed": OF_MIXED }))?;
        fs::write(
            answers.join(format!("{}.json", engine.name)),
            serde_json::to_vec(&said)?,
        )?;
        case.figure(format!("{}: {:.0?}", engine.name, begin.elapsed()));
    }
    let begin = Instant::now();
    let ask = |set: &str, name: &str| -> anyhow::Result<()> {
        let report = fleet::report(&program, &folder.join(set), &["--format", "json"])?;
        Ok(fs::write(
            folder.join(format!("report-{name}.json")),
            report,
        )?)
    };
    for set in ["together", "apart", "mixed"] {
        ask(set, set)?;
    }
    damage(&folder.join("mixed"))?;
    ask("mixed", "damaged")?;
    case.figure(format!("nestrace fleet: {:.0?}", begin.elapsed()));
    page(case, &program, folder)?;
    let read = READERS.read(COMPARE, folder)?;
    for wrong in read["wrong"].as_array().into_iter().flatten().take(20) {
        case.holds("as analyze says", false, &wrong.to_string());
    }
    let number = |what: &str| read["checked"][what].as_u64().unwrap_or(0);
    for what in [
        "count",
        "sum",
        "percentile",
        "schema",
        "statistics",
        "question",
        "call",
        "engines",
        "report",
        "mixed",
        "damaged",
    ] {
        case.holds(what, number(what) > 0, "nothing was compared");
        case.figure(format!("{} of {what}", number(what)));
    }
    let engines = read["engines"].as_array().map_or(0, Vec::len);
    case.equal("engines", engines, ENGINES.len());
    let recordings = read["recordings"].as_u64().unwrap_or(0);
    case.equal("recordings", recordings, exported.n);
    case.holds("recordings", recordings >= 40, "fewer than forty");
    Ok(())
}

fn joined<T>(thread: ScopedJoinHandle<'_, anyhow::Result<T>>) -> anyhow::Result<T> {
    let early = |_| Err(anyhow::anyhow!("a thread ended early"));
    thread.join().unwrap_or_else(early)
}

/// A data set and what analyze says of each recording.
struct Exported {
    folder: tempfile::TempDir,
    n: u64,
}

fn exported(ctx: &LiveContext) -> anyhow::Result<Exported> {
    let folder = tempfile::tempdir().context("make a folder for the data set")?;
    let (set, analyses) = (
        folder.path().join("together"),
        folder.path().join("analyses"),
    );
    fs::create_dir(&analyses)?;
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
    apart(&set, &folder.path().join("apart"))?;
    let n = known.len() as u64;
    Ok(Exported { folder, n })
}

/// The same files as if each recording were of a host of its own, which is called as the recording.
fn apart(set: &Path, place: &Path) -> anyhow::Result<()> {
    for table in KEPT {
        for file in files_below(&set.join(table))? {
            let name = file.file_stem().context("name a file")?;
            let host = format!("host={}", name.to_string_lossy());
            let day = file.parent().and_then(Path::file_name);
            let day = day.context("name the day")?;
            let to = place.join(table).join(host).join(day);
            fs::create_dir_all(&to)?;
            fs::hard_link(&file, to.join(file.file_name().context("name a file")?))?;
        }
    }
    // Single requests are asked for in either; they stay where they are.
    for table in ["chains", "spans"] {
        symlink(set.join(table), place.join(table))?;
    }
    fs::copy(set.join("_nestrace.json"), place.join("_nestrace.json"))?;
    Ok(())
}

/// Adds a file that ends in its middle.
fn damage(set: &Path) -> anyhow::Result<()> {
    let table = set.join("disks");
    let whole = files_below(&table)?.into_iter().next();
    let bytes = fs::read(whole.context("find a file")?)?;
    let folder = table.join("host=damaged/date=2026-11-20");
    fs::create_dir_all(&folder)?;
    Ok(fs::write(
        folder.join("cut.parquet"),
        &bytes[..bytes.len() / 2],
    )?)
}

/// The files of a table that has a folder for each host and day.
fn files_below(table: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for host in fs::read_dir(table)? {
        for day in fs::read_dir(host?.path())? {
            for file in fs::read_dir(day?.path())? {
                files.push(file?.path());
            }
        }
    }
    Ok(files)
}

/// The page in a browser, at the width of a phone and of a screen.
fn page(case: &mut Case, program: &Path, folder: &Path) -> anyhow::Result<()> {
    let page = folder.join("report.html");
    let name = page.to_str().context("name the page")?;
    fleet::report(program, &folder.join("apart"), &["--report", name])?;
    let html = fs::read_to_string(&page).context("read the page")?;
    case.holds(
        "size",
        html.len() <= LARGEST_PAGE,
        &format!("{} bytes", html.len()),
    );
    let console = browser::console(&page, folder)?;
    case.holds("console", console.is_empty(), &console.join(" / "));
    for seen in browser::look(&html, folder)? {
        let what = format!("at {} px", seen.width);
        let n = seen.figures;
        case.holds(&what, n >= PLOTS, &format!("{n} plots, expected {PLOTS}"));
        case.holds(&what, seen.wrong.is_empty(), &seen.wrong.join("; "));
    }
    Ok(())
}

/// Every recording of the repository's fixtures for findings, guests' calls, and captures of blktrace.
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

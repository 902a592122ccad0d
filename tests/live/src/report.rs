//! The HTML report in a browser: a guest's, and one of a capture of blktrace, at the width of a phone
//! and of a screen.

use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder;
use xtask::cargo_build::workspace;
use xtask::case::{Case, Report};

use super::Scenario;
use super::browser;
use super::context::LiveContext;
use super::with_agents::recording::of_a_mixed_load;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "report",
    about: "the HTML report in a browser: a phone's width and a screen's, and data in every plot",
    run,
    alone: false,
};

/// The contract, whatever the recording's length.
const LARGEST: u64 = 5 << 20;
/// Of a guest that was followed to the device; five of them are single bios, or more are calls and bios.
const PLOTS_OF_A_GUEST: usize = 17;
/// Of a device alone: no QEMU, no guest, no amplification.
const PLOTS_OF_A_DEVICE: usize = 8;

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    browser::install(&ctx.progress)?;
    if ctx.wants("report/guest") {
        report.case("report/guest", |case| of_a_guest(ctx, case))?;
    }
    if ctx.wants("report/capture") {
        report.case("report/capture", |case| of_a_capture(ctx, case))?;
    }
    Ok(())
}

fn of_a_guest(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    of_a_mixed_load(ctx, "report", |bundle, _| {
        look(ctx, case, bundle, PLOTS_OF_A_GUEST)
    })
}

fn of_a_capture(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let captures = workspace().join("fixtures/blktrace");
    look(
        ctx,
        case,
        &captures.join("ext4-mail-none-scsi/gt"),
        PLOTS_OF_A_DEVICE,
    )
}

/// Makes the report and opens it.
fn look(ctx: &LiveContext, case: &mut Case, input: &Path, least: usize) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for the report")?;
    let page = folder.path().join("report.html");
    analyze(ctx, input, &page)?;
    let html = std::fs::read_to_string(&page).context("read the report")?;
    let size = html.len() as u64;
    case.figure(format!("{} KiB", size >> 10));
    case.holds("size", size <= LARGEST, &format!("{size} bytes"));
    for outside in ["http://", "https://", "<script", "@import", "url("] {
        let namespace = html.replace("http://www.w3.org/2000/svg", "");
        case.holds("needs nothing else", !namespace.contains(outside), outside);
    }
    let console = browser::console(&page, folder.path())?;
    case.holds("console", console.is_empty(), &console.join(" / "));
    for seen in browser::look(&html, folder.path())? {
        let what = format!("at {} px", seen.width);
        let n = seen.figures;
        case.holds(&what, n >= least, &format!("{n} plots, expected {least}"));
        case.holds(&what, seen.wrong.is_empty(), &seen.wrong.join("; "));
        case.figure(format!("{n} plots {what}"));
    }
    Ok(())
}

fn analyze(ctx: &LiveContext, input: &Path, page: &Path) -> anyhow::Result<()> {
    let name = |path: &Path| path.to_str().map(str::to_owned).context("name the files");
    let (input, page) = (name(input)?, name(page)?);
    let end = recorder::nestrace(&ctx.nestrace, &["analyze", &input, "--report", &page])
        .context("start nestrace analyze")?;
    anyhow::ensure!(end.code == Some(0), "make the report: {}", end.stderr);
    Ok(())
}

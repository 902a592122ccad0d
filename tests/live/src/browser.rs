//! Debian's chromium without a screen.

use std::path::Path;
use std::process::Command;

use anyhow::Context;
use nestrace_rig::external_tool::last_lines;
use nestrace_rig::packages;
use xtask::progress::Progress;

/// The page around the report, and what it looks at.
const HARNESS: &str = include_str!("harness.js");
/// Widths of the harness, a frame each.
const WIDTHS: [u32; 2] = [360, 1280];
/// Seconds for one start: a loaded machine is slow.
const PATIENCE: &str = "120";

/// What was seen at one width.
#[derive(Debug, serde::Deserialize)]
pub struct Seen {
    /// Pixels.
    pub width: u32,
    /// How many plots.
    pub figures: usize,
    /// What is wrong with it.
    pub wrong: Vec<String>,
}

/// Makes sure that there is one.
pub fn install(progress: &Progress) -> anyhow::Result<()> {
    packages::install_programs(&[("chromium", "chromium")], |line| progress.say(line))?;
    Ok(())
}

/// Opens a report by itself; what the browser complains of.
pub fn console(page: &Path, folder: &Path) -> anyhow::Result<Vec<String>> {
    let (_, stderr) = open(page, folder)?;
    let said = stderr.lines().filter(|line| line.contains("CONSOLE"));
    Ok(said.map(str::to_owned).collect())
}

/// Opens a report at each width and measures what is shown.
pub fn look(report: &str, folder: &Path) -> anyhow::Result<Vec<Seen>> {
    let report = report.replace('&', "&amp;").replace('"', "&quot;");
    let frame = |width: &u32| {
        format!(
            "<iframe id=at-{width} style=\"border:0;width:{width}px;height:900px\" srcdoc=\"{report}\"></iframe>"
        )
    };
    let frames: String = WIDTHS.iter().map(frame).collect();
    let harness = format!(
        "<!doctype html><meta charset=utf-8><pre id=seen></pre>{frames}<script>{HARNESS}</script>"
    );
    let page = folder.join("harness.html");
    std::fs::write(&page, harness).context("write the page around the report")?;
    let (html, stderr) = open(&page, folder)?;
    let seen = html
        .split_once("<pre id=\"seen\">")
        .and_then(|(_, rest)| rest.split_once("</pre>"))
        .map(|(seen, _)| seen)
        .filter(|seen| !seen.is_empty())
        .with_context(|| format!("look at the report: {}", last_lines(&stderr, 3)))?;
    let seen = seen
        .replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&amp;", "&");
    serde_json::from_str(&seen).context("read what was seen of the report")
}

/// The page as it is after loading, and what chromium said.
fn open(page: &Path, folder: &Path) -> anyhow::Result<(String, String)> {
    let profile = format!("--user-data-dir={}", folder.join("profile").display());
    let output = Command::new("timeout")
        .args([PATIENCE, "chromium", "--headless", "--no-sandbox"])
        .args(["--disable-gpu", "--enable-logging=stderr", "--dump-dom"])
        .args(["--virtual-time-budget=10000", &profile])
        .arg(format!("file://{}", page.display()))
        .output()
        .context("start chromium")?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    anyhow::ensure!(
        output.status.success(),
        "open {} in chromium ({}): {}",
        page.display(),
        output.status,
        last_lines(&stderr, 5)
    );
    Ok((String::from_utf8_lossy(&output.stdout).into_owned(), stderr))
}

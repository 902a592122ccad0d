//! The library in somebody else's program: `examples/embedding`, which is outside the workspace, is built and
//! says what `nestrace analyze` says.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;
use nestrace_rig::recorder;
use serde_json::Value;
use xtask::cargo_build::{cargo, workspace};
use xtask::case::{Case, Report};

use super::Scenario;
use super::context::LiveContext;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "embedding",
    about: "a program outside the workspace that uses the analyzer",
    run,
    alone: false,
};

const CAPTURE: &str = "fixtures/blktrace/ext4-mail-none-scsi/gt";
/// Where bundles lie.
const BUNDLES: [&str; 2] = ["fixtures/findings", "fixtures/guests"];

/// Every bundle and every capture of the repository.
fn recordings() -> anyhow::Result<Vec<PathBuf>> {
    let mut recordings = Vec::new();
    for folder in BUNDLES {
        let entries = workspace().join(folder).read_dir();
        for entry in entries.with_context(|| format!("list {folder}"))? {
            let path = entry?.path();
            recordings.extend((path.extension() == Some("nest".as_ref())).then_some(path));
        }
    }
    let captures = workspace().join("fixtures/blktrace").read_dir();
    for entry in captures.context("list the captures")? {
        let path = entry?.path().join("gt");
        recordings.extend(path.with_extension("blktrace.0").is_file().then_some(path));
    }
    anyhow::ensure!(
        recordings.len() > 30,
        "find the recordings of the repository"
    );
    recordings.sort();
    Ok(recordings)
}

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    if ctx.wants("embedding/p99-check") {
        report.case("embedding/p99-check", |case| p99_check(ctx, case))?;
    }
    Ok(())
}

fn p99_check(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let program = build()?;
    let capture = workspace().join(CAPTURE);
    let recordings = recordings()?;
    // All of them take minutes.
    let step = if ctx.full { 1 } else { 6 };
    let recordings: Vec<_> = recordings.iter().step_by(step).collect();
    for recording in &recordings {
        let ours = recorder::analyze(&ctx.nestrace, recording)?;
        let (code, said) = start(&program, recording, "--json")?;
        let theirs: Value = serde_json::from_str(&said).context("read what p99-check said")?;
        let what = recording.display().to_string();
        case.equal(&format!("exit with {what}"), code, 0);
        let same = ours == theirs && !ours["devices"].is_null();
        case.holds(&what, same, "not what nestrace analyze says");
    }
    case.figure(format!("{} recordings", recordings.len()));
    for (limit_ms, expected) in [("1000000", 0), ("0.000001", 2)] {
        let (code, said) = start(&program, &capture, limit_ms)?;
        case.equal(&format!("exit with {limit_ms} ms"), code, expected);
        case.holds("a line for the disk", said.contains("99 %"), &said);
    }
    let (code, _) = start(&program, Path::new("/nowhere/gt"), "1")?;
    case.equal("exit without a capture", code, 3);
    Ok(())
}

/// Builds it where the workspace is built: most of what it needs is there already.
fn build() -> anyhow::Result<PathBuf> {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    let target = target.unwrap_or_else(|| workspace().join("target"));
    let status = cargo()
        .args(["build", "--quiet", "--locked", "--manifest-path"])
        .arg("examples/embedding/Cargo.toml")
        .arg("--target-dir")
        .arg(&target)
        .stdout(Stdio::null())
        .status()
        .context("start cargo")?;
    anyhow::ensure!(status.success(), "build examples/embedding");
    Ok(target.join("debug/p99-check"))
}

fn start(program: &Path, capture: &Path, how: &str) -> anyhow::Result<(i32, String)> {
    let output = Command::new(program)
        .arg(capture)
        .arg(how)
        .output()
        .context("start p99-check")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    Ok((output.status.code().unwrap_or(-1), said))
}

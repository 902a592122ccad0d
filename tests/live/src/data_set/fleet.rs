//! `nestrace-fleet`, which is outside the workspace.

use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::Context;
use nestrace_rig::recorder;
use xtask::cargo_build::{cargo, workspace};

use crate::context::LiveContext;

const MANIFEST: &str = "crates/nestrace-fleet/Cargo.toml";
const WARNINGS: [&str; 4] = ["--all-targets", "--", "-D", "warnings"];

/// Where it is built.
fn target() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| workspace().join("target"))
}

/// Runs its own tests, and clippy where everything is run: what only looks at the engine's code compiles it once more.
pub fn test(full: bool) -> anyhow::Result<()> {
    run("test", &[])?;
    if full {
        run("clippy", &WARNINGS)?;
    }
    Ok(())
}

/// The one beside the nestrace that is tested, or a fresh build.
pub fn program(ctx: &LiveContext) -> anyhow::Result<PathBuf> {
    let beside = ctx.nestrace.with_file_name("nestrace-fleet");
    if beside.is_file() && !ctx.nestrace.starts_with(target()) {
        return Ok(beside);
    }
    run("build", &[])?;
    Ok(target().join("fleet/debug/nestrace-fleet"))
}

fn run(command: &str, more: &[&str]) -> anyhow::Result<()> {
    let status = cargo()
        .args([command, "--quiet", "--locked", "--manifest-path", MANIFEST])
        // In a folder of its own, so that it does not wait for other builds.
        .arg("--target-dir")
        .arg(target().join("fleet"))
        .args(more)
        .stdout(Stdio::null())
        .status()
        .context("start cargo")?;
    anyhow::ensure!(status.success(), "cargo {command} of {MANIFEST}");
    Ok(())
}

/// What `nestrace-fleet report` prints.
pub fn report(program: &Path, set: &Path, more: &[&str]) -> anyhow::Result<String> {
    let set = set.to_str().context("name the data set")?;
    let end = recorder::nestrace(program, &[&["report", set], more].concat())
        .context("start nestrace-fleet")?;
    anyhow::ensure!(end.code == Some(0), "report of {set}: {}", end.stderr);
    Ok(end.stdout)
}

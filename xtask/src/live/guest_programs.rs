//! Our own programs for guests, built without shared libraries.

use std::path::PathBuf;
use std::process::Stdio;

use anyhow::{Context, bail};

use crate::cargo_build::{cargo, workspace};

const TARGET: &str = "x86_64-unknown-linux-gnu";
/// A target folder of its own: other flags would make cargo build everything again and again.
const FOLDER: &str = "target/guest";

/// The agent.
pub fn agent() -> anyhow::Result<PathBuf> {
    let program = "nestrace-agent";
    Ok(build(program, &["--bin", program])?.join(program))
}

/// The program that writes stamped blocks.
pub fn stamp_writer() -> anyhow::Result<PathBuf> {
    let program = "stamp-writer";
    Ok(build("nestrace-lab", &["--bin", program])?.join(program))
}

/// The agent that means no good.
pub fn hostile_agent() -> anyhow::Result<PathBuf> {
    let program = "hostile-agent";
    let folder = build("nestrace-agent", &["--example", program])?;
    Ok(folder.join("examples").join(program))
}

/// Builds a target of a package so that it runs in any x86-64 Linux guest; the folder with programs.
fn build(package: &str, target: &[&str]) -> anyhow::Result<PathBuf> {
    let folder = workspace().join(FOLDER);
    let status = cargo()
        .args(["build", "--quiet", "--target", TARGET])
        .args(["--package", package])
        .args(target)
        .env("CARGO_TARGET_DIR", &folder)
        .env("RUSTFLAGS", "-C target-feature=+crt-static")
        // A guest holds it in memory.
        .env("CARGO_PROFILE_DEV_STRIP", "symbols")
        .stdout(Stdio::null())
        .status()
        .context("start cargo")?;
    if !status.success() {
        bail!("build {} of {package} for guests", target.join(" "));
    }
    Ok(folder.join(TARGET).join("debug"))
}

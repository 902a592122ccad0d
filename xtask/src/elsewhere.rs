//! Chores that are programs of their own: `test`, `fixtures` and `vm newest` are `tests/live`, `bench` is `benches`.
//!
//! They need the analyzer; what is left here is built without it.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use xtask::cargo_build;

const LIVE: &str = "nestrace-live";
const BENCHES: &str = "nestrace-benches";

/// Arguments that the other program reads.
#[derive(clap::Args)]
pub struct Passed {
    /// Its options: --help says which
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    args: Vec<OsString>,
}

/// `cargo xtask test`.
pub fn test(passed: &Passed) -> anyhow::Result<ExitCode> {
    hand_over(LIVE, "test", &passed.args)
}

/// `cargo xtask fixtures`.
pub fn fixtures(passed: &Passed) -> anyhow::Result<ExitCode> {
    hand_over(LIVE, "fixtures", &passed.args)
}

/// `cargo xtask vm newest`.
pub fn newest_kernel() -> anyhow::Result<ExitCode> {
    hand_over(LIVE, "newest-kernel", &[])
}

/// `cargo xtask bench`.
pub fn bench(passed: &Passed) -> anyhow::Result<ExitCode> {
    hand_over(BENCHES, "bench", &passed.args)
}

/// Has a nestrace that counts what it runs through do what it does most; its counts go to a folder.
pub fn train(nestrace: &Path, counts: &Path) -> anyhow::Result<()> {
    let status = Command::new(cargo_build::build_shared(BENCHES)?)
        .arg("train")
        .args([nestrace, counts])
        .status()
        .context("start the benches")?;
    anyhow::ensure!(status.success(), "run the program that counts");
    Ok(())
}

/// Builds a program and becomes it: its exit code and signals are ours.
fn hand_over(program: &str, chore: &str, args: &[OsString]) -> anyhow::Result<ExitCode> {
    let path = cargo_build::build_shared(program)?;
    let error = Command::new(&path).arg(chore).args(args).exec();
    Err(error).with_context(|| format!("start {}", path.display()))
}

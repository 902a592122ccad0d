//! Slot.

use std::process::ExitCode;

/// Options.
#[derive(clap::Args)]
pub struct BenchArgs {}

/// Runs it.
pub fn run(_args: &BenchArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("run bench: it is not there yet")
}

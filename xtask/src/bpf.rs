//! Slot.

use std::process::ExitCode;

/// Options.
#[derive(clap::Args)]
pub struct BpfArgs {}

/// Runs it.
pub fn run(_args: &BpfArgs) -> anyhow::Result<ExitCode> {
    anyhow::bail!("run bpf: it is not there yet")
}

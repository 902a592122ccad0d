//! `nestrace-lab`, which `nestrace lab` starts: plans of experiments, shown, run and reported.

mod command;

use std::process::ExitCode;

use clap::Parser;
use nestrace_cli::exit;
use nestrace_cli::lab::LabCommand;

/// Run experiments on nested file systems: guests, host file systems and workloads from one plan.
#[derive(Debug, Parser)]
#[command(name = "nestrace-lab", bin_name = "nestrace lab", version)]
struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: LabCommand,
}

fn main() -> ExitCode {
    exit::run(|cli: Cli| command::run(&cli.command))
}

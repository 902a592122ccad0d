//! `nestrace-fleet`, which `nestrace fleet` starts: what many recordings in one Parquet data set say together.
//!
//! [`data_set`] finds the files, [`gathered`] reads each once into [`temporary`] ones, [`scan`] gives their rows to the
//! engine, [`questions`] asks it what `sql/` asks other engines, and `nestrace-report`'s `fleet` shows the answers. The
//! engine is DataFusion; no other program of nestrace has it.

mod command;
mod data_set;
mod engine;
mod file;
mod gathered;
mod joins;
mod questions;
mod scan;
mod shared;
mod tables;
mod temporary;

use std::process::ExitCode;

use clap::Parser;
use nestrace_cli::exit;
use nestrace_cli::fleet::FleetCommand;

/// Ask many recordings at once, from one data set.
#[derive(Debug, Parser)]
#[command(name = "nestrace-fleet", bin_name = "nestrace fleet", version)]
struct Cli {
    /// What to do.
    #[command(subcommand)]
    command: FleetCommand,
}

fn main() -> ExitCode {
    exit::run(|cli: Cli| command::run(&cli.command))
}

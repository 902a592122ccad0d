//! The command line of `nestrace fleet`. The program `nestrace-fleet` reads it; `nestrace` has it for its help, its
//! completions and its man pages.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

/// `nestrace fleet`.
#[derive(Debug, Args)]
pub struct FleetArgs {
    /// The command.
    #[command(subcommand)]
    pub command: FleetCommand,
}

/// What can be done with many recordings.
#[derive(Debug, Subcommand)]
pub enum FleetCommand {
    /// Show what many recordings say together: the worst disks, outliers among their peers, what changed, what would help
    /// most.
    ///
    /// The data set is a folder that `nestrace export --format parquet` wrote, with any number of recordings of any number
    /// of hosts. The questions are those of sql/, which other engines can be asked, too.
    Report(FleetReportArgs),
}

/// `nestrace fleet report`.
#[derive(Debug, Args)]
pub struct FleetReportArgs {
    /// Folder of a data set: what `nestrace export --format parquet` wrote.
    #[arg(value_name = "DATASET")]
    pub data_set: PathBuf,
    /// How to print it.
    #[arg(long, value_enum, default_value = "text")]
    pub format: FleetFormat,
    /// Also write one HTML page.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// What sorts, groups and joins may hold, in MiB; they use temporary files beyond.
    #[arg(long, value_name = "MIB", default_value_t = 512, value_parser = clap::value_parser!(u32).range(64..))]
    pub memory: u32,
    /// Replace a file that is not a report of nestrace.
    #[arg(long)]
    pub force: bool,
}

/// Forms of the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FleetFormat {
    /// For people.
    Text,
    /// For scripts.
    Json,
}

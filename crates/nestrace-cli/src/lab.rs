//! The command line of the lab. The program `nestrace-lab` reads it; `nestrace` has it for its help, its completions and its
//! man pages.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `nestrace lab`.
#[derive(Debug, Args)]
pub struct LabArgs {
    /// The command.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The parts of the lab.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Show what a plan would run, how long it takes and how much space it needs.
    Plan(LabPlanArgs),
    /// Run a plan, or continue it (needs root).
    ///
    /// The parts of the guests (kernel, programs, databases) are kept in $XDG_CACHE_HOME/nestrace or
    /// ~/.cache/nestrace. You may delete that folder.
    Run(LabRunArgs),
    /// Compare the results, and write report.html, report.json and report.csv beside them.
    Report(LabReportArgs),
}

/// `nestrace lab plan`.
#[derive(Debug, Args)]
pub struct LabPlanArgs {
    /// A file, or a plan that comes with nestrace: quick, fast12, fast12-macro, raw-qcow2,
    /// ext3-ext4, image-format-cache-bus, ext4-xfs, reiserfs-jfs.
    #[arg(value_name = "PLAN.toml")]
    pub plan: PathBuf,
    /// A folder of results: show what is finished there and what would still run.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Install the missing Debian packages (needs root).
    #[arg(long)]
    pub install: bool,
}

/// `nestrace lab run`.
#[derive(Debug, Args)]
pub struct LabRunArgs {
    /// A file, or a plan that comes with nestrace.
    #[arg(value_name = "PLAN.toml")]
    pub plan: PathBuf,
    /// Folder for the results, and for devices and images during the run [default: lab-NAME].
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Install the Debian packages that are missing.
    #[arg(long)]
    pub install: bool,
    /// Run this cell and its baseline, and leave the others open. Repeat it for several; `lab plan` lists the names.
    #[arg(long, value_name = "CELL")]
    pub only: Vec<String>,
    /// Use this device that the plan names under `[host]`. Everything on it is lost. Repeat it for each device.
    #[arg(long, value_name = "DEV")]
    pub i_know_this_erases: Vec<PathBuf>,
    /// Take the host's role inside a guest, as the outer lab asked.
    #[arg(long, hide = true)]
    pub inside_guest: bool,
}

/// `nestrace lab report`.
#[derive(Debug, Args)]
pub struct LabReportArgs {
    /// Folder that `lab run` wrote, finished or not.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

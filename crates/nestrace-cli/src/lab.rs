//! The command line of the lab. The program `nestrace-lab` reads it; `nestrace` has it for its help, its completions and its
//! man pages.

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// `nestrace lab`.
#[derive(Debug, Args)]
pub struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// The parts of the lab.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Show what a plan would run, how long it takes and how much room it needs.
    Plan(LabPlanArgs),
    /// Run a plan, or go on with it; needs root.
    ///
    /// What guests are made of (kernel, programs, databases) is kept in $XDG_CACHE_HOME/nestrace or
    /// ~/.cache/nestrace, which may be deleted.
    Run(LabRunArgs),
    /// Compare what was run, and write report.html, report.json and report.csv beside it.
    Report(LabReportArgs),
}

/// `nestrace lab plan`.
#[derive(Debug, Args)]
pub struct LabPlanArgs {
    /// A file, or a plan that comes with nestrace: quick, fast12, fast12-macro, raw-qcow2,
    /// ext3-ext4, image-format-cache-bus, ext4-xfs, reiserfs-jfs.
    #[arg(value_name = "PLAN.toml")]
    pub plan: PathBuf,
    /// A folder of results: say what of the plan is finished there, and what would still run.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Install the Debian packages that running it needs and that are missing; needs root.
    #[arg(long)]
    pub install: bool,
}

/// `nestrace lab run`.
#[derive(Debug, Args)]
pub struct LabRunArgs {
    /// A file, or a plan that comes with nestrace.
    #[arg(value_name = "PLAN.toml")]
    pub plan: PathBuf,
    /// Folder of results, and of devices and images while it runs [default: lab-NAME].
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,
    /// Install the Debian packages that are missing.
    #[arg(long)]
    pub install: bool,
    /// Use a device that the plan names under `[host]`: everything on it is lost. Once for each of them.
    #[arg(long, value_name = "DEV")]
    pub i_know_this_erases: Vec<PathBuf>,
    /// Take the host's role inside a guest, as the lab outside it asked for.
    #[arg(long, hide = true)]
    pub inside_guest: bool,
}

/// `nestrace lab report`.
#[derive(Debug, Args)]
pub struct LabReportArgs {
    /// What `lab run` filled, finished or not.
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

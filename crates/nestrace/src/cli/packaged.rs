//! Arguments of what a package installs beside the command: completions and man pages.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

/// `nestrace completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell.
    pub shell: Shell,
}

/// `nestrace man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The command to print the page of, such as record or lab run.
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub command: Vec<String>,
    /// Write all pages (nestrace.1, nestrace-record.1, …) into this folder. It is created if needed.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

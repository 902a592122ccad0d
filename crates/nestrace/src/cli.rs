//! The command line: one definition gives parsing, help, completions and the man page.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

/// Traces and explains the I/O of a virtual machine's disks through every layer of the host.
#[derive(Debug, Parser)]
#[command(name = "nestrace", version, about, after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Typical use, as root:
  nestrace guests                                     what runs here
  nestrace record --guest vm1 --duration 10 -o slow.nest
  nestrace analyze slow.nest

Exit codes: 0 done, 1 unexpected failure, 2 usage, 3 bad or missing input,
4 missing privilege, kernel feature or package, 5 done but events were lost (--strict).";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show running guests, their disks, images, host file systems and the devices beneath.
    Guests(GuestsArgs),
    /// Show what this kernel and user allow, what each lack costs, and how to get it.
    Doctor(DoctorArgs),
    /// Record the I/O path of guests (or devices) on this host; needs root.
    Record(RecordArgs),
    /// Explain a recording.
    Analyze(AnalyzeArgs),
    /// Print a shell's completion script.
    Completions(CompletionsArgs),
    /// Print the man page (roff).
    Man,
}

/// `nestrace guests`.
#[derive(Debug, Args)]
pub struct GuestsArgs {
    /// Machine-readable output.
    #[arg(long)]
    pub json: bool,
}

/// `nestrace doctor`.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// Machine-readable output.
    #[arg(long)]
    pub json: bool,
}

/// How much is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum DetailArg {
    /// Every event of every layer.
    Full,
    /// One record per completed request, and file I/O: costs least.
    Light,
}

/// `--qemu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QemuArg {
    /// Probe QEMU's block layer where its functions can be found.
    Auto,
    /// Leave QEMU alone; its file I/O stands for it.
    Off,
}

/// `nestrace record`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true).args(["guest", "device"]))]
pub struct RecordArgs {
    /// Guest to record: QEMU's -name (libvirt's domain name), its UUID, or pid:N. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,
    /// Block device of the host to record, with or without a guest: loop0, /dev/sda. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub device: Vec<String>,
    /// The bundle to write, a directory NAME.nest.
    #[arg(short, long, value_name = "OUT.nest")]
    pub output: PathBuf,
    /// Replace a bundle of that name.
    #[arg(long)]
    pub force: bool,
    /// Stop after so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<f64>,
    /// How much to record.
    #[arg(long, value_enum, default_value = "full")]
    pub detail: DetailArg,
    /// Whether to probe QEMU itself.
    #[arg(long, value_enum, default_value = "auto")]
    pub qemu: QemuArg,
    /// Stop when the stream has this size (K, M, G, T for powers of 1024).
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Memory for events of one processor that wait to be read; a power of two from 4K.
    #[arg(long, value_name = "SIZE", value_parser = ring_size)]
    pub ring_size: Option<u32>,
    /// Exit with 5 if any event was lost.
    #[arg(long)]
    pub strict: bool,
    /// Start this command once everything is live, and stop when it ends.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// For a person.
    Text,
    /// For a program; the keys are stable.
    Json,
}

/// `nestrace analyze`.
#[derive(Debug, Args)]
pub struct AnalyzeArgs {
    /// A bundle.
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: FormatArg,
    /// Only this guest's disks.
    #[arg(long, value_name = "NAME")]
    pub guest: Option<String>,
    /// Only this device.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Only from this time after the start (seconds).
    #[arg(long, value_name = "T", value_parser = seconds)]
    pub from: Option<f64>,
    /// Only up to this time after the start (seconds).
    #[arg(long, value_name = "T", value_parser = seconds)]
    pub to: Option<f64>,
    /// Exit with 5 if any event was lost.
    #[arg(long)]
    pub strict: bool,
}

/// `nestrace completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Which shell.
    pub shell: Shell,
}

fn seconds(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('s').unwrap_or(text);
    match number.parse::<f64>() {
        Ok(value) if (0.0..=1e9).contains(&value) => Ok(value),
        _ => Err("give seconds, such as 10 or 2.5".to_owned()),
    }
}

fn size(text: &str) -> Result<u64, String> {
    let wrong = || "give a size such as 500M or 2G".to_owned();
    let text = text.trim_end_matches("iB").trim_end_matches('B');
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text
        .get(digits.len()..)
        .unwrap_or_default()
        .to_ascii_uppercase()
        .as_str()
    {
        "" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return Err(wrong()),
    };
    let number: u64 = digits.parse().map_err(|_| wrong())?;
    number
        .checked_mul(1 << shift)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(wrong)
}

fn ring_size(text: &str) -> Result<u32, String> {
    let bytes = size(text)?;
    u32::try_from(bytes)
        .ok()
        .filter(|bytes| bytes.is_power_of_two() && (4096..=1 << 30).contains(bytes))
        .ok_or_else(|| "give a power of two from 4K to 1G".to_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_and_times_are_read_or_refused() {
        for (text, expected) in [
            ("4096", Some(4096)),
            ("4K", Some(4096)),
            ("2MiB", Some(2 << 20)),
            ("1GB", Some(1 << 30)),
            ("0", None),
            ("", None),
            ("x", None),
            ("1Q", None),
            ("99999999999T", None),
        ] {
            assert_eq!(size(text).ok(), expected, "{text}");
        }
        assert_eq!(
            (
                ring_size("4K").ok(),
                ring_size("5000").ok(),
                ring_size("2K").ok()
            ),
            (Some(4096), None, None)
        );
        assert_eq!((seconds("2.5"), seconds("3s")), (Ok(2.5), Ok(3.0)));
        assert!(
            ["-1", "nan", "inf", "x", ""]
                .iter()
                .all(|text| seconds(text).is_err())
        );
    }
}

//! The command line: one definition gives parsing, help, completions and the man page.

mod values;

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use nestrace_cli::lab::LabArgs;
use nestrace_record::agent_address::Choice;

use values::{interval, ring_size, seconds, size, stories};

/// Traces and explains the I/O of a virtual machine's disks through every layer of the host.
#[derive(Debug, Parser)]
#[command(name = "nestrace", version, about, after_help = AFTER_HELP)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Typical use:
  sudo nestrace guests                                what runs here
  sudo nestrace record --guest vm1                    until Ctrl-C, into vm1-DATE-TIME.nest
  nestrace analyze                                    the newest recording here

Exit codes: 0 done, 1 unexpected failure, 2 usage, 3 bad or missing input,
4 missing privilege, kernel feature or package, 5 done but the recording is not whole:
events were lost, or it is cut or was not closed (--strict).";

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
    /// Show two recordings side by side: what differs, by how much, and how sure that is.
    Compare(CompareArgs),
    /// Write a recording in the format of other tools.
    Export(ExportArgs),
    /// Make a bundle of what was recorded inside a guest by other means, with a recording of its host if there is one.
    Import(ImportArgs),
    /// Write a clean bundle from a damaged one, with everything that is whole.
    Repair(RepairArgs),
    /// Run experiments on nested file systems: guests, host file systems and workloads from one plan.
    Lab(LabArgs),
    /// Print a shell's completion script.
    Completions(CompletionsArgs),
    /// Print the man page (roff), or that of a command.
    Man(ManArgs),
}

/// `nestrace guests`.
#[derive(Debug, Args)]
pub struct GuestsArgs {
    /// Say for each guest how it gets the channel over which its agent is heard.
    #[arg(long, conflicts_with = "json")]
    pub how: bool,
    /// Only these guests: name, UUID or pid:N. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,
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
pub struct RecordArgs {
    /// Guest to record: QEMU's -name (libvirt's domain name), its UUID, or pid:N. May be repeated. Without this and
    /// without --device: the guest that runs, if there is only one.
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,
    /// Block device of the host to record, with or without a guest: loop0, /dev/sda. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub device: Vec<String>,
    /// The bundle to write, a directory NAME.nest. Without it: what is recorded and when, in the current folder
    /// (vm1-2026-11-26-150301.nest).
    #[arg(short, long, value_name = "OUT.nest")]
    pub output: Option<PathBuf>,
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
    /// Debug symbols of a QEMU that exports no functions: a file of the same build. Those in /usr/lib/debug are found
    /// without this.
    #[arg(long, value_name = "FILE")]
    pub qemu_debug: Option<PathBuf>,
    /// How the agents in the guests are reached: the channel that each guest has (auto), none (off),
    /// or for a single guest unix:PATH or vsock:CID:PORT.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = clap::value_parser!(Choice))]
    pub agent: Choice,
    /// Stop when the streams have this size (K, M, G, T for powers of 1024).
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Memory for events of one processor that wait to be read; a power of two from 4K.
    #[arg(long, value_name = "SIZE", value_parser = ring_size)]
    pub ring_size: Option<u32>,
    /// Exit with 5 if any event was lost, or the recording is cut or was not closed.
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
    /// The block layer alone, as btt -A prints it.
    Btt,
}

/// `nestrace analyze`.
#[derive(Debug, Args)]
pub struct AnalyzeArgs {
    /// A bundle, or what blktrace wrote: a base name as for blkparse -i, one file, or a dump of blkparse -d. Without it:
    /// the newest recording in the current folder.
    #[arg(value_name = "INPUT")]
    pub input: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: FormatArg,
    /// Also write a report with plots: one HTML file that needs nothing else.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Also write each plot to this folder, as SVG and PNG, with its data as CSV.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Replace a report or plots that are not nestrace's, and files of --per-io and --iostat.
    #[arg(long)]
    pub force: bool,
    /// Only this guest's disks.
    #[arg(long, value_name = "NAME")]
    pub guest: Option<String>,
    /// Only this device, by its name or MAJ:MIN: of the host, or a guest's disk by its name in the guest or in
    /// QEMU (with --format btt, which knows nothing of QEMU, in the guest). A capture has numbers only.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Only from this time after the start (seconds).
    #[arg(long, value_name = "T", value_parser = seconds)]
    pub from: Option<f64>,
    /// Only up to this time after the start (seconds).
    #[arg(long, value_name = "T", value_parser = seconds)]
    pub to: Option<f64>,
    /// Tell the whole story of one guest bio: the N-th of its disk, from 1, in the order in which the
    /// guest queued them. With several disks, choose one with --guest and --device.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "slowest")]
    pub io: Option<u64>,
    /// Tell the whole story of the N guest bios that took longest.
    #[arg(long, value_name = "N", value_parser = stories)]
    pub slowest: Option<usize>,
    /// With --format btt: write every I/O with its steps to this file (btt -p).
    #[arg(long, value_name = "FILE")]
    pub per_io: Option<PathBuf>,
    /// With --format btt: write a table like that of iostat -x to this file (btt -I).
    #[arg(long, value_name = "FILE")]
    pub iostat: Option<PathBuf>,
    /// With --iostat: seconds of a row of that table.
    #[arg(long, value_name = "SECONDS", value_parser = interval, default_value = "1", requires = "iostat")]
    pub interval: f64,
    /// Exit with 5 if any event was lost, or the recording is cut or was not closed.
    #[arg(long)]
    pub strict: bool,
}

impl AnalyzeArgs {
    /// The input; where none was typed, [`crate::newest_recordings`] puts it there first.
    pub fn input(&self) -> &Path {
        self.input.as_deref().unwrap_or(Path::new("."))
    }

    /// All of an input, nothing beside the result.
    pub fn of(input: PathBuf) -> Self {
        Self {
            input: Some(input),
            format: FormatArg::Text,
            report: None,
            plots: None,
            force: false,
            guest: None,
            device: None,
            from: None,
            to: None,
            io: None,
            slowest: None,
            per_io: None,
            iostat: None,
            interval: 1.0,
            strict: false,
        }
    }
}

/// `nestrace compare --format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CompareFormat {
    /// For a person.
    Text,
    /// For a program; the keys are stable.
    Json,
}

/// `nestrace compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// The recording that the other is held against: a bundle, or what blktrace wrote. Without A and B: the two newest
    /// recordings in the current folder.
    #[arg(value_name = "A", requires = "b")]
    pub a: Option<PathBuf>,
    /// The other recording.
    #[arg(value_name = "B")]
    pub b: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: CompareFormat,
    /// Also write a report with overlaid curves: one HTML file that needs nothing else.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Replace a report that is not nestrace's.
    #[arg(long)]
    pub force: bool,
    /// Exit with 5 if any event of either was lost, or one is cut or was not closed.
    #[arg(long)]
    pub strict: bool,
}

/// `nestrace export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// What to write.
    #[arg(long, value_enum)]
    pub format: ExportFormat,
    /// A bundle; for parquet also what blktrace wrote.
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// Where to; of formats with several files, what their names begin with.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// blktrace and fio: what was recorded inside this guest instead of on the host; csv and perfetto:
    /// only this guest's part.
    #[arg(long, value_name = "NAME")]
    pub guest: Option<String>,
    /// Only this device, by its name or MAJ:MIN. May be repeated. Not for parquet.
    #[arg(long, value_name = "NAME")]
    pub device: Vec<String>,
    /// Give devices numbers of SCSI disks: btt takes majors 9, 253 and 254 (virtio) for device-mapper.
    #[arg(long)]
    pub for_btt: bool,
    /// Leave out the names of processes, files, guests and machines, serial numbers, addresses and times of day, for sending the result to someone.
    #[arg(long)]
    pub redact: bool,
    /// Replace files of that name.
    #[arg(long)]
    pub force: bool,
}

/// `nestrace export --format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Files that blkparse and btt read.
    Blktrace,
    /// Tables: OUT.requests.csv and, where a guest was recorded from inside, OUT.chains.csv.
    Csv,
    /// A log for each device that fio replays: OUT.DEVICE.iolog.
    Fio,
    /// A trace for Perfetto's UI: every layer a track, chains as arrows from layer to layer.
    Perfetto,
    /// A data set for DuckDB, pyarrow and what a fleet queries with: a folder of Parquet files by host, guest and day.
    Parquet,
}

/// `nestrace import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// What was recorded.
    #[command(subcommand)]
    pub command: ImportCommand,
}

/// The kinds of captures.
#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// A capture of blktrace, from any kernel since 2.6.17 (files BASENAME.blktrace.0, …).
    Blktrace {
        /// Name of the capture as for blkparse -i; several for several disks of one guest.
        #[arg(value_name = "BASENAME", required = true)]
        basename: Vec<PathBuf>,
        #[command(flatten)]
        into: ImportInto,
    },
    /// A bundle that nestrace-agent --output wrote inside the guest.
    Guest {
        /// The bundle.
        #[arg(value_name = "GUEST.nest")]
        bundle: PathBuf,
        #[command(flatten)]
        into: ImportInto,
    },
}

/// Where an import goes.
#[derive(Debug, Args)]
pub struct ImportInto {
    /// The bundle to write, a directory NAME.nest.
    #[arg(short, long, value_name = "OUT.nest")]
    pub output: PathBuf,
    /// The recording of the host at the same time; it is copied, not changed.
    #[arg(long, value_name = "HOST.nest")]
    pub guest_of: Option<PathBuf>,
    /// Which guest of that recording it is; needed where there are several. Without --guest-of: what to call the
    /// guest [default: guest].
    #[arg(long, value_name = "NAME")]
    pub guest: Option<String>,
    /// Replace a bundle of that name.
    #[arg(long)]
    pub force: bool,
}

/// `nestrace repair`.
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// The damaged bundle; it stays as it is.
    #[arg(value_name = "DAMAGED.nest")]
    pub input: PathBuf,
    /// The bundle to write, a directory NAME.nest.
    #[arg(short, long, value_name = "OUT.nest")]
    pub output: PathBuf,
    /// Take out the names of processes, files, guests and machines, serial numbers, addresses and times of day, for sending the bundle to someone.
    #[arg(long)]
    pub redact: bool,
    /// Replace a bundle of that name.
    #[arg(long)]
    pub force: bool,
}

/// `nestrace completions`.
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// Which shell.
    pub shell: Shell,
}

/// `nestrace man`.
#[derive(Debug, Args)]
pub struct ManArgs {
    /// The page of this command: record, or lab run.
    #[arg(value_name = "COMMAND", conflicts_with = "dir")]
    pub command: Vec<String>,
    /// Write all pages into this folder, which is made if it is not there: nestrace.1, nestrace-record.1, …
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }
}

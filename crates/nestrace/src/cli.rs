//! The command line: one definition gives parsing, help, completions and the man page.

mod flight;
mod packaged;
mod values;

use std::path::{Path, PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum};
use nestrace_cli::fleet::FleetArgs;
use nestrace_cli::lab::LabArgs;
use nestrace_record::agent_address::Choice;

use crate::listen::Listen;

pub use flight::FlightArgs;
pub use packaged::{CompletionsArgs, ManArgs};
use values::{interval, ring_size, seconds, seconds_from, size, stories};

/// Trace the disk I/O of a virtual machine through every layer of the host, and explain where the time goes.
#[derive(Debug, Parser)]
#[command(name = "nestrace", version, about, after_help = AFTER_HELP)]
pub struct Cli {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

const AFTER_HELP: &str = "\
Typical use:
  sudo nestrace guests                                what runs here
  sudo nestrace record --guest vm1                    until Ctrl-C, into vm1-DATE-TIME.nest
  nestrace analyze                                    the newest recording here

Exit codes: 0 done, 1 unexpected failure, 2 usage, 3 bad or missing input,
4 missing privilege, kernel feature or package, 5 (with --strict) done, but events were
lost, or the recording is cut or was not closed.";

/// The subcommands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show running guests with their disks, images, host file systems and devices.
    Guests(GuestsArgs),
    /// Show what the disks of guests wait for now, since when, and what holds them.
    Stuck(StuckArgs),
    /// Show what the disks of guests and the devices of this host do now: rates and latencies, layer by layer (needs root).
    Top(TopArgs),
    /// Serve the figures of top to Prometheus, on this machine alone (needs root).
    Serve(ServeArgs),
    /// Show what this kernel and user allow, what is missing, and how to get it.
    Doctor(DoctorArgs),
    /// Record the I/O of guests or devices on this host (needs root).
    Record(RecordArgs),
    /// Explain a recording: where the time goes, what costs too much, what to change.
    Analyze(AnalyzeArgs),
    /// Compare two recordings: what differs, by how much, and how certain that is.
    Compare(CompareArgs),
    /// Write a recording in the format of another tool.
    Export(ExportArgs),
    /// Make a bundle from a capture of blktrace, or from a recording that the agent wrote to a file.
    Import(ImportArgs),
    /// Write a clean bundle with everything that can be read from a damaged one.
    Repair(RepairArgs),
    /// Run experiments on nested file systems, from one plan.
    Lab(LabArgs),
    /// Ask many recordings at once, from one data set.
    Fleet(FleetArgs),
    /// Print the JSON Schema of what a command prints.
    #[cfg(feature = "schema")]
    Schema(crate::schema::SchemaArgs),
    /// Print the completion script for a shell.
    Completions(CompletionsArgs),
    /// Print the man page (roff) of nestrace or of one command.
    Man(ManArgs),
}

/// `nestrace guests`.
#[derive(Debug, Args)]
pub struct GuestsArgs {
    /// Show how to give each guest the channel that its agent needs.
    #[arg(long, conflicts_with = "json")]
    pub how: bool,
    /// Only these guests: name, UUID or pid:N. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,
    /// Machine-readable output.
    #[arg(long)]
    pub json: bool,
}

/// `nestrace stuck`.
#[derive(Debug, Args)]
pub struct StuckArgs {
    /// Only these guests: name, UUID or pid:N. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,
    /// Machine-readable output. With --watch: one line for each look.
    #[arg(long)]
    pub json: bool,
    /// Look again every five seconds, until Ctrl-C.
    #[arg(long)]
    pub watch: bool,
}

/// `nestrace top`.
#[derive(Debug, Args)]
pub struct TopArgs {
    /// Only these guests: name, UUID or pid:N. May be repeated. A guest that does not run yet is added when it starts.
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,
    /// Only these block devices of the host, beside those of --guest. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub device: Vec<String>,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", value_parser = seconds_from(0.1, 3600.0), default_value = "1")]
    pub interval: f64,
    /// Print one line of JSON for each interval.
    #[arg(long)]
    pub batch: bool,
    /// Show the 99th percentile of latencies instead of their mean. With --batch both are there.
    #[arg(long, conflicts_with = "batch")]
    pub p99: bool,
    /// Print N tables (with --batch: N lines) and exit. Default: on a terminal, a screen with keys until q or Ctrl-C;
    /// elsewhere, tables until Ctrl-C.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

/// `nestrace serve`.
#[derive(Debug, Args)]
pub struct ServeArgs {
    /// Where to listen: a loopback address and a port, or unix:PATH for a socket that root alone may connect to.
    #[arg(
        long,
        value_name = "ADDR:PORT|unix:PATH",
        default_value = "127.0.0.1:9732"
    )]
    pub listen: Listen,
    /// Only these guests: name, UUID or pid:N. May be repeated. A guest that does not run yet is added when it starts.
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,
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
    /// Everything but the calls of the guests' programs. Costs the guest less.
    Io,
    /// One record per completed request, and file I/O. Costs least.
    Light,
}

/// `--cpu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum CpuArg {
    /// Record it, if the kernel has the tracepoints of its scheduler.
    Auto,
    /// Leave it out.
    Off,
}

/// `--qemu`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QemuArg {
    /// Probe QEMU's block layer, if its functions can be found.
    Auto,
    /// Do not probe QEMU; record its file I/O only.
    Off,
}

/// `nestrace record`.
#[derive(Debug, Args)]
pub struct RecordArgs {
    /// Guest to record: QEMU's -name (libvirt's domain name), UUID or pid:N. May be repeated. Default, without --device:
    /// the running guest, if there is only one.
    #[arg(long, value_name = "NAME")]
    pub guest: Vec<String>,
    /// Block device of the host to record, such as loop0 or /dev/sda. Works with or without a guest. May be repeated.
    #[arg(long, value_name = "NAME")]
    pub device: Vec<String>,
    /// Bundle to write, a folder NAME.nest. Default: a name from guest and time in the current folder
    /// (vm1-2026-11-26-150301.nest).
    #[arg(short, long, value_name = "OUT.nest")]
    pub output: Option<PathBuf>,
    /// Replace an existing bundle.
    #[arg(long)]
    pub force: bool,
    /// Stop after this many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    pub duration: Option<f64>,
    /// How much to record.
    #[arg(long, value_enum, default_value = "full")]
    pub detail: DetailArg,
    /// Whether to record when the threads that do I/O run, wait for a processor or sleep. Never with --detail light.
    #[arg(long, value_enum, default_value = "auto")]
    pub cpu: CpuArg,
    /// Whether to probe QEMU.
    #[arg(long, value_enum, default_value = "auto")]
    pub qemu: QemuArg,
    /// File with the debug symbols of this QEMU build. Needed only if QEMU exports no functions and /usr/lib/debug does not
    /// have the symbols.
    #[arg(long, value_name = "FILE")]
    pub qemu_debug: Option<PathBuf>,
    /// How to reach the agents: auto (the channel of each guest), off, or for a single guest unix:PATH or
    /// vsock:CID:PORT.
    #[arg(long, value_name = "HOW", default_value = "auto", value_parser = clap::value_parser!(Choice))]
    pub agent: Choice,
    /// Do not record the names of files in the guests. Files are then shown by mount and inode number.
    #[arg(long)]
    pub no_paths: bool,
    /// Stop when the streams reach this size (K, M, G, T: powers of 1024). With --flight: the limit of each bundle; what is
    /// kept in memory is smaller. [default with --flight: 256M]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    pub max_size: Option<u64>,
    /// Size of the event buffer of each processor: a power of two, 4K or more.
    #[arg(long, value_name = "SIZE", value_parser = ring_size)]
    pub ring_size: Option<u32>,
    /// Exit with 5 if events were lost, or if the recording is cut or was not closed.
    #[arg(long)]
    pub strict: bool,
    /// Start this command when recording has begun, and stop when it ends.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<String>,
    // Last: its heading would stand over what follows.
    /// What a flight recorder keeps and when it writes.
    #[command(flatten)]
    pub flight: FlightArgs,
}

/// `--format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatArg {
    /// For a person.
    Text,
    /// For a program; the keys are stable.
    Json,
    /// Only the block layer, as btt -A prints it.
    Btt,
}

/// `nestrace analyze`.
#[derive(Debug, Args)]
pub struct AnalyzeArgs {
    /// A bundle, or a capture of blktrace: a base name as for blkparse -i, one file, or a dump of blkparse -d. Default: the
    /// newest recording in the current folder.
    #[arg(value_name = "INPUT")]
    pub input: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: FormatArg,
    /// Also write a report with plots to one self-contained HTML file.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Also write each plot to this folder: SVG, PNG, and the data as CSV.
    #[arg(long, value_name = "DIR")]
    pub plots: Option<PathBuf>,
    /// Overwrite the files of --per-io and --iostat, and a report or plots that nestrace did not write.
    #[arg(long)]
    pub force: bool,
    /// Only the disks of this guest.
    #[arg(long, value_name = "NAME")]
    pub guest: Option<String>,
    /// Only this device, by name or MAJ:MIN: a device of the host, or a guest's disk by its name in the guest or in QEMU
    /// (with --format btt: in the guest). For a capture of blktrace, use MAJ:MIN.
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// Leave out what happened before this time (seconds after the start).
    #[arg(long, value_name = "T", value_parser = seconds)]
    pub from: Option<f64>,
    /// Leave out what happened after this time (seconds after the start).
    #[arg(long, value_name = "T", value_parser = seconds)]
    pub to: Option<f64>,
    /// Show the I/O trace of one guest bio, step by step: the N-th that the guest queued on its disk, counted from 1. With
    /// several disks, choose one with --guest and --device.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with = "slowest")]
    pub io: Option<u64>,
    /// Show the I/O traces of the N slowest guest bios, step by step.
    #[arg(long, value_name = "N", value_parser = stories)]
    pub slowest: Option<usize>,
    /// With --slowest: the slowest calls of the guests' programs instead, each from the call down to the device.
    #[arg(long, requires = "slowest")]
    pub calls: bool,
    /// Show call number N of a guest's program, from the call down to the device. --slowest N --calls prints the numbers.
    /// With several guests, choose one with --guest.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..), conflicts_with_all = ["io", "slowest"])]
    pub call: Option<u64>,
    /// With --format btt: write each I/O with its steps to this file (btt -p).
    #[arg(long, value_name = "FILE")]
    pub per_io: Option<PathBuf>,
    /// With --format btt: write a table like iostat -x to this file (btt -I).
    #[arg(long, value_name = "FILE")]
    pub iostat: Option<PathBuf>,
    /// With --iostat: seconds per row.
    #[arg(long, value_name = "SECONDS", value_parser = interval, default_value = "1", requires = "iostat")]
    pub interval: f64,
    /// Exit with 5 if events were lost, or if the recording is cut or was not closed.
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
            calls: false,
            call: None,
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
    /// The recording from before: a bundle, or a capture of blktrace. Default for A and B: the two newest recordings in
    /// the current folder.
    #[arg(value_name = "A", requires = "b")]
    pub a: Option<PathBuf>,
    /// The recording from after.
    #[arg(value_name = "B")]
    pub b: Option<PathBuf>,
    /// Output format.
    #[arg(long, value_enum, default_value = "text")]
    pub format: CompareFormat,
    /// Also write a report with the curves of both to one self-contained HTML file.
    #[arg(long, value_name = "FILE.html")]
    pub report: Option<PathBuf>,
    /// Replace a report that nestrace did not write.
    #[arg(long)]
    pub force: bool,
    /// Exit with 5 if either recording lost events, is cut or was not closed.
    #[arg(long)]
    pub strict: bool,
}

/// `nestrace export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// Format to write.
    #[arg(long, value_enum)]
    pub format: ExportFormat,
    /// A bundle. For parquet also a capture of blktrace.
    #[arg(value_name = "INPUT")]
    pub input: PathBuf,
    /// File or folder to write. If a format writes several files, their names begin with it.
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// blktrace and fio: export the events recorded inside this guest instead of the host's. csv and perfetto: only this
    /// guest.
    #[arg(long, value_name = "NAME")]
    pub guest: Option<String>,
    /// Only this device, by name or MAJ:MIN. May be repeated. Not for parquet.
    #[arg(long, value_name = "NAME")]
    pub device: Vec<String>,
    /// Give devices the numbers of SCSI disks, because btt treats majors 9, 253 and 254 (virtio) as device-mapper.
    #[arg(long)]
    pub for_btt: bool,
    /// Remove names (processes, files, guests, machines), serial numbers, addresses and times of day, so that you can send
    /// the result to someone.
    #[arg(long)]
    pub redact: bool,
    /// Replace existing files.
    #[arg(long)]
    pub force: bool,
}

/// `nestrace export --format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ExportFormat {
    /// Files for blkparse and btt.
    Blktrace,
    /// Tables: OUT.requests.csv and, if the recording has a guest's side, OUT.chains.csv and OUT.calls.csv.
    Csv,
    /// A log per device for fio to replay: OUT.DEVICE.iolog.
    Fio,
    /// A trace for Perfetto's UI: a track per layer, with arrows that link the layers.
    Perfetto,
    /// A data set for DuckDB or pyarrow: a folder of Parquet files by host, guest and day.
    Parquet,
}

/// `nestrace import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// What to import.
    #[command(subcommand)]
    pub command: ImportCommand,
}

/// The kinds of captures.
#[derive(Debug, Subcommand)]
pub enum ImportCommand {
    /// A capture of blktrace from Linux 2.6.17 or newer (files BASENAME.blktrace.0, …).
    Blktrace {
        /// Base name of the capture, as for blkparse -i. Give several for several disks of one guest.
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
    /// Bundle to write, a folder NAME.nest.
    #[arg(short, long, value_name = "OUT.nest")]
    pub output: PathBuf,
    /// The host's recording of the same time. It is copied, not changed.
    #[arg(long, value_name = "HOST.nest")]
    pub guest_of: Option<PathBuf>,
    /// The guest's name in that recording; needed if it has several guests. Without --guest-of: a name for the guest
    /// [default: guest].
    #[arg(long, value_name = "NAME")]
    pub guest: Option<String>,
    /// Replace an existing bundle.
    #[arg(long)]
    pub force: bool,
}

/// `nestrace repair`.
#[derive(Debug, Args)]
pub struct RepairArgs {
    /// The damaged bundle. It is not changed.
    #[arg(value_name = "DAMAGED.nest")]
    pub input: PathBuf,
    /// Bundle to write, a folder NAME.nest.
    #[arg(short, long, value_name = "OUT.nest")]
    pub output: PathBuf,
    /// Remove names (processes, files, guests, machines), serial numbers, addresses and times of day, so that you can send
    /// the bundle to someone.
    #[arg(long)]
    pub redact: bool,
    /// Replace an existing bundle.
    #[arg(long)]
    pub force: bool,
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

//! What a run of the lab left: a header for the whole, and a file for each cell.
//!
//! These are facts as they were measured. What they mean is computed from them by
//! [`Comparison`](super::Comparison), as often as one likes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Schema of [`RunHeader`].
pub const RUN_SCHEMA: &str = "nestrace-lab-run/1";
/// Schema of [`Cell`].
pub const CELL_SCHEMA: &str = "nestrace-lab-cell/1";

/// What is common to all cells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct RunHeader {
    /// [`RUN_SCHEMA`].
    pub schema: String,
    /// Name of the plan.
    pub plan: String,
    /// What the plan is about.
    pub about: String,
    /// Which experiment of the literature it repeats: `E1` to `E5`.
    pub experiment: Option<String>,
    /// Of the order.
    pub seed: u64,
    /// Timed runs of each cell.
    pub repetitions: u32,
    /// Seconds of each cell's recorded run; 0 where none is recorded, `null` where it is not known.
    pub record_seconds: Option<u32>,
    /// Unix time of the first start, seconds.
    pub started_unix_s: u64,
    /// What it ran on.
    pub machine: Machine,
    /// The modelled disk that host file systems and bare devices lie on, or all of them with commas between; `null` where
    /// they lie on this machine's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelled_disk: Option<String>,
    /// The block devices below all cells, measured before anything was put on them.
    pub bases: Vec<Base>,
    /// Ids of all cells, in the order of the plan.
    pub cells: Vec<String>,
    /// Combinations of the axes that were left out.
    pub excluded: Vec<Excluded>,
}

/// Where the run took place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Machine {
    /// `uname -r` of the host.
    pub host_kernel: String,
    /// Whether the host's role was itself inside a guest.
    pub host_is_guest: bool,
    /// `uname -r` of the guests.
    pub guest_kernel: String,
    /// QEMU's own words.
    pub qemu: String,
    /// fio's own words.
    pub fio: String,
    /// nestrace's version.
    pub nestrace: String,
    /// `kvm` or `tcg`.
    pub accelerator: String,
    /// Processors of the host.
    pub processors: u32,
    /// Memory of the host, bytes.
    pub memory_bytes: u64,
}

/// A block device below host file systems, or the bare device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Base {
    /// What it was made for: `xfs`, `bd`; of a device that the user named, its name.
    pub name: String,
    /// Sequential writing of the bare device, bytes per second.
    pub write_bytes_per_s: f64,
    /// Sequential reading of the bare device, bytes per second.
    pub read_bytes_per_s: f64,
}

/// A combination that cannot be, or that the plan leaves out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Excluded {
    /// The combination.
    pub what: String,
    /// Why.
    pub reason: String,
}

/// A combination under a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Cell {
    /// [`CELL_SCHEMA`].
    pub schema: String,
    /// Unique, and the name of its files: `ext4-on-xfs-randwrite`.
    pub id: String,
    /// The cell that it is compared with; `null` for a baseline.
    pub baseline: Option<String>,
    /// Axis → word, as in the plan.
    pub axes: BTreeMap<String, String>,
    /// Name of the workload.
    pub workload: String,
    /// Where the workload comes from, and what it leaves out of its model.
    pub workload_note: String,
    /// Who does it: `fio`, `sysbench`, `filebench`, `iozone`, `sh`; empty where it is not known.
    pub program: String,
    /// What is measured.
    pub metric: Metric,
    /// The timed runs, without recording.
    pub runs: Vec<CellRun>,
    /// The run that was recorded.
    pub recorded: Option<CellRun>,
    /// Name of the recording beside this file.
    pub recording: Option<String>,
    /// Name of the disk in the recording.
    pub disk: String,
    /// The device below, where the user named it; `null` for a loop device of the lab.
    pub device: Option<String>,
    /// What went wrong.
    pub failures: Vec<Failure>,
}

/// What a cell's value is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Throughput.
    BytesPerSecond,
    /// Throughput.
    #[default]
    OperationsPerSecond,
    /// Time that a command takes: less is better.
    Seconds,
}

impl Metric {
    /// A value as a number that is better when it is greater.
    #[must_use]
    pub fn performance(self, value: f64) -> f64 {
        match self {
            Self::Seconds if value > 0.0 => 1.0 / value,
            Self::Seconds => 0.0,
            Self::BytesPerSecond | Self::OperationsPerSecond => value,
        }
    }

    /// A value for a person.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        let rounded = value.max(0.0).round() as u64;
        match self {
            Self::BytesPerSecond => format!("{}/s", crate::units::size(rounded)),
            Self::OperationsPerSecond => format!("{} op/s", crate::units::count(rounded)),
            Self::Seconds => format!("{value:.2} s"),
        }
    }
}

/// One run of a workload.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct CellRun {
    /// From 1; the block of the randomised order in which it ran.
    pub repetition: u32,
    /// Unix time, seconds.
    pub started_unix_s: u64,
    /// In the unit of the cell's metric.
    pub value: f64,
    /// Duration of the measured part, seconds.
    pub elapsed_s: f64,
    /// Of each operation, as fio measures it; empty for commands.
    pub latency: BTreeMap<String, Latency>,
    /// The guest's processors, memory and disk meanwhile.
    pub guest: Counters,
    /// The same of the host, with the device below.
    pub host: Counters,
    /// Name of the disk in the recording, where it is another than the one that the lab gave it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub disk: Option<String>,
    /// How far the modelled disk below was from its model meanwhile, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub modelled: Option<DiskLateness>,
}

/// How late the completions of a modelled disk were, nanoseconds after the model's times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct DiskLateness {
    /// Completions.
    pub n: u64,
    /// Those later than `goal_ns`.
    pub late: u64,
    /// What counts as late.
    pub goal_ns: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Median, to 10 µs.
    pub p50_ns: u64,
    /// 99 %, to 10 µs.
    pub p99_ns: u64,
    /// Latest.
    pub max_ns: u64,
    /// Whether the machine kept up with the model: at most one completion in a hundred was late.
    pub kept_up: bool,
}

impl DiskLateness {
    /// Late completions of all.
    #[must_use]
    pub fn late_share(&self) -> f64 {
        self.late as f64 / self.n.max(1) as f64
    }
}

/// Latencies of one operation, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Latency {
    /// Operations.
    pub n: u64,
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 90 %.
    pub p90_ns: u64,
    /// 99 %.
    pub p99_ns: u64,
    /// 99.9 %.
    pub p999_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

/// What a kernel counted while the workload ran: from its start to its end, warm-up included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Counters {
    /// Time that was counted, which is longer than what was measured; `null` in results that do not say it.
    pub seconds: Option<f64>,
    /// Share of all processors' time in user space, 0 to 1.
    pub cpu_user: f64,
    /// In the kernel, interrupts included.
    pub cpu_system: f64,
    /// Idle with I/O under way.
    pub cpu_iowait: f64,
    /// Context switches.
    pub context_switches: u64,
    /// Paged in, KiB.
    pub paged_in_kib: u64,
    /// Paged out, KiB.
    pub paged_out_kib: u64,
    /// Reads of the disk that completed.
    pub disk_reads: u64,
    /// Writes of the disk that completed.
    pub disk_writes: u64,
    /// Bytes read.
    pub disk_read_bytes: u64,
    /// Bytes written.
    pub disk_write_bytes: u64,
    /// Flushes of the disk.
    pub disk_flushes: u64,
    /// Part of the time in which the disk had something to do, 0 to 1.
    pub disk_utilisation: f64,
}

/// A run that did not succeed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(default)]
pub struct Failure {
    /// Which repetition; 0 for the recorded run.
    pub repetition: u32,
    /// What went wrong.
    pub message: String,
    /// The end of what the programs said.
    pub log: String,
}

#[cfg(test)]
impl CellRun {
    /// Runs with a value and nothing else.
    pub(super) fn of_values(values: &[f64]) -> Vec<Self> {
        let run = |value: &f64| Self {
            value: *value,
            ..Self::default()
        };
        values.iter().map(run).collect()
    }
}

impl Cell {
    /// Whether it is what others are compared with.
    #[must_use]
    pub fn is_baseline(&self) -> bool {
        self.baseline.is_none()
    }

    /// The word of an axis, empty where it has none.
    #[must_use]
    pub fn word(&self, axis: &str) -> &str {
        self.axes.get(axis).map_or("", String::as_str)
    }
}

//! Pressure stall information (PSI): how long threads waited for I/O, as the kernel counts it.

use serde::{Deserialize, Serialize};

/// The I/O pressure of the host or of a cgroup while it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct IoPressure {
    /// The cgroup (version 2) as a path below its hierarchy's mount point; `None` for the whole host.
    pub cgroup: Option<String>,
    /// Processes of the cgroup other than the guest's QEMU, at the begin; `None` where they were not counted.
    pub other_processes: Option<u32>,
    /// At the recording's begin.
    pub at_begin: PressureTotals,
    /// At its end.
    pub at_end: PressureTotals,
}

/// The sums of `io.pressure` at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct PressureTotals {
    /// Host's `CLOCK_MONOTONIC`.
    pub mono_ns: u64,
    /// Time in which a thread waited for I/O, microseconds.
    pub some_us: u64,
    /// Time in which a thread waited for I/O and none ran, microseconds.
    pub full_us: u64,
}

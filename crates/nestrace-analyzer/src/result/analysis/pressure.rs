//! How long threads waited for I/O, as the kernel counts it.

use serde::Serialize;

/// The I/O pressure (PSI) of the host or of a guest's QEMU while it was recorded.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Pressure {
    /// The guest whose QEMU is in the cgroup; `None` for the whole host.
    pub guest: Option<String>,
    /// The cgroup; `None` for the whole host.
    pub cgroup: Option<String>,
    /// Processes in the cgroup beside QEMU; `None` where they were not counted.
    pub other_processes: Option<u32>,
    /// From the look at the begin to the one at the end.
    pub duration_ns: u64,
    /// Time in which a thread waited for I/O.
    pub some_ns: u64,
    /// Time in which a thread waited for I/O and none ran.
    pub full_ns: u64,
}

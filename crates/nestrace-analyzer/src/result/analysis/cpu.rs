//! Where threads had a processor.

use serde::Serialize;

/// Time of a thread by what it did, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CpuTime {
    /// It had a processor.
    pub running: u64,
    /// It could have gone on, and waited for a processor.
    pub runnable: u64,
    /// It waited for something else.
    pub asleep: u64,
    /// Not recorded, or no thread is known.
    pub unknown: u64,
}

impl CpuTime {
    pub(crate) const fn add(&mut self, other: Self) {
        self.running = self.running.saturating_add(other.running);
        self.runnable = self.runnable.saturating_add(other.runnable);
        self.asleep = self.asleep.saturating_add(other.asleep);
        self.unknown = self.unknown.saturating_add(other.unknown);
    }

    /// All four.
    #[must_use]
    pub const fn total(self) -> u64 {
        self.running
            .saturating_add(self.runnable)
            .saturating_add(self.asleep)
            .saturating_add(self.unknown)
    }
}

/// A segment's mean time by what the thread did that was waited for, nanoseconds. The four add up to `mean_ns`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SegmentCpu {
    /// It had a processor.
    pub running: f64,
    /// It could have gone on, and waited for a processor.
    pub runnable: f64,
    /// It waited for something else.
    pub asleep: f64,
    /// Not recorded, or no thread is known: a device's time.
    pub unknown: f64,
}

/// The threads of a guest's QEMU.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct QemuThreads {
    /// Guest's name.
    pub guest: String,
    /// Each thread that had or lost a processor while it was recorded.
    pub threads: Vec<QemuThread>,
    /// Who had the processor while these waited for one, the longest first; at most 16.
    pub ran_instead: Vec<RanInstead>,
}

/// A thread of QEMU.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct QemuThread {
    /// Thread id on the host.
    pub tid: u32,
    /// The thread's own name; the iothread's id where QMP has it. Empty if unknown.
    pub name: String,
    /// `vcpu`, `main`, `iothread`, or `other`: workers and the rest.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["vcpu", "main", "iothread", "other"])))]
    pub role: &'static str,
    /// Of a `vcpu`: its number in the guest.
    pub vcpu: Option<u32>,
    /// From its first event to the recording's last.
    pub cpu: CpuTime,
}

/// Who had the processor instead.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct RanInstead {
    /// Name of the thread.
    pub name: String,
    /// How long threads of this QEMU waited for a processor that it had, nanoseconds.
    pub runnable_ns: u64,
}

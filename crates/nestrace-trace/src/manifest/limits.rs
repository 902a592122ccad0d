//! Limits of I/O that somebody set, and the jobs that QEMU itself does.

use serde::{Deserialize, Serialize};

/// A limit that somebody set. QEMU's stand with the disk, those of cgroups with the guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Limit {
    /// With what it is set.
    pub set_with: LimitPlace,
    /// The throttle group, or the cgroup as a path below its hierarchy's mount point; empty for a disk's own throttle.
    pub name: String,
    /// Kernel name of the device that a cgroup's limit is for; `MAJOR:MINOR` where that is not below the guest's images.
    pub device: Option<String>,
    /// What it bounds.
    pub bounds: Limited,
    /// The value as it is set: requests or bytes a second, microseconds of a latency, or a weight.
    pub value: u64,
}

/// With what a limit is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LimitPlace {
    /// QEMU's throttle of a disk: `throttling.*`, `block_set_io_throttle`, `virsh blkdeviotune`.
    #[default]
    Iotune,
    /// A throttle group of QEMU's, which several disks may share: `throttling.group`, `-object throttle-group`.
    ThrottleGroup,
    /// `io.max` of a cgroup (version 2).
    IoMax,
    /// `io.latency` of a cgroup (version 2).
    IoLatency,
    /// `io.weight` of a cgroup on a device whose `io.cost.qos` is on (version 2).
    IoCost,
    /// `blkio.throttle.*` of a cgroup (version 1).
    Blkio,
}

/// What a limit bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Limited {
    /// Reads and writes a second.
    #[default]
    Requests,
    /// Reads a second.
    Reads,
    /// Writes a second.
    Writes,
    /// Bytes read and written a second.
    Bytes,
    /// Bytes read a second.
    BytesRead,
    /// Bytes written a second.
    BytesWritten,
    /// The latency that others make way for, microseconds.
    LatencyUs,
    /// A share of the device, against the weights of others.
    Weight,
}

impl Limit {
    /// `200 requests a second`: the value to the digit, with what it bounds.
    #[must_use]
    pub fn words(&self) -> String {
        let value = self.value;
        match self.bounds {
            Limited::Requests => format!("{value} requests a second"),
            Limited::Reads => format!("{value} reads a second"),
            Limited::Writes => format!("{value} writes a second"),
            Limited::Bytes => format!("{value} bytes a second"),
            Limited::BytesRead => format!("{value} bytes read a second"),
            Limited::BytesWritten => format!("{value} bytes written a second"),
            Limited::LatencyUs => format!("a latency of {value} µs"),
            Limited::Weight => format!("weight {value}"),
        }
    }

    /// `QEMU's throttle group "gold"`, `io.max of the cgroup /machine.slice on loop3`: where it is set.
    #[must_use]
    pub fn place(&self) -> String {
        let of_cgroup = |file: &str| {
            let device = self.device.as_deref();
            let device = device.map_or_else(String::new, |device| format!(" for {device}"));
            format!("{file} of the cgroup {}{device}", self.name)
        };
        match self.set_with {
            LimitPlace::Iotune => "QEMU's throttle of the disk (iotune)".to_owned(),
            LimitPlace::ThrottleGroup => format!("QEMU's throttle group {}", self.name),
            LimitPlace::IoMax => of_cgroup("io.max"),
            LimitPlace::IoLatency => of_cgroup("io.latency"),
            LimitPlace::IoCost => of_cgroup("io.weight"),
            LimitPlace::Blkio => of_cgroup("blkio.throttle"),
        }
    }
}

/// A job of QEMU's block layer: backup, mirror, commit, stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Job {
    /// Its id.
    pub id: String,
    /// `backup`, `mirror`, `commit`, `stream`, …
    pub kind: String,
    /// The disk ([`Disk::name`](super::Disk::name)) whose block nodes it works on; `None` where that is not known.
    pub disk: Option<String>,
    /// File of its target, where it has one of its own.
    pub target: Option<String>,
    /// `running`, `paused`, `ready`, … as it was seen last.
    pub status: String,
    /// Bytes a second that it may copy; 0: no limit, `None` where QEMU does not say.
    pub speed: Option<u64>,
    /// Progress when it was seen last, in bytes.
    pub done_bytes: u64,
    /// What the progress ends at, in bytes.
    pub total_bytes: u64,
    /// Host's `CLOCK_MONOTONIC` when it was seen first.
    pub first_seen_mono_ns: u64,
    /// Host's `CLOCK_MONOTONIC` when it was seen last.
    pub last_seen_mono_ns: u64,
}

impl Job {
    /// A job that has ended does no more I/O.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        matches!(self.status.as_str(), "concluded" | "null")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_says_its_value_and_where_it_is_set() {
        let mut limit = Limit {
            set_with: LimitPlace::IoMax,
            name: "/machine.slice".to_owned(),
            device: Some("loop3".to_owned()),
            bounds: Limited::BytesWritten,
            value: 1_048_577,
        };
        assert_eq!(limit.words(), "1048577 bytes written a second");
        let place = "io.max of the cgroup /machine.slice for loop3";
        assert_eq!(limit.place(), place);
        limit.set_with = LimitPlace::ThrottleGroup;
        limit.name = "gold".to_owned();
        assert_eq!(limit.place(), "QEMU's throttle group gold");
    }
}

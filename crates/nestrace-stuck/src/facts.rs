//! What a look at a host found. `None` is "could not be seen", never 0.
//!
//! A look takes two samples. What is named `_before` is of the first one, the same name without it of the second; `completed`
//! and times that belong to it are the difference.

use serde::{Deserialize, Serialize};

/// One look at the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// When the second sample was taken: nanoseconds since 1970.
    pub taken_unix_ns: u64,
    /// Time between the samples, in nanoseconds.
    pub interval_ns: u64,
    /// The guests that were asked for.
    pub guests: Vec<GuestFacts>,
    /// Block devices of the host below the guests' images, upper ones first.
    pub devices: Vec<DeviceFacts>,
    /// What belongs to no guest.
    pub host: HostFacts,
    /// What could not be seen, and why.
    pub notes: Vec<String>,
}

/// A guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct GuestFacts {
    /// `-name`, or `pid:N`.
    pub name: String,
    /// `-uuid`, where given.
    pub uuid: Option<String>,
    /// QEMU's process.
    pub pid: u32,
    /// It belongs to another user: neither its threads nor its files can be seen.
    pub is_hidden: bool,
    /// `query-status`: `running`, `paused`, `io-error`, …; `None` without an answer from QMP.
    pub run_state: Option<String>,
    /// Why QMP gave no answer; `None` where it gave one, or where there is no monitor.
    pub monitor_silence: Option<String>,
    /// QEMU's process is stopped by a signal (state `T` of its first thread in both samples).
    pub is_stopped: bool,
    /// The freezer and the I/O limits of QEMU's cgroups.
    pub cgroup: CgroupFacts,
    /// The disks.
    pub disks: Vec<DiskFacts>,
    /// Threads that did not run between the samples and wait for I/O, are stopped, or are blocked (state `D`).
    pub threads: Vec<ThreadFacts>,
    /// How many threads QEMU has.
    pub n_threads: u64,
    /// QEMU's io_uring instances.
    pub rings: Vec<RingFacts>,
    /// Block jobs.
    pub jobs: Vec<JobFacts>,
}

/// What a cgroup does to a guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupFacts {
    /// The frozen cgroup, if QEMU is in one.
    pub frozen: Option<String>,
    /// Limits of QEMU's cgroup and those above it.
    pub limits: Vec<CgroupLimit>,
}

/// `io.max`, or a file of the old `blkio.throttle`: requests or bytes a second; `None` where there is no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CgroupLimit {
    /// The cgroup.
    pub cgroup: String,
    /// Kernel name of the device; `MAJOR:MINOR` where that is not below the guest's images.
    pub device: String,
    /// Bytes read a second.
    pub bps_rd: Option<u64>,
    /// Bytes written a second.
    pub bps_wr: Option<u64>,
    /// Reads a second.
    pub iops_rd: Option<u64>,
    /// Writes a second.
    pub iops_wr: Option<u64>,
}

/// A disk of a guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskFacts {
    /// As `nestrace guests` names it.
    pub name: String,
    /// `threads`, `native`, `io_uring`, where known.
    pub aio: Option<String>,
    /// `query-block`'s `io-status`: `ok`, `failed`, `nospace`.
    pub io_status: Option<String>,
    /// Requests that QEMU has taken from the guest and not completed, at the first sample.
    pub in_flight_before: Option<u64>,
    /// The same at the second sample.
    pub in_flight: Option<u64>,
    /// These two are of a controller's queues, which several disks share.
    pub is_shared_queue: bool,
    /// Requests that completed between the samples, from `query-blockstats`.
    pub completed: Option<DiskCounts>,
    /// Time since the last completion, in nanoseconds (`idle_time_ns`).
    pub idle_ns: Option<u64>,
    /// QEMU's own throttle.
    pub limits: DiskLimits,
    /// The images, the disk's own first.
    pub images: Vec<ImageFacts>,
    /// The server that holds it, where it is not on this host's files or devices (`nbd://…`).
    pub remote: Option<RemoteFacts>,
}

/// Completions of a disk between the samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskCounts {
    /// Reads.
    pub reads: u64,
    /// Writes.
    pub writes: u64,
    /// Flushes and discards.
    pub others: u64,
    /// Bytes read.
    pub bytes_rd: u64,
    /// Bytes written.
    pub bytes_wr: u64,
    /// Nanoseconds of all of them together.
    pub time_ns: u64,
}

impl DiskCounts {
    /// Requests of every kind.
    #[must_use]
    pub const fn all(&self) -> u64 {
        self.reads
            .saturating_add(self.writes)
            .saturating_add(self.others)
    }
}

/// QEMU's throttle of a disk: requests or bytes a second, 0 where there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskLimits {
    /// Requests.
    pub iops: u64,
    /// Reads.
    pub iops_rd: u64,
    /// Writes.
    pub iops_wr: u64,
    /// Bytes.
    pub bps: u64,
    /// Bytes read.
    pub bps_rd: u64,
    /// Bytes written.
    pub bps_wr: u64,
}

/// A file or device that holds a disk's data.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ImageFacts {
    /// Its path.
    pub path: String,
    /// Type of the file system; empty for a device.
    pub fs_type: String,
    /// Where that is mounted.
    pub mount_point: String,
    /// Source of the mount: a device, or a server's export.
    pub source: String,
    /// Devices right below.
    pub devices: Vec<String>,
}

/// A server that holds a disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RemoteFacts {
    /// The driver: `nbd`, `rbd`, …
    pub driver: String,
    /// As QEMU names it.
    pub address: String,
    /// A process of this host that serves it and is stopped.
    pub stopped_server: Option<ProcessFacts>,
}

/// A process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ProcessFacts {
    /// Process id.
    pub pid: u32,
    /// Its name, as it chose it.
    pub name: String,
    /// State of its first thread: `S`, `T`, …
    pub state: String,
}

/// A thread that does not run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadFacts {
    /// Process it belongs to; its own number for a kernel thread.
    pub pid: u32,
    /// Thread id.
    pub tid: u32,
    /// Its name.
    pub name: String,
    /// What it is to QEMU: `main`, `vcpu N`, `iothread NAME`; empty where unknown.
    pub role: String,
    /// `D` blocked, `T` stopped by a signal, `t` stopped by a debugger, `S` asleep; the same in both samples.
    pub state: String,
    /// The system call it is in.
    pub system_call: Option<String>,
    /// The file that the call is about.
    pub file: Option<String>,
    /// Disk of the guest whose image that is.
    pub disk: Option<String>,
    /// The kernel function it waits in.
    pub wait_channel: Option<String>,
    /// Kernel functions, the innermost first. Empty without the right to read them.
    pub stack: Vec<String>,
    /// Time since it ran last, in nanoseconds.
    pub asleep_ns: Option<u64>,
    /// The process that has stopped it.
    pub tracer: Option<ProcessFacts>,
}

/// An io_uring instance of QEMU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RingFacts {
    /// QEMU's descriptor.
    pub fd: u32,
    /// Submitted and not completed, without waits for descriptors (polls), at the first sample.
    pub in_flight_before: u64,
    /// The same at the second sample.
    pub in_flight: u64,
    /// Completions between the samples.
    pub completed: u64,
}

/// A job of QEMU's block layer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobFacts {
    /// Its id.
    pub id: String,
    /// `mirror`, `backup`, `commit`, …
    pub kind: String,
    /// `running`, `paused`, `ready`, …
    pub status: String,
}

/// A block device of the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceFacts {
    /// Kernel name.
    pub name: String,
    /// `disk`, `partition`, `loop`, `dm`, `md`.
    pub kind: String,
    /// Names of the devices below.
    pub beneath: Vec<String>,
    /// File of a loop device.
    pub loop_file: Option<ImageFacts>,
    /// Requests in flight at the first sample.
    pub in_flight_before: Option<u64>,
    /// Requests in flight at the second sample.
    pub in_flight: Option<u64>,
    /// Requests that completed between the samples.
    pub completed: Option<u64>,
    /// Nanoseconds of all of these together, in steps of a millisecond.
    pub time_ns: Option<u64>,
    /// dm: the name that `dmsetup` has for it.
    pub dm_name: Option<String>,
    /// dm: it is suspended.
    pub is_suspended: Option<bool>,
    /// State of a SCSI device, where it is not `running`; of an md array, where it takes no writes.
    pub state: Option<String>,
    /// The process that serves an nbd device.
    pub server: Option<ProcessFacts>,
}

/// What belongs to no guest.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostFacts {
    /// Bytes that wait for write-back (`Dirty`).
    pub dirty: Option<u64>,
    /// Bytes that are being written (`Writeback`).
    pub writeback: Option<u64>,
    /// Kernel threads that were blocked in both samples and did not run between them.
    pub kernel_threads: Vec<ThreadFacts>,
}

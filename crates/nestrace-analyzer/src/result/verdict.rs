//! How much of QEMU's time is the host's, and how busy others keep the devices: the values.

use serde::Serialize;

/// The verdict of a recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Verdict {
    /// `chains` where every disk's verdict rests on them, `overlap` where none does, else `mixed`.
    pub method: VerdictMethod,
    /// Where the time of each disk's requests passed.
    pub disks: Vec<DiskVerdict>,
    /// Who used each device.
    pub devices: Vec<DeviceVerdict>,
}

/// What a verdict rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum VerdictMethod {
    /// What was under way at the same time.
    #[default]
    Overlap,
    /// Bios that were followed.
    Chains,
    /// Of some disks the one, of others the other.
    Mixed,
}

/// Where the summed latency of a disk's QEMU requests passed. The parts sum to `qemu_ns`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DiskVerdict {
    /// The guest.
    pub guest: String,
    /// The disk.
    pub disk: String,
    /// `chains`: every time between QEMU's start and completion notification of the guest's bios that were followed,
    /// as far as they waited for it. `overlap`: shares estimated from what was under way at the same time.
    pub method: VerdictMethod,
    /// Requests that the estimate covers, or bios that were followed.
    pub requests: u64,
    /// Their summed latency.
    pub qemu_ns: u64,
    /// No file I/O was under way: QEMU's device model, block graph, image format, thread pool.
    pub qemu_own_ns: u64,
    /// File I/O was under way, but none of its bios: page cache, copy, allocation, journal.
    pub host_fs_ns: u64,
    /// File I/O was under way, and its bios waited in the host's queue; `None` where bios were not recorded.
    pub host_queue_ns: Option<u64>,
    /// File I/O was under way, and the device worked on its bios, or the server that has the data on it; `None` where bios
    /// were not recorded.
    pub device_ns: Option<u64>,
    /// File I/O was under way, and its bios were in devices that hand them on (dm, md, bcache, loop); then the two before
    /// are of the devices below. Only by `chains`; the key is there only where there are such devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stack_ns: Option<u64>,
    /// `host_fs_ns + host_queue_ns + stack_ns + device_ns`.
    pub host_ns: u64,
    /// The host's part at least: at each instant no more requests than file I/Os in flight.
    pub host_at_least_ns: u64,
    /// Requests in flight on average while there was any, × 1,000.
    pub in_flight_millis: u64,
    /// At most one request was in flight at any time: the split is exact.
    pub serial: bool,
    /// A limit that somebody set holds the disk's requests back, as the finding `host-throttled` says; `None` where none
    /// does, or it cannot be judged.
    pub limit_is_the_bottleneck: Option<LimitBottleneck>,
}

/// The limit that a disk is at.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct LimitBottleneck {
    /// Who holds requests back.
    pub held_by: LimitHolder,
    /// The limit, to the digit: `200 requests a second`. `None` where none was found that is set, or where several could be
    /// the one.
    pub limit: Option<String>,
    /// Its value.
    pub value: Option<u64>,
    /// Where it is set: `io.max of the cgroup /machine.slice for loop3`.
    pub set_in: Option<String>,
}

/// Who holds requests back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum LimitHolder {
    /// QEMU's throttle.
    #[default]
    Qemu,
    /// The kernel, for a cgroup.
    Kernel,
}

/// How a device's time was shared.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DeviceVerdict {
    /// The device.
    pub device: String,
    /// Share of the recording with a request at the device.
    pub busy_share: f64,
    /// Share of device time for the recorded guests' images (and loop devices below them).
    pub guests_share: f64,
    /// Share for metadata and journal of the file system, which is everybody's.
    pub file_system_share: f64,
    /// Share for everyone else.
    pub others_share: f64,
    /// Bytes of everyone else.
    pub others_bytes: u64,
    /// The largest of the others.
    pub largest_other: Option<String>,
}

/// At least this part of the bios has to be followed, or those that were not could differ.
pub const FOLLOWED: f64 = 0.98;

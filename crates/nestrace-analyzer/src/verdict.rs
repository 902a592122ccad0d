//! What can be said without following single requests: how much of QEMU's time is the host's, and
//! how busy others keep the devices.

use serde::Serialize;

use crate::analysis::Device;
use crate::image::{ImageState, Images};
use crate::overlap::Activity;
use crate::qemu::Overlap;

/// The verdict of a recording without chains.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    /// Always `overlap`: shares are estimated from what was under way at the same time.
    pub method: &'static str,
    /// Where the time of each disk's requests passed.
    pub disks: Vec<DiskVerdict>,
    /// Who used each device.
    pub devices: Vec<DeviceVerdict>,
}

/// Where the summed latency of a disk's QEMU requests passed. The parts sum to `qemu_ns`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DiskVerdict {
    /// The guest.
    pub guest: String,
    /// The disk.
    pub disk: String,
    /// Requests that the estimate covers.
    pub requests: u64,
    /// Their summed latency.
    pub qemu_ns: u64,
    /// No file I/O was under way: QEMU's device model, block graph, image format, thread pool.
    pub qemu_own_ns: u64,
    /// File I/O was under way, but none of its bios: page cache, copy, allocation, journal.
    pub host_fs_ns: u64,
    /// File I/O was under way, and its bios waited in the host's queue; `None` where bios were not recorded.
    pub host_queue_ns: Option<u64>,
    /// File I/O was under way, and the device worked on its bios; `None` where bios were not recorded.
    pub device_ns: Option<u64>,
    /// `host_fs_ns + host_queue_ns + device_ns`.
    pub host_ns: u64,
    /// The host's part at least: at each instant no more requests than file I/Os in flight.
    pub host_at_least_ns: u64,
    /// Requests in flight on average while there was any, × 1,000.
    pub in_flight_millis: u64,
    /// At most one request was in flight at any time: the split is exact.
    pub serial: bool,
}

/// How a device's time was shared.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct DeviceVerdict {
    /// The device.
    pub device: String,
    /// Share of the recording with a request at the device.
    pub busy_share: f64,
    /// Share of device time for the recorded guests' images (and loop devices beneath them).
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

/// Sums one disk up.
pub(crate) fn disk(
    images: &Images,
    number: usize,
    overlap: &Overlap,
    activity: &Activity,
    bios: bool,
) -> Option<DiskVerdict> {
    let disk = images.disks.get(number)?;
    if overlap.requests == 0 {
        return None;
    }
    let clocks = overlap.clocks;
    let total = overlap.latency_ns;
    let host = clocks.file_ns.min(total);
    let device = clocks.device_ns.min(host);
    let queue = clocks.queue_ns.min(host - device);
    let busy = activity.qemu_busy_ns;
    Some(DiskVerdict {
        guest: disk.guest_name.clone(),
        disk: disk.name.clone(),
        requests: overlap.requests,
        qemu_ns: total,
        qemu_own_ns: total - host,
        host_fs_ns: host - device - queue,
        host_queue_ns: bios.then_some(queue),
        device_ns: bios.then_some(device),
        host_ns: host,
        host_at_least_ns: u64::try_from(activity.file_at_least_ns)
            .unwrap_or(u64::MAX)
            .min(host),
        in_flight_millis: u64::try_from(activity.qemu_ns * 1000 / u128::from(busy.max(1)))
            .unwrap_or(u64::MAX),
        serial: activity.qemu_max <= 1,
    })
}

/// Sums one device up; `None` where nobody knows whose bios were whose.
pub(crate) fn device(device: &Device) -> Option<DeviceVerdict> {
    let users = device.users.as_ref()?;
    let share = |kinds: &[&str]| -> f64 {
        // Not `sum`: that of nothing is −0.
        users
            .iter()
            .filter(|user| kinds.contains(&user.kind))
            .fold(0.0, |sum, user| sum + user.share)
    };
    let others = users.iter().filter(|user| user.kind == "process");
    Some(DeviceVerdict {
        device: device.name.clone(),
        busy_share: device.queue_depth.busy_share,
        guests_share: share(&["image", "guest", "loop"]),
        file_system_share: share(&["file_system"]),
        others_share: share(&["process"]),
        others_bytes: others.clone().map(|user| user.bytes).sum(),
        largest_other: others
            .max_by_key(|user| user.device_ns)
            .and_then(|user| user.name.clone()),
    })
}

/// Whether any image of the disk can be followed.
pub(crate) fn has_image(images: &[ImageState], disk: usize) -> bool {
    images.iter().any(|image| image.disk as usize == disk)
}

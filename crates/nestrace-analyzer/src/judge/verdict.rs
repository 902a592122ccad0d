//! How much of QEMU's time is the host's, and how busy others keep the devices: from chains where a
//! guest's requests could be followed, else from what overlapped in time.

use crate::follow::image::Images;
use crate::follow::qemu::Overlap;
use crate::measure::overlap::Activity;
use crate::result::analysis::{Chains, Device, UserKind};
use crate::result::verdict::{DeviceVerdict, DiskVerdict, FOLLOWED, VerdictMethod};

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
        method: VerdictMethod::Overlap,
        requests: overlap.requests,
        qemu_ns: total,
        qemu_own_ns: total - host,
        host_fs_ns: host - device - queue,
        host_queue_ns: bios.then_some(queue),
        device_ns: bios.then_some(device),
        stack_ns: None,
        host_ns: host,
        host_at_least_ns: u64::try_from(activity.file_at_least_ns)
            .unwrap_or(u64::MAX)
            .min(host),
        in_flight_millis: u64::try_from(activity.qemu_ns * 1000 / u128::from(busy.max(1)))
            .unwrap_or(u64::MAX),
        serial: activity.qemu_max <= 1,
        limit_is_the_bottleneck: None,
    })
}

/// Whether what was followed speaks for all of the disk's requests: nearly all of the guest's bios, and those
/// of the better part of the recording.
fn speaks_for(chains: &Chains, estimate: &DiskVerdict) -> bool {
    let fraction = chains.fraction.unwrap_or(0.0);
    fraction >= FOLLOWED && chains.guest_requests.saturating_mul(2) > estimate.requests
}

/// Puts what was followed in the place of the estimate, if it is most of what was done. Without an estimate
/// (nothing of QEMU's accounting had a disk) nothing is known of what was in flight, and the verdict stands by
/// itself.
pub(crate) fn from_chains(chains: &Chains, estimate: Option<DiskVerdict>) -> Option<DiskVerdict> {
    let better = |estimate: &DiskVerdict| !speaks_for(chains, estimate);
    if chains.linked == 0 || estimate.as_ref().is_some_and(better) {
        return estimate;
    }
    let latency = &chains.latency_ns;
    let by_op = &chains.by_op;
    let sum = |names: &[&str]| -> u64 {
        [
            (&by_op.read, latency.read),
            (&by_op.write, latency.write),
            (&by_op.discard, latency.discard),
            (&by_op.flush, latency.flush),
        ]
        .into_iter()
        .flat_map(|(segments, latency)| segments.iter().map(move |part| (part, latency.n)))
        .filter(|(part, _)| names.contains(&part.name))
        .map(|(part, n)| (part.mean_ns * n as f64).round() as u64)
        .sum()
    };
    let own = sum(&["qemu_submit", "qemu_job", "qemu_between", "qemu_complete"]);
    let host_fs = sum(&["host_fs_submit", "host_fs_between", "host_fs_complete"]);
    let queue = sum(&["host_queue"]);
    let device = sum(&["device", "device_flush", "remote"]);
    let stack = sum(&["stack_submit", "stack_between", "stack_complete"]);
    let host = host_fs + queue + stack + device;
    let recorded = |layer: &str| !chains.folded.iter().any(|folded| folded == layer);
    let estimate = estimate.unwrap_or_default();
    Some(DiskVerdict {
        guest: chains.guest.clone(),
        disk: chains.disk.clone(),
        method: VerdictMethod::Chains,
        requests: chains.linked,
        qemu_ns: own + host,
        qemu_own_ns: own,
        host_fs_ns: host_fs,
        host_queue_ns: recorded("host_bio").then_some(queue),
        device_ns: recorded("host_bio").then_some(device),
        stack_ns: (stack > 0).then_some(stack),
        host_ns: host,
        host_at_least_ns: host,
        ..estimate
    })
}

/// The method of all of them.
pub(crate) fn method(disks: &[DiskVerdict]) -> VerdictMethod {
    let is_followed = |disk: &&DiskVerdict| disk.method == VerdictMethod::Chains;
    let chains = disks.iter().filter(is_followed).count();
    match chains {
        0 => VerdictMethod::Overlap,
        n if n == disks.len() => VerdictMethod::Chains,
        _ => VerdictMethod::Mixed,
    }
}

/// Sums one device up; `None` where it is not known whose bios were whose.
pub(crate) fn device(device: &Device) -> Option<DeviceVerdict> {
    let users = device.users.as_ref()?;
    let share = |kinds: &[UserKind]| -> f64 {
        // Not `sum`: that of nothing is −0.
        users
            .iter()
            .filter(|user| kinds.contains(&user.kind))
            .fold(0.0, |sum, user| sum + user.share)
    };
    let others = users.iter().filter(|user| user.kind == UserKind::Process);
    Some(DeviceVerdict {
        device: device.name.clone(),
        busy_share: device.queue_depth.busy_share,
        guests_share: share(&[UserKind::Image, UserKind::Guest, UserKind::Loop]),
        file_system_share: share(&[UserKind::FileSystem]),
        others_share: share(&[UserKind::Process]),
        others_bytes: others.clone().map(|user| user.bytes).sum(),
        largest_other: others
            .max_by_key(|user| user.device_ns)
            .and_then(|user| user.name.clone()),
    })
}

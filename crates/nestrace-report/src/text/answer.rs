//! The short answer: how much of QEMU's time is the host's, and who else uses the devices.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::verdict::{DeviceVerdict, DiskVerdict};

use super::{Page, disk_name};
use crate::units::{of, percent, share, time};

/// Disks that are told in sentences; the tables hold all.
const MAX_DISKS: usize = 4;
/// Devices that are told in sentences.
const MAX_DEVICES: usize = 3;
/// Below this the recorded guests are alone on a device, as far as anyone cares.
const ALONE: f64 = 0.02;

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    page.section("In short");
    if analysis.devices.is_empty()
        && analysis
            .qemu
            .iter()
            .all(|disk| disk.reads + disk.writes + disk.flushes == 0)
    {
        page.paragraph("No I/O was recorded.");
        return;
    }
    let mut disks: Vec<&DiskVerdict> = analysis.verdict.disks.iter().collect();
    disks.sort_by_key(|disk| std::cmp::Reverse(disk.qemu_ns));
    for disk in disks.iter().take(MAX_DISKS) {
        page.paragraph(&of_disk(disk));
    }
    if disks.len() > MAX_DISKS {
        page.paragraph(&format!(
            "({} more disks: see --format json.)",
            disks.len() - MAX_DISKS
        ));
    }
    if disks.is_empty() {
        page.paragraph(why_no_disk(analysis));
    }
    for device in analysis.verdict.devices.iter().take(MAX_DEVICES) {
        page.paragraph(&of_device(device));
    }
}

fn of_disk(disk: &DiskVerdict) -> String {
    let part = |ns: u64| percent(share(ns, disk.qemu_ns));
    let mean = disk.qemu_ns / disk.requests.max(1);
    let mut text = format!(
        "{}: QEMU took {} on average for {}. ",
        disk_name(&disk.guest, Some(&disk.disk)),
        time(mean),
        of(disk.requests, "request", "requests"),
    );
    text.push_str(&format!(
        "{} of that passed while the host worked on the image",
        part(disk.host_ns)
    ));
    match (disk.device_ns, disk.host_queue_ns) {
        (Some(device), Some(queue)) => text.push_str(&format!(
            " ({} at the device, {} in the host's queue, {} in its file system and page cache)",
            part(device),
            part(queue),
            part(disk.host_fs_ns)
        )),
        _ => {
            text.push_str(" (bios were not recorded, so device and file system are not told apart)")
        }
    }
    text.push_str(&format!("; {} was QEMU's own.", part(disk.qemu_own_ns)));
    if !disk.serial && disk.host_at_least_ns < disk.host_ns {
        text.push_str(&format!(
            " With {:.1} requests in flight on average this is an estimate from what overlapped: the host's part is between {} and {}.",
            disk.in_flight_millis as f64 / 1000.0,
            part(disk.host_at_least_ns),
            part(disk.host_ns)
        ));
    }
    text
}

fn of_device(device: &DeviceVerdict) -> String {
    let mut text = format!(
        "{} was busy {} of the time",
        device.device,
        percent(device.busy_share)
    );
    let mut parts = Vec::new();
    if device.file_system_share >= ALONE {
        parts.push(format!(
            "{} of its work was metadata and journal of the file system",
            percent(device.file_system_share)
        ));
    }
    if device.others_share >= ALONE {
        let most = device
            .largest_other
            .as_ref()
            .map_or_else(String::new, |name| format!(" (most: {name})"));
        parts.push(format!(
            "{} was for others{most}",
            percent(device.others_share)
        ));
    } else {
        parts.push(String::from("others hardly used it"));
    }
    text.push_str(&format!("; {}.", parts.join(", ")));
    text
}

fn why_no_disk(analysis: &Analysis) -> &'static str {
    if analysis.trace.detail == "light" {
        return "A light recording has whole requests of the devices and the file I/O on the images; how QEMU's time was spent needs --detail full.";
    }
    if analysis.images.is_empty() {
        return "The recording names no image that could be followed, so only the devices can be shown.";
    }
    if analysis
        .qemu
        .iter()
        .all(|disk| disk.reads + disk.writes + disk.flushes + disk.discards == 0)
    {
        return "No request of QEMU was recorded on a disk, so its latency cannot be split; the devices below are complete.";
    }
    "File I/O of QEMU was not recorded, so its latency cannot be split between QEMU and the host."
}

//! The short answer: what costs most and what to do about it, how much of QEMU's time is the host's, and who else uses
//! the devices.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Chains, QemuDisk};
use nestrace_analyzer::verdict::{DeviceVerdict, DiskVerdict, FOLLOWED, VerdictMethod};

use super::{Page, calls, disk_name, lead};
use crate::layers::is_folded;
use crate::units::{of, percent, share, time};

/// A part of the latency that is worth a place in the sentence.
const WORTH_NAMING: f64 = 0.05;
/// Parts that are named; the tables hold all.
const MAX_PARTS: usize = 3;
/// What [`PARTS`] calls a server without its name.
const AT_SERVER: &str = "at the server that holds the disk";
/// Where a guest's I/O spends its time, in words, and the segments of each.
const PARTS: [(&str, &[&str]); 9] = [
    ("in the guest's own queue", &["guest_queue"]),
    ("between guest and QEMU", &["virt_submit", "virt_complete"]),
    ("for a job of QEMU's", &["qemu_job"]),
    ("in QEMU", &["qemu_submit", "qemu_between", "qemu_complete"]),
    (
        "in the host's file system",
        &["host_fs_submit", "host_fs_between", "host_fs_complete"],
    ),
    ("in the host's queue", &["host_queue"]),
    (
        "in the host's stacked devices",
        &["stack_submit", "stack_between", "stack_complete"],
    ),
    ("at the host's device", &["device", "device_flush"]),
    (AT_SERVER, &["remote"]),
];
/// Below this the recorded guests are alone on a device, as far as anyone cares.
const ALONE: f64 = 0.02;

/// Where a segment's time passes, in words.
pub(crate) fn place_of(segment: &str) -> Option<&'static str> {
    let part = PARTS.iter().find(|(_, names)| names.contains(&segment));
    part.map(|(words, _)| *words)
}

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    page.section("In short");
    for sentence in sentences(analysis) {
        page.paragraph(&sentence);
    }
}

/// The answer, in four paragraphs at most: what to do first, the disk with the most time, the busiest device, and what
/// else there is. The tables hold all of them.
pub(crate) fn sentences(analysis: &Analysis) -> Vec<String> {
    let done = |disk: &QemuDisk| disk.reads + disk.writes + disk.flushes;
    if analysis.devices.is_empty() && analysis.qemu.iter().all(|disk| done(disk) == 0) {
        return vec![String::from("No I/O was recorded.")];
    }
    let mut disks: Vec<&DiskVerdict> = analysis.verdict.disks.iter().collect();
    disks.sort_by_key(|disk| std::cmp::Reverse(disk.qemu_ns));
    let mut sentences = match (disks.first(), most_followed(analysis)) {
        (Some(disk), _) => of_one(analysis, disk),
        (None, Some(chains)) => {
            let disk = lead::Disk {
                guest: &chains.guest,
                disk: &chains.disk,
                chains: Some(chains),
                verdict: None,
            };
            led(analysis, disk, of_chains(analysis, chains))
        }
        (None, None) => vec![why_no_disk(analysis).to_owned()],
    };
    let devices = &analysis.verdict.devices;
    let busiest = devices
        .iter()
        .max_by(|a, b| a.busy_share.total_cmp(&b.busy_share));
    let guests =
        !analysis.images.is_empty() || !analysis.qemu.is_empty() || !analysis.chains.is_empty();
    sentences.splice(0..0, calls::sentences(analysis));
    sentences.extend(busiest.map(|device| of_device(device, guests)));
    let more = |n: usize, one: &str, many: &str| {
        let n = n.saturating_sub(1) as u64;
        (n > 0).then(|| of(n, &format!("more {one}"), &format!("more {many}")))
    };
    let more = [
        more(disks.len(), "disk", "disks"),
        more(devices.len(), "device", "devices"),
    ];
    let more: Vec<String> = more.into_iter().flatten().collect();
    if !more.is_empty() {
        let more = more.join(" and ");
        sentences.push(format!("The tables below also have {more}."));
    }
    sentences
}

/// What the disk with the most time waited for.
fn of_one(analysis: &Analysis, disk: &DiskVerdict) -> Vec<String> {
    let chains = analysis.chains.iter().find(|chains| {
        disk.method == VerdictMethod::Chains
            && chains.guest == disk.guest
            && chains.disk == disk.disk
    });
    let figures = chains.map_or_else(
        || of_disk(analysis, disk),
        |chains| of_chains(analysis, chains),
    );
    let disk = lead::Disk {
        guest: &disk.guest,
        disk: &disk.disk,
        chains,
        verdict: Some(disk),
    };
    led(analysis, disk, figures)
}

/// A disk's figures with what leads before them; where nothing does, they say so themselves.
fn led(analysis: &Analysis, disk: lead::Disk<'_>, figures: String) -> Vec<String> {
    match lead::sentence(analysis, disk) {
        Some(lead) => vec![lead, figures],
        None => vec![format!("{figures} {}", lead::nothing_found(analysis, disk))],
    }
}

/// Chains of the disk with the most time, where no disk was seen below QEMU.
fn most_followed(analysis: &Analysis) -> Option<&Chains> {
    let time_of = |chains: &&Chains| {
        let latency = &chains.latency_ns;
        latency.data.sum.saturating_add(latency.flush.sum)
    };
    let followed = analysis.chains.iter().filter(|chains| chains.linked > 0);
    followed.max_by_key(time_of)
}

fn of_disk(analysis: &Analysis, disk: &DiskVerdict) -> String {
    let part = |ns: u64| percent(share(ns, disk.qemu_ns));
    let mean = disk.qemu_ns / disk.requests.max(1);
    let mut text = format!(
        "{}: QEMU took {} on average for {}, ",
        disk_name(&disk.guest, Some(&disk.disk)),
        time(mean),
        of(disk.requests, "request", "requests"),
    );
    text.push_str(&format!(
        "{} of it while the host worked on the image",
        part(disk.host_ns)
    ));
    match (disk.device_ns, disk.host_queue_ns) {
        (Some(device), Some(queue)) => {
            let stack = disk
                .stack_ns
                .map(|ns| format!("{} in stacked devices, ", part(ns)));
            text.push_str(&format!(
                " ({} at the {}, {}{} in the host's queue, {} in its file system and page cache)",
                part(device),
                server_of(analysis, &disk.guest, &disk.disk)
                    .unwrap_or_else(|| String::from("device")),
                stack.unwrap_or_default(),
                part(queue),
                part(disk.host_fs_ns)
            ));
        }
        _ => text.push_str(" (bios were not recorded, so this includes file system and device)"),
    }
    text.push_str(&format!(" and {} on its own", part(disk.qemu_own_ns)));
    if !disk.serial && disk.host_at_least_ns < disk.host_ns {
        text.push_str(&format!(
            "; this is an estimate from overlapping times ({:.1} requests in flight on average), and the host's part lies between {} and {}",
            disk.in_flight_millis as f64 / 1000.0,
            part(disk.host_at_least_ns),
            part(disk.host_ns)
        ));
    }
    text.push('.');
    text
}

/// What a disk's guest waited for, largest first.
fn of_chains(analysis: &Analysis, chains: &Chains) -> String {
    let mut text = format!(
        "{} ({}): ",
        disk_name(&chains.guest, Some(&chains.disk)),
        chains.guest_device
    );
    let part = share(chains.linked, chains.guest_bios);
    if part < FOLLOWED {
        let part = percent(part);
        text.push_str(&format!("{part} of its I/O could be linked; of that, "));
    }
    let latency = &chains.latency_ns;
    let operations = [
        ("read", "reads", latency.read, &chains.by_op.read),
        ("write", "writes", latency.write, &chains.by_op.write),
        (
            "discard",
            "discards",
            latency.discard,
            &chains.by_op.discard,
        ),
        ("flush", "flushes", latency.flush, &chains.by_op.flush),
    ];
    let mut sentences = Vec::new();
    for (one, many, latency, segments) in operations {
        if latency.n == 0 {
            continue;
        }
        let mut parts: Vec<(f64, String)> = PARTS
            .iter()
            .map(|(words, names)| {
                let of_part = segments
                    .iter()
                    .filter(|segment| names.contains(&segment.name));
                let share: f64 = of_part.map(|segment| segment.share).sum();
                (share, in_words(analysis, chains, words))
            })
            .filter(|(share, _)| *share >= WORTH_NAMING)
            .collect();
        parts.sort_by(|a, b| b.0.total_cmp(&a.0));
        let parts: Vec<String> = parts
            .into_iter()
            .take(MAX_PARTS)
            .map(|(share, words)| format!("{} {words}", percent(share)))
            .collect();
        sentences.push(format!(
            "{} took {} on average ({})",
            of(latency.n, one, many),
            latency.mean.map_or_else(|| String::from("–"), time),
            parts.join(", ")
        ));
    }
    text.push_str(&sentences.join("; "));
    text.push('.');
    text
}

/// The server that holds a disk's images, if all of them are at one.
fn server_of(analysis: &Analysis, guest: &str, disk: &str) -> Option<String> {
    let images = analysis.images.iter();
    let mut own = images.filter(|image| image.guest == guest && image.disk == disk);
    let first = own.next()?;
    match first.servers.as_slice() {
        [server] => own
            .all(|image| image.servers == first.servers)
            .then(|| server.to_string()),
        _ => None,
    }
}

/// A part; it includes the layers below it where those were not recorded. A server has a name where the host's kernel
/// reaches it.
fn in_words(analysis: &Analysis, chains: &Chains, part: &str) -> String {
    let words = match part {
        "between guest and QEMU" if is_folded(chains, "qemu") => "in QEMU and on the way to it",
        "in QEMU" if is_folded(chains, "file_io") => "in QEMU and the layers below",
        "in the host's file system" if is_folded(chains, "host_bio") => {
            "in the host's file system and the layers below"
        }
        AT_SERVER => {
            let server = server_of(analysis, &chains.guest, &chains.disk);
            return server
                .map_or_else(|| AT_SERVER.to_owned(), |server| format!("at the {server}"));
        }
        part => part,
    };
    words.to_owned()
}

/// How busy a device was, and for whom. A capture of one machine has no guests, so it has no "others".
fn of_device(device: &DeviceVerdict, guests: bool) -> String {
    let mut text = format!(
        "{} was busy {} of the time",
        device.device,
        percent(device.busy_share)
    );
    let mut parts = Vec::new();
    if device.file_system_share >= ALONE {
        parts.push(format!(
            "{} of that was for metadata and journal of the file system",
            percent(device.file_system_share)
        ));
    }
    if !guests {
        let most = device.largest_other.as_ref();
        parts.extend(most.map(|name| format!("mostly for {name}")));
    } else if device.others_share >= ALONE {
        let most = device
            .largest_other
            .as_ref()
            .map_or_else(String::new, |name| format!(" (most: {name})"));
        parts.push(format!(
            "{} was for others{most}",
            percent(device.others_share)
        ));
    } else {
        parts.push(String::from("almost only the recorded guests used it"));
    }
    if !parts.is_empty() {
        text.push_str(&format!("; {}", parts.join(", ")));
    }
    text.push('.');
    text
}

fn why_no_disk(analysis: &Analysis) -> &'static str {
    if analysis.trace.detail.as_deref() == Some("light") {
        return "A light recording holds only completed device requests and file I/O on the images. To see where QEMU spends its time, record with --detail full.";
    }
    if analysis.images.is_empty() {
        return "The recording has no guest image, so this shows the devices only.";
    }
    let busy = |disk: &&QemuDisk| disk.reads + disk.writes + disk.flushes + disk.discards > 0;
    let mut busy = analysis.qemu.iter().filter(busy).peekable();
    if busy.peek().is_none() {
        return "No request of QEMU was recorded on a disk, so its latency cannot be split. The devices below are complete.";
    }
    if busy.all(|disk| disk.disk.is_none()) {
        return "QEMU's requests went to an unknown disk (plugged in later?), so their latency cannot be split.";
    }
    if analysis.images.iter().any(|image| image.file_io.is_some()) {
        return "QEMU's file I/O was not seen or cannot be attributed to a disk, so the latency of its requests cannot be split. See \"What is missing\" below.";
    }
    "QEMU's file I/O was not recorded, so its latency cannot be split between QEMU and the host."
}

//! The table of block devices, and what stands out on each.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Device, User};

use super::{Page, device_name, disk_name, only_guest};
use crate::table::{Table, shorten};
use crate::units::{count, of, percent, rate, size, time};

/// Processes listed for a device, beside guests, file system and loop devices.
const MAX_PROCESSES: usize = 3;

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    let of_side = |side: &str| -> Vec<&Device> {
        let devices = analysis.devices.iter();
        devices.filter(|device| device.side == side).collect()
    };
    let (host, guests) = (of_side("host"), of_side("guest"));
    if !host.is_empty() {
        page.section("Block devices of the host");
        devices(&host, analysis, page);
        users(&host, analysis, page);
    }
    if !guests.is_empty() {
        match only_guest(analysis) {
            Some(guest) => page.section(&format!("The disks from inside {}", shorten(guest, 50))),
            None => page.section("The disks from inside the guests"),
        }
        devices(&guests, analysis, page);
    }
}

fn devices(devices: &[&Device], analysis: &Analysis, page: &mut Page) {
    let only = only_guest(analysis);
    let mut table = Table::new(&[
        "device", "I/Os", "read", "written", "q2c", "p99", "d2c", "p99", "depth",
    ]);
    for device in devices {
        let latency = device.latency_ns.all;
        let value = |ns: Option<u64>| ns.map_or_else(|| String::from("–"), time);
        table.row(vec![
            device_name(device, only),
            count(device.counts.completed),
            size(device.bytes.read),
            size(device.bytes.write),
            value(latency.q2c.and_then(|dist| dist.mean)),
            value(latency.q2c.and_then(|dist| dist.p99)),
            value(latency.d2c.and_then(|dist| dist.mean)),
            value(latency.d2c.and_then(|dist| dist.p99)),
            depth(device.queue_depth.mean),
        ]);
    }
    page.table(&table);
    page.paragraph("(q2c: queued to completed, d2c: at the device; mean and 99th percentile)");
    for device in devices {
        if let Some(beyond) = beyond_data(device, only) {
            page.paragraph(&format!("{beyond}."));
        }
        let also = remarks(device);
        if !also.is_empty() {
            page.paragraph(&format!(
                "{}: {}.",
                device_name(device, only),
                also.join(", ")
            ));
        }
    }
}

/// That Q2C of a guest's disk ends with the data, where flushes came after it: its chains last longer then.
pub(crate) fn beyond_data(device: &Device, only: Option<&str>) -> Option<String> {
    let figures = &device.figures;
    if device.side != "guest" || figures.flushed_after == 0 {
        return None;
    }
    let whole = figures.to_end_write_ns;
    Some(format!(
        "{}: q2c ends with the data, the flush that {} had after it is not in it; to their end writes took {} on average (p99 {})",
        device_name(device, only),
        of(figures.flushed_after, "write", "writes"),
        time(whole.mean.unwrap_or(0)),
        time(whole.p99.unwrap_or(0)),
    ))
}

fn depth(mean: f64) -> String {
    if mean > 0.0 && mean < 0.05 {
        return String::from("< 0.1");
    }
    format!("{mean:.1}")
}

fn remarks(device: &Device) -> Vec<String> {
    let counts = &device.counts;
    let mut also = Vec::new();
    for (bytes, verb) in [(device.bytes.read, "read"), (device.bytes.write, "written")] {
        if bytes > 0 && device.recorded_ns > 0 {
            also.push(format!("{} {verb}", rate(bytes, device.recorded_ns)));
        }
    }
    let mut some = |n: Option<u64>, one: &str, many: &str| {
        if let Some(n) = n.filter(|n| *n > 0) {
            also.push(of(n, one, many));
        }
    };
    some(Some(counts.flushes), "empty flush", "empty flushes");
    some(
        Some(counts.device_flushes),
        "flush at the device",
        "flushes at the device",
    );
    some(Some(counts.discards), "discard", "discards");
    let merges = counts.back_merges.unwrap_or(0)
        + counts.front_merges.unwrap_or(0)
        + counts.request_merges.unwrap_or(0);
    some(Some(merges), "merge", "merges");
    some(counts.splits, "split", "splits");
    some(counts.requeues, "requeue", "requeues");
    some(
        Some(counts.readahead),
        "read-ahead request",
        "read-ahead requests",
    );
    some(Some(counts.meta), "metadata request", "metadata requests");
    if let Some(mean) = device.latency_ns.flush.and_then(|dist| dist.mean) {
        also.push(format!("{} for each flush", time(mean)));
    }
    if let Some(share) = device
        .seek_sectors
        .d2d
        .as_ref()
        .and_then(|seek| seek.sequential_share)
    {
        also.push(format!("{} sequential", percent(share)));
    }
    also.push(format!("busy {}", percent(device.queue_depth.busy_share)));
    also
}

fn users(devices: &[&Device], analysis: &Analysis, page: &mut Page) {
    let mut table = Table::new(&[
        "whose I/O",
        "on",
        "requests",
        "bytes",
        "device time",
        "share",
    ]);
    for device in devices {
        let Some(users) = &device.users else { continue };
        let mut processes = 0;
        for user in users {
            processes += usize::from(user.kind == "process");
            if user.kind == "process" && processes > MAX_PROCESSES {
                continue;
            }
            table.row(vec![
                user_name(user, only_guest(analysis).is_some()),
                device.name.clone(),
                count(user.requests),
                size(user.bytes),
                time(user.device_ns),
                percent(user.share),
            ]);
        }
    }
    if !table.is_empty() {
        page.section("Who used them");
        page.table(&table);
    }
}

fn user_name(user: &User, one_guest: bool) -> String {
    let name = user.name.as_deref().unwrap_or("unknown");
    match user.kind {
        "image" => format!(
            "{} (image)",
            disk_name(
                user.guest
                    .as_deref()
                    .filter(|_| !one_guest)
                    .unwrap_or_default(),
                user.disk.as_deref()
            )
        ),
        "guest" => format!("{} (other files)", user.guest.as_deref().unwrap_or(name)),
        "file_system" => String::from("file system (shared)"),
        "loop" => format!("file beneath {name}"),
        _ => user
            .pid
            .map_or_else(|| name.to_owned(), |pid| format!("{name} [{pid}]")),
    }
}

//! The table of block devices, and what stands out on each.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Device, Side, User, UserKind};

use super::{Page, device_name, disk_name, only_guest};
use crate::table::{Table, shorten};
use crate::units::{count, of, percent, rate, size, time};

/// Processes listed for a device, beside guests, file system and loop devices; a last line has the others.
const MAX_PROCESSES: usize = 3;
/// Files listed for a guest's disk; `--format json` has more.
const MAX_FILES: usize = 5;
/// What the table of files is called, and how to read it.
pub(crate) const WHAT_FILES: &str = "Files with most time in the guest's block layer";
pub(crate) const NO_PATHS: &str = "(time: summed from queued to completed, share: of all bios with data; in the guest `find MOUNT -xdev -inum N` gives the path)";
/// What the tables of users are called.
pub(crate) const WHO_USED: &str = "Who used them";
pub(crate) const WHO_IN_GUEST: &str = "Who queued it in the guest";

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    let of_side = |side: Side| -> Vec<&Device> {
        let devices = analysis.devices.iter();
        devices.filter(|device| device.side == side).collect()
    };
    let (host, guests) = (of_side(Side::Host), of_side(Side::Guest));
    if !host.is_empty() {
        page.section("Block devices of the host");
        devices(&host, analysis, page);
        users(WHO_USED, &host, analysis, page);
    }
    if !guests.is_empty() {
        match only_guest(analysis) {
            Some(guest) => page.section(&format!("Disks inside {}", shorten(guest, 50))),
            None => page.section("Disks inside the guests"),
        }
        devices(&guests, analysis, page);
        users(WHO_IN_GUEST, &guests, analysis, page);
        let table = files_table(&guests, only_guest(analysis));
        if !table.is_empty() {
            page.section(WHAT_FILES);
            page.table(&table);
            page.paragraph(NO_PATHS);
        }
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

/// A note where flushes came after the data: Q2C of a guest's disk ends with the data, so its chains last longer.
pub(crate) fn beyond_data(device: &Device, only: Option<&str>) -> Option<String> {
    let figures = &device.figures;
    if device.side != Side::Guest || figures.flushed_after == 0 {
        return None;
    }
    let whole = figures.to_end_write_ns;
    Some(format!(
        "{}: q2c ends with the data and leaves out the flush after {}; with that flush, writes took {} on average (p99 {})",
        device_name(device, only),
        of(figures.flushed_after, "write", "writes"),
        time(whole.mean.unwrap_or(0)),
        time(whole.p99.unwrap_or(0)),
    ))
}

/// A mean depth: what is not idle is never 0.
pub(crate) fn depth(mean: f64) -> String {
    if mean > 0.0 && mean < 0.05 {
        return String::from("< 0.1");
    }
    format!("{mean:.1}")
}

/// The server that does a device's I/O.
pub(crate) fn at_server(device: &Device) -> Option<String> {
    let server = device.server.as_ref()?;
    Some(format!("its data is at the {server}"))
}

fn remarks(device: &Device) -> Vec<String> {
    let counts = &device.counts;
    let mut also: Vec<String> = at_server(device).into_iter().collect();
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
        also.push(format!("{} per flush", time(mean)));
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

fn users(title: &str, devices: &[&Device], analysis: &Analysis, page: &mut Page) {
    let table = users_table(devices, only_guest(analysis));
    if !table.is_empty() {
        page.section(title);
        page.table(&table);
    }
}

/// Who sent a device's I/O: on the host, guests' images, the file system and processes; in a guest, its processes. The
/// table is complete: processes beyond the largest share a line.
pub(crate) fn users_table(devices: &[&Device], only_guest: Option<&str>) -> Table {
    let mut table = Table::new(&["I/O of", "on", "requests", "bytes", "device time", "share"]);
    for device in devices {
        let users = device.users.iter().flatten();
        let (processes, others): (Vec<&User>, Vec<&User>) =
            users.partition(|user| user.kind == UserKind::Process);
        let (largest, rest) = processes.split_at(processes.len().min(MAX_PROCESSES));
        // A line for one process is no longer than one that says there is one more.
        let (largest, rest) = match rest {
            [_] => (processes.as_slice(), &[][..]),
            rest => (largest, rest),
        };
        let mut shown: Vec<(String, User)> = others
            .into_iter()
            .chain(largest.iter().copied())
            .map(|user| (user_name(user, device, only_guest), user.clone()))
            .collect();
        shown.sort_by_key(|(_, user)| std::cmp::Reverse((user.device_ns, user.bytes)));
        if !rest.is_empty() {
            let name = of(rest.len() as u64, "more process", "more processes");
            shown.push((name, sum(rest)));
        }
        for (name, user) in shown {
            table.row(vec![
                name,
                device_name(device, only_guest),
                count(user.requests),
                size(user.bytes),
                time(user.device_ns),
                percent(user.share),
            ]);
        }
    }
    table
}

/// The files whose data a guest's disks moved: by inode, since a recording holds no paths.
pub(crate) fn files_table(devices: &[&Device], only_guest: Option<&str>) -> Table {
    let mut table = Table::new(&["file", "on", "bios", "read", "written", "time", "share"]);
    for device in devices {
        let files = device.files.iter().flatten();
        for file in files.take(MAX_FILES) {
            table.row(vec![
                format!("inode {} on {}", file.inode, file.mount_point),
                device_name(device, only_guest),
                count(file.bios),
                size(file.bytes.read),
                size(file.bytes.write),
                time(file.q2c_ns),
                percent(file.share),
            ]);
        }
    }
    table
}

/// Several users as one.
fn sum(users: &[&User]) -> User {
    users.iter().fold(User::default(), |mut all, user| {
        all.requests = all.requests.saturating_add(user.requests);
        all.bytes = all.bytes.saturating_add(user.bytes);
        all.device_ns = all.device_ns.saturating_add(user.device_ns);
        all.share += user.share;
        all
    })
}

fn user_name(user: &User, device: &Device, only_guest: Option<&str>) -> String {
    let name = user.name.as_deref().unwrap_or("unknown");
    match user.kind {
        UserKind::Image => format!(
            "{} (image)",
            disk_name(
                user.guest
                    .as_deref()
                    .filter(|_| only_guest.is_none())
                    .unwrap_or_default(),
                user.disk.as_deref()
            )
        ),
        UserKind::Guest => format!("{} (other files)", user.guest.as_deref().unwrap_or(name)),
        // In a guest the bio tells it from data; on the host all users share it.
        UserKind::FileSystem if device.guest.is_some() => {
            String::from("file system (journal, metadata)")
        }
        UserKind::FileSystem => String::from("file system (shared)"),
        UserKind::Loop => format!("file under {name}"),
        _ => user
            .pid
            .map_or_else(|| name.to_owned(), |pid| format!("{name} [{pid}]")),
    }
}

//! The tables of QEMU's requests and of the image files.

use nestrace_analyzer::analysis::{Image, Job};
use nestrace_analyzer::{Analysis, Dist};

use super::{Page, disk_name, only_guest};
use crate::table::{Table, shorten};
use crate::units::{count, of, size, time};

/// What the table of QEMU's requests shows.
pub(crate) const AS_QEMU_ACCOUNTS: &str = "as QEMU accounts them (mean latency, worst p99)";
/// The heading of the jobs.
const JOBS: &str = "Jobs of QEMU's own";
/// The heading of the images.
pub(crate) const IMAGE_FILES: &str =
    "Image files: QEMU's file I/O, and what reached the first device";

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    qemu(analysis, page);
    jobs(analysis, page);
    images(analysis, page);
}

fn mean(dist: Dist) -> String {
    dist.mean.map_or_else(|| String::from("–"), time)
}

fn qemu(analysis: &Analysis, page: &mut Page) {
    let only = only_guest(analysis);
    let (table, remarks) = qemu_table(analysis, only);
    if !table.is_empty() || !remarks.is_empty() {
        let whose = shorten(only.unwrap_or("the guests"), 18);
        page.section(&format!("Requests of {whose}, {AS_QEMU_ACCOUNTS}"));
        page.table(&table);
        remarks.iter().for_each(|line| page.paragraph(line));
    }
}

/// QEMU's requests of each disk, and what the table has no column for. Of the only guest the name is left out.
pub(crate) fn qemu_table(analysis: &Analysis, only: Option<&str>) -> (Table, Vec<String>) {
    let mut table = Table::new(&[
        "disk", "reads", "writes", "flushes", "merged", "read", "write", "flush", "p99",
    ]);
    let mut remarks = Vec::new();
    for disk in &analysis.qemu {
        let guest = only.map_or(disk.guest.as_str(), |_| "");
        let name = disk_name(guest, disk.disk.as_deref());
        if disk.failed + disk.invalid > 0 {
            let failed = of(
                disk.failed + disk.invalid,
                "request failed",
                "requests failed",
            );
            remarks.push(format!("{name}: {failed}."));
        }
        if disk.discards > 0 {
            remarks.push(format!(
                "{name}: {} ({}).",
                of(disk.discards, "discard", "discards"),
                bytes_and_time(disk.discards, disk.bytes.discard, disk.latency_ns.discard)
            ));
        }
        if disk.reads + disk.writes + disk.flushes + disk.discards == 0 {
            continue;
        }
        let latency = disk.latency_ns;
        let p99 = [latency.read.p99, latency.write.p99, latency.flush.p99]
            .into_iter()
            .flatten()
            .max();
        table.row(vec![
            name,
            count(disk.reads),
            count(disk.writes),
            count(disk.flushes),
            disk.merged.map_or_else(|| String::from("–"), count),
            mean(latency.read),
            mean(latency.write),
            mean(latency.flush),
            p99.map_or_else(|| String::from("–"), time),
        ]);
    }
    (table, remarks)
}

/// `9.81 MiB in all, 625 µs each`: the bytes of all of them, the mean time of one.
fn bytes_and_time(n: u64, bytes: u64, latency: Dist) -> String {
    let in_all = if n == 1 { "" } else { " in all" };
    format!("{}{in_all}, {}{}", size(bytes), mean(latency), each(n))
}

/// Says of a mean that there are several.
fn each(n: u64) -> &'static str {
    if n == 1 { "" } else { " each" }
}

fn jobs(analysis: &Analysis, page: &mut Page) {
    if analysis.jobs.is_empty() {
        return;
    }
    page.section(JOBS);
    let only = only_guest(analysis);
    for job in &analysis.jobs {
        page.paragraph(&of_job(job, only));
    }
}

/// A job, what it copied, and what waited for it.
pub(crate) fn of_job(job: &Job, only: Option<&str>) -> String {
    let guest = only.map_or(job.guest.as_str(), |_| "");
    let disk = disk_name(guest, job.disk.as_deref());
    let target = job.target.as_deref();
    let target = target.map_or_else(String::new, |target| format!(" to {}", shorten(target, 40)));
    let mut text = format!("{} {} of {disk}{target}.", job.kind, shorten(&job.id, 24));
    if let Some(copies) = job.copies.filter(|copies| copies.n > 0) {
        let (read, write) = (mean(copies.read_ns), mean(copies.write_ns));
        text.push_str(&format!(
            " {} ({}; {read} to read and {write} to write).",
            of(copies.n, "copy", "copies"),
            size(copies.bytes)
        ));
    }
    if let Some(waits) = job.guest_waits {
        let waited = match waits.n {
            0 => String::from("No request of the guest waited for it"),
            n => format!(
                "{} waited for it, {}{}",
                of(n, "request of the guest", "requests of the guest"),
                mean(waits.latency_ns),
                each(n)
            ),
        };
        text.push_str(&format!(" {waited}."));
    }
    text
}

fn images(analysis: &Analysis, page: &mut Page) {
    let images = used_images(analysis);
    if images.is_empty() {
        return;
    }
    page.section(IMAGE_FILES);
    for image in images {
        let path = shorten(&image.path, page.options.width.saturating_sub(30));
        page.line(&format!("  {path} ({})", on_what(image)));
        for line in crate::table::wrap(&done_to(image), page.options.width, "    ") {
            page.line(&line);
        }
    }
}

/// Images to which something was done.
pub(crate) fn used_images(analysis: &Analysis) -> Vec<&Image> {
    let used = |image: &&Image| {
        let files = image
            .file_io
            .as_ref()
            .is_some_and(|io| io.reads + io.writes + io.syncs + io.failed > 0);
        let bytes = image.host_bytes;
        files || bytes.is_some_and(|bytes| bytes.read + bytes.write > 0)
    };
    analysis.images.iter().filter(used).collect()
}

/// `qcow2 on xfs`, and where a server holds that.
pub(crate) fn on_what(image: &Image) -> String {
    let mut text = match &image.fs_type {
        Some(fs) => format!("{} on {fs}", image.format),
        None => image.format.clone(),
    };
    for server in &image.servers {
        text.push_str(&format!(", at the {server}"));
    }
    text
}

/// What QEMU did to the file, and what of it reached the device.
pub(crate) fn done_to(image: &Image) -> String {
    let mut facts = Vec::new();
    if let Some(io) = &image.file_io {
        let mut data = |n: u64, one: &str, many: &str, bytes: u64, latency: Dist| {
            if n > 0 {
                let (n_of, rest) = (of(n, one, many), bytes_and_time(n, bytes, latency));
                facts.push(format!("{n_of} ({rest})"));
            }
        };
        let (bytes, latency) = (io.bytes, &io.latency_ns);
        data(io.reads, "read", "reads", bytes.read, latency.read);
        data(io.writes, "write", "writes", bytes.write, latency.write);
        if io.syncs > 0 {
            facts.push(format!(
                "{} ({}{})",
                of(io.syncs, "sync", "syncs"),
                mean(io.latency_ns.sync),
                each(io.syncs)
            ));
        }
        if io.dsync > 0 {
            facts.push(format!("{} with DSYNC", of(io.dsync, "write", "writes")));
        }
        if io.failed > 0 {
            facts.push(of(io.failed, "call failed", "calls failed"));
        }
        if io.buffered_fallback > 0 {
            facts.push(format!(
                "O_DIRECT fell back to the page cache for {} ({})",
                of(io.buffered_fallback, "bio", "bios"),
                size(io.buffered_fallback_bytes)
            ));
        }
    }
    if let Some(rpcs) = &image.rpcs {
        let at_server = &rpcs.at_server_ns;
        for (n, one, many, latency) in [
            (rpcs.reads, "read", "reads", at_server.read),
            (rpcs.writes, "write", "writes", at_server.write),
            (rpcs.commits, "commit", "commits", at_server.sync),
        ] {
            if n > 0 {
                let time = format!("{}{}", mean(latency), each(n));
                facts.push(format!("{} at the server ({time})", of(n, one, many)));
            }
        }
    }
    if let Some(bytes) = image.host_bytes {
        facts.push(format!(
            "to the device {} read, {} written",
            size(bytes.read),
            size(bytes.write)
        ));
    }
    format!("{}.", facts.join("; "))
}

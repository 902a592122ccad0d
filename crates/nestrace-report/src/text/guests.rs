//! The tables of QEMU's requests and of the image files.

use nestrace_analyzer::{Analysis, Dist};

use super::{Page, disk_name, only_guest};
use crate::table::{Table, shorten};
use crate::units::{count, of, size, time};

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    qemu(analysis, page);
    images(analysis, page);
}

fn mean(dist: Dist) -> String {
    dist.mean.map_or_else(|| String::from("–"), time)
}

fn qemu(analysis: &Analysis, page: &mut Page) {
    let mut table = Table::new(&[
        "disk", "reads", "writes", "flushes", "merged", "read", "write", "flush", "p99",
    ]);
    let only = only_guest(analysis);
    let mut remarks = Vec::new();
    for disk in &analysis.qemu {
        let guest = only.map_or(disk.guest.as_str(), |_| "");
        let name = disk_name(guest, disk.disk.as_deref());
        if disk.failed + disk.invalid > 0 {
            remarks.push(format!(
                "{name}: {}",
                of(
                    disk.failed + disk.invalid,
                    "request failed",
                    "requests failed"
                )
            ));
        }
        if disk.discards > 0 {
            remarks.push(format!(
                "{name}: {} ({})",
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
    if !table.is_empty() || !remarks.is_empty() {
        let whose = shorten(only.unwrap_or("the guests"), 18);
        page.section(&format!(
            "Requests of {whose}, as QEMU accounts them (mean latency, worst p99)"
        ));
        page.table(&table);
        remarks
            .iter()
            .for_each(|line| page.paragraph(&format!("{line}.")));
    }
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

fn images(analysis: &Analysis, page: &mut Page) {
    let used: Vec<_> = analysis
        .images
        .iter()
        .filter(|image| {
            let files = image
                .file_io
                .as_ref()
                .is_some_and(|io| io.reads + io.writes + io.syncs + io.failed > 0);
            files
                || image
                    .host_bytes
                    .is_some_and(|bytes| bytes.read + bytes.write > 0)
        })
        .collect();
    if used.is_empty() {
        return;
    }
    page.section("Image files: QEMU's file I/O, and what reached the first device");
    for image in used {
        let place = image
            .fs_type
            .as_deref()
            .map_or_else(String::new, |fs| format!(" on {fs}"));
        let path = shorten(&image.path, page.options.width.saturating_sub(30));
        page.line(&format!("  {path} ({}{place})", image.format));
        let mut facts = Vec::new();
        if let Some(io) = &image.file_io {
            let data = |n: u64, one: &str, many: &str, bytes: u64, latency: Dist| {
                (n > 0).then(|| {
                    format!(
                        "{} ({})",
                        of(n, one, many),
                        bytes_and_time(n, bytes, latency)
                    )
                })
            };
            facts.extend(data(
                io.reads,
                "read",
                "reads",
                io.bytes.read,
                io.latency_ns.read,
            ));
            facts.extend(data(
                io.writes,
                "write",
                "writes",
                io.bytes.write,
                io.latency_ns.write,
            ));
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
                    "O_DIRECT fell back to the page cache: {} ({})",
                    of(io.buffered_fallback, "bio", "bios"),
                    size(io.buffered_fallback_bytes)
                ));
            }
        }
        if let Some(bytes) = image.host_bytes {
            facts.push(format!(
                "to the device {} read, {} written",
                size(bytes.read),
                size(bytes.write)
            ));
        }
        for line in crate::table::wrap(
            &format!("{}.", facts.join("; ")),
            page.options.width,
            "    ",
        ) {
            page.line(&line);
        }
    }
}

//! The table of block devices, and folded beneath it who used them and what QEMU and the images made of it.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::Device;

use super::MOST_LINES;
use super::page::Page;
use crate::table::Table;
use crate::text::amplification::{MADE_OF_IT, layers};
use crate::text::device_name;
use crate::text::devices::{
    NO_PATHS, WHAT_FILES, WHO_IN_GUEST, WHO_USED, beyond_data, depth, files_table, users_table,
};
use crate::text::guests::{
    AS_QEMU_ACCOUNTS, IMAGE_FILES, done_to, on_what, qemu_table, used_images,
};
use crate::units::{count, percent, size, time};

pub(super) fn write(analysis: &Analysis, page: &mut Page) {
    if analysis.devices.is_empty() {
        return;
    }
    page.section("devices", "Block devices");
    let head = [
        "device",
        "I/Os",
        "read",
        "written",
        "Q2C",
        "p99",
        "D2C",
        "p99",
        "depth",
        "busy",
        "sequential",
    ];
    let rows: Vec<Vec<String>> = analysis.devices.iter().take(MOST_LINES).map(row).collect();
    page.table(&head, &rows);
    page.element("p class=note", "Q2C: queued to completed, D2C: at the device; mean and 99th percentile of I/O with data. Depth is a mean over time, sequential the part of requests that begin where the one before ended.");
    for device in analysis.devices.iter().take(MOST_LINES) {
        if let Some(beyond) = beyond_data(device, None) {
            page.element("p class=note", &format!("{beyond}."));
        }
    }
    if analysis.devices.len() > MOST_LINES {
        page.element(
            "p",
            &format!(
                "{} more: see --format json.",
                analysis.devices.len() - MOST_LINES
            ),
        );
    }
    beneath(analysis, page);
    page.end_section();
}

/// What the text has beside the devices: whose their I/O was, and what QEMU and the images made of it.
fn beneath(analysis: &Analysis, page: &mut Page) {
    let of_side = |side: &str| -> Vec<&Device> {
        let devices = analysis.devices.iter().filter(|it| it.side == side);
        devices.take(MOST_LINES).collect()
    };
    for (title, side) in [(WHO_USED, "host"), (WHO_IN_GUEST, "guest")] {
        page.folded(title, &users_table(&of_side(side), None), &[]);
    }
    let files = files_table(&of_side("guest"), None);
    let how = [NO_PATHS.to_owned()];
    let how = if files.is_empty() { &[][..] } else { &how };
    page.folded(WHAT_FILES, &files, how);
    let (table, remarks) = qemu_table(analysis, None);
    page.folded(&format!("Requests, {AS_QEMU_ACCOUNTS}"), &table, &remarks);
    let images = used_images(analysis);
    let said: Vec<String> = images
        .iter()
        .take(MOST_LINES)
        .map(|image| format!("{} ({}): {}", image.path, on_what(image), done_to(image)))
        .collect();
    page.folded(IMAGE_FILES, &Table::default(), &said);
    let (table, remarks) = layers(analysis, None);
    page.folded(MADE_OF_IT, &table, &remarks);
}

fn row(device: &Device) -> Vec<String> {
    let latency = device.latency_ns.all;
    let value = |ns: Option<u64>| ns.map_or_else(|| String::from("–"), time);
    let sequential = device
        .seek_sectors
        .d2d
        .as_ref()
        .and_then(|seek| seek.sequential_share);
    vec![
        device_name(device, None),
        count(device.counts.completed),
        size(device.bytes.read),
        size(device.bytes.write),
        value(latency.q2c.and_then(|dist| dist.mean)),
        value(latency.q2c.and_then(|dist| dist.p99)),
        value(latency.d2c.and_then(|dist| dist.mean)),
        value(latency.d2c.and_then(|dist| dist.p99)),
        depth(device.queue_depth.mean),
        percent(device.queue_depth.busy_share),
        sequential.map_or_else(|| String::from("–"), percent),
    ]
}

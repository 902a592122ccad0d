//! The table of block devices.

use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::Device;

use super::MOST_LINES;
use super::page::Page;
use crate::text::device_name;
use crate::text::devices::beyond_data;
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
    page.end_section();
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
        format!("{:.1}", device.queue_depth.mean),
        percent(device.queue_depth.busy_share),
        sequential.map_or_else(|| String::from("–"), percent),
    ]
}

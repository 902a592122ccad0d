//! The table of block devices. Folded below it: who used them, and what QEMU and the images made of the I/O.

use maud::{Markup, html};
use nestrace_analyzer::Analysis;
use nestrace_analyzer::analysis::{Device, Side};

use super::MAX_LINES;
use super::page::{folded, more, note, section, table};
use crate::table::Table;
use crate::text::amplification::{MADE_OF_IT, layers};
use crate::text::device_name;
use crate::text::devices::{
    NO_PATHS, WHAT_FILES, WHO_IN_GUEST, WHO_USED, at_server, beyond_data, depth, files_table,
    users_table,
};
use crate::text::guests::{
    AS_QEMU_ACCOUNTS, IMAGE_FILES, done_to, on_what, qemu_table, used_images,
};
use crate::units::{count, percent, size, time};

/// Columns of the table.
const HEAD: [&str; 11] = [
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

pub(super) fn devices(analysis: &Analysis) -> Markup {
    if analysis.devices.is_empty() {
        return Markup::default();
    }
    let shown = || analysis.devices.iter().take(MAX_LINES);
    let rows: Vec<Vec<String>> = shown().map(row).collect();
    let body = html! {
        (table(&HEAD, &rows))
        (note("Q2C: from queue to completion. D2C: at the device. Both are the mean and the 99th percentile of I/O with data. Depth: mean number of requests in flight. Sequential: share of requests that begin where the one before ended."))
        @for (device, server) in shown().filter_map(|device| Some((device, at_server(device)?))) {
            (note(&format!("{}: {server}.", device_name(device, None))))
        }
        @for beyond in shown().filter_map(|device| beyond_data(device, None)) {
            (note(&format!("{beyond}.")))
        }
        (more(analysis.devices.len(), MAX_LINES))
        (beneath(analysis))
    };
    section("devices", "Block devices", &body)
}

/// What the text has beside the devices: whose their I/O was, and what QEMU and the images made of it.
fn beneath(analysis: &Analysis) -> Markup {
    let of_side = |side: Side| -> Vec<&Device> {
        let devices = analysis.devices.iter().filter(|it| it.side == side);
        devices.take(MAX_LINES).collect()
    };
    let files = files_table(&of_side(Side::Guest), None);
    let how = [NO_PATHS.to_owned()];
    let how = if files.is_empty() { &[][..] } else { &how };
    let (qemu, of_qemu) = qemu_table(analysis, None);
    let images = used_images(analysis);
    let said: Vec<String> = images
        .iter()
        .take(MAX_LINES)
        .map(|image| format!("{} ({}): {}", image.path, on_what(image), done_to(image)))
        .collect();
    let (made, of_layers) = layers(analysis, None);
    html! {
        @for (title, side) in [(WHO_USED, Side::Host), (WHO_IN_GUEST, Side::Guest)] {
            (folded(title, &users_table(&of_side(side), None), &[]))
        }
        (folded(WHAT_FILES, &files, how))
        (folded(&format!("Requests, {AS_QEMU_ACCOUNTS}"), &qemu, &of_qemu))
        (folded(IMAGE_FILES, &Table::default(), &said))
        (folded(MADE_OF_IT, &made, &of_layers))
    }
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

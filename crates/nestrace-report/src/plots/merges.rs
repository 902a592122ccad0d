//! What becomes of bios on their way to requests, and what is read ahead, at each layer.

use nestrace_analyzer::analysis::Device;

use super::{Axis, Chart, ColumnGroup, Columns, Hue, Plot, Subject, Unit};

const CLASSES: [&str; 5] = ["bios", "merged", "split", "requests", "read ahead"];

pub(super) fn plot(subject: &Subject<'_>) -> Option<Plot> {
    let guest = subject
        .guest
        .and_then(|device| group(device, subject.guest_name(), Hue::Guest));
    let host = subject
        .host
        .and_then(|device| group(device, subject.host_name(), Hue::Device));
    let mut groups: Vec<ColumnGroup> = guest.into_iter().collect();
    if let Some(qemu) = subject.qemu {
        groups.push(ColumnGroup {
            label: String::from("QEMU"),
            hue: Hue::Qemu,
            tint: 1.0,
            values: vec![
                (qemu.reads + qemu.writes + qemu.discards) as f64,
                qemu.merged.unwrap_or(0) as f64,
                0.0,
                (qemu.reads + qemu.writes + qemu.discards).saturating_sub(qemu.merged.unwrap_or(0))
                    as f64,
                0.0,
            ],
        });
    }
    groups.extend(host);
    (!groups.is_empty()).then(|| Plot {
        id: format!("merges-{}", subject.slug),
        subject: subject.name.clone(),
        question: String::from("What does each layer merge, split and read ahead?"),
        note: String::from("Bios at Q (for QEMU: the requests that it gets), bios merged into others, pieces split off, requests at D, and how many of these are read-ahead."),
        chart: Chart::Columns(Columns {
            x_title: String::new(),
            y: Axis::linear("number", Unit::Count),
            classes: CLASSES.map(str::to_owned).to_vec(),
            groups,
        }),
    })
}

fn group(device: &Device, label: String, hue: Hue) -> Option<ColumnGroup> {
    let counts = &device.counts;
    let queued = counts.queued?;
    let merged = [
        counts.back_merges,
        counts.front_merges,
        counts.request_merges,
    ];
    let merged: u64 = merged.into_iter().flatten().sum();
    let values = [
        queued,
        merged,
        counts.splits.unwrap_or(0),
        counts.issued,
        counts.readahead,
    ];
    Some(ColumnGroup {
        label,
        hue,
        tint: 1.0,
        values: values.map(|n| n as f64).to_vec(),
    })
}

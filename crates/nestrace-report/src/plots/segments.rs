//! Where the time of each operation goes.

use nestrace_analyzer::analysis::{Chains, Device, Segment};
use nestrace_analyzer::verdict::DiskVerdict;

use super::{Chart, Hue, Plot, Span, SpanRow, Spans, Subject, Unit};
use crate::layers::{is_folded, layer_name};
use crate::units::{of, time};

/// Layer and strength of a segment.
pub(super) fn look(name: &str) -> (Hue, f64) {
    match name {
        "guest_fs_submit" | "guest_fs_between" | "guest_fs_complete" => (Hue::GuestFs, 1.0),
        "guest_dirty_throttle" | "guest_journal" | "guest_page_wait" => (Hue::GuestFs, 0.6),
        "guest_queue" => (Hue::Guest, 1.0),
        "virt_submit" => (Hue::Virt, 1.0),
        "virt_complete" => (Hue::Virt, 0.65),
        "qemu_submit" => (Hue::Qemu, 1.0),
        "qemu_job" => (Hue::Qemu, 0.4),
        "qemu_between" => (Hue::Qemu, 0.8),
        "qemu_complete" => (Hue::Qemu, 0.6),
        "host_fs_submit" => (Hue::HostFs, 1.0),
        "host_fs_between" => (Hue::HostFs, 0.8),
        "host_fs_complete" => (Hue::HostFs, 0.6),
        "host_queue" => (Hue::HostQueue, 1.0),
        "stack_submit" => (Hue::Stack, 1.0),
        "stack_between" => (Hue::Stack, 0.8),
        "stack_complete" => (Hue::Stack, 0.6),
        "device" => (Hue::Device, 1.0),
        "device_flush" => (Hue::Flush, 1.0),
        "remote" => (Hue::Device, 0.7),
        _ => (Hue::Neutral, 1.0),
    }
}

/// Layer of a segment.
pub(crate) fn hue(name: &str) -> Hue {
    look(name).0
}

/// btt's parts of Q2C, for a device alone.
const PARTS: [(&str, &str, Hue, f64); 8] = [
    ("q2g", "Q2G", Hue::Guest, 1.0),
    ("q2m", "Q2M", Hue::Guest, 0.6),
    ("g2i", "G2I", Hue::Virt, 1.0),
    ("i2d", "I2D (scheduler)", Hue::HostQueue, 1.0),
    ("g2d", "G2D", Hue::HostQueue, 0.8),
    ("m2d", "M2D (merged)", Hue::HostQueue, 0.6),
    ("q2d", "Q2D", Hue::Neutral, 1.0),
    ("d2c", "D2C (device)", Hue::Device, 1.0),
];

pub(super) fn plot(subjects: &[Subject<'_>]) -> Option<Plot> {
    let rows: Vec<SpanRow> = subjects.iter().flat_map(rows).collect();
    if rows.is_empty() {
        return None;
    }
    let is_followed = subjects.iter().any(|subject| is_followed(subject));
    let is_estimated = subjects.iter().any(|subject| subject.verdict.is_some());
    let note = match (is_followed, is_estimated) {
        (true, _) => {
            "Each bar is the whole latency of the guest's I/O, from queue to completion. A colour is a layer, and its shades are steps: strong is the way down, pale is the way back, medium is the time between two I/Os of the layer below."
        }
        (false, true) => {
            "Each bar is the whole time of QEMU's requests. The split is an estimate from what the host did at the same time."
        }
        (false, false) => {
            "Each bar is the time of a device's bios from queue to completion, split as btt does."
        }
    };
    Some(Plot {
        id: String::from("segments"),
        subject: String::new(),
        question: String::from("Where does the time of an I/O go?"),
        note: note.to_owned(),
        chart: Chart::Spans(Spans {
            unit: Unit::Share,
            title: String::from("share of the time"),
            keys: keys(&rows, is_followed || is_estimated),
            rows,
        }),
    })
}

/// Layers of disks, parts of devices: those that occur.
fn keys(rows: &[SpanRow], are_layers: bool) -> Vec<(String, Hue, f64)> {
    let spans = || rows.iter().flat_map(|row| &row.spans);
    if are_layers {
        let occurs = |hue: &Hue| spans().any(|span| span.hue == *hue);
        let hues = Hue::ALL.into_iter().filter(occurs);
        return hues
            .map(|hue| (hue.meaning().to_owned(), hue, 1.0))
            .collect();
    }
    let parts = PARTS.into_iter();
    parts
        .filter(|(name, ..)| spans().any(|span| span.name == *name))
        .map(|(_, words, hue, tint)| (words.to_owned(), hue, tint))
        .collect()
}

fn is_followed(subject: &Subject<'_>) -> bool {
    subject.chains.is_some_and(|chains| chains.linked > 0)
}

fn rows(subject: &Subject<'_>) -> Vec<SpanRow> {
    if let Some(chains) = subject.chains.filter(|chains| chains.linked > 0) {
        let latency = &chains.latency_ns;
        let operations = [
            ("reads", latency.read, &chains.by_op.read),
            ("writes", latency.write, &chains.by_op.write),
            ("discards", latency.discard, &chains.by_op.discard),
            ("flushes", latency.flush, &chains.by_op.flush),
        ];
        let done = operations
            .into_iter()
            .filter(|(_, latency, _)| latency.n > 0);
        return done
            .map(|(operation, latency, segments)| SpanRow {
                label: format!("{} {operation}", subject.name),
                detail: format!(
                    "{} in {}{}",
                    of(latency.n, "I/O", "I/Os"),
                    mean(latency.mean),
                    beneath(chains)
                ),
                spans: stacked(segments.iter().flat_map(parts)),
            })
            .collect();
    }
    if let Some(verdict) = subject.verdict.filter(|verdict| verdict.qemu_ns > 0) {
        return vec![of_verdict(subject, verdict)];
    }
    subject
        .host
        .or(subject.guest)
        .and_then(|device| of_device(subject, device))
        .into_iter()
        .collect()
}

/// Names the layers below that were not recorded.
fn beneath(chains: &Chains) -> &'static str {
    if is_folded(chains, "file_io") {
        "; layers below QEMU not seen"
    } else if is_folded(chains, "host_bio") {
        "; device not seen"
    } else {
        ""
    }
}

fn mean(ns: Option<u64>) -> String {
    ns.map_or_else(
        || String::from("–"),
        |ns| format!("{} on average", time(ns)),
    )
}

/// A segment, or each of its layers.
fn parts(segment: &Segment) -> Vec<(String, (Hue, f64), f64)> {
    let look = look(segment.name);
    match &segment.layers {
        Some(layers) if segment.mean_ns > 0.0 => layers
            .iter()
            .map(|layer| {
                let name = format!("{} {}", segment.name, layer_name(layer));
                (name, look, segment.share * layer.mean_ns / segment.mean_ns)
            })
            .collect(),
        _ => vec![(segment.name.to_owned(), look, segment.share)],
    }
}

fn of_verdict(subject: &Subject<'_>, verdict: &DiskVerdict) -> SpanRow {
    let parts = [
        ("qemu", (Hue::Qemu, 1.0), Some(verdict.qemu_own_ns)),
        ("host_fs", (Hue::HostFs, 1.0), Some(verdict.host_fs_ns)),
        ("host_queue", (Hue::HostQueue, 1.0), verdict.host_queue_ns),
        ("stack", (Hue::Stack, 1.0), verdict.stack_ns),
        ("device", (Hue::Device, 1.0), verdict.device_ns),
    ];
    let share = |ns: u64| ns as f64 / verdict.qemu_ns as f64;
    let parts = parts
        .into_iter()
        .filter_map(|(name, look, ns)| Some((name.to_owned(), look, share(ns?))));
    let each = verdict.qemu_ns / verdict.requests.max(1);
    SpanRow {
        label: subject.name.clone(),
        detail: format!(
            "{} in {}",
            of(verdict.requests, "request", "requests"),
            mean(Some(each))
        ),
        spans: stacked(parts),
    }
}

/// A device alone: btt's parts of Q2C.
fn of_device(subject: &Subject<'_>, device: &Device) -> Option<SpanRow> {
    let path = device.stats.as_ref()?.path_ns;
    let q2c = device.latency_ns.all.q2c.filter(|_| path.q2c > 0)?;
    let ns = [
        path.q2g, path.q2m, path.g2i, path.i2d, path.g2d, path.m2d, path.q2d, path.d2c,
    ];
    let parts = PARTS.into_iter().zip(ns).map(|((name, _, hue, tint), ns)| {
        (name.to_owned(), (hue, tint), ns as f64 / path.q2c as f64)
    });
    Some(SpanRow {
        label: subject.name.clone(),
        detail: format!("{} in {}", of(q2c.n, "bio", "bios"), mean(q2c.mean)),
        spans: stacked(parts),
    })
}

/// Parts one behind the other.
fn stacked(parts: impl Iterator<Item = (String, (Hue, f64), f64)>) -> Vec<Span> {
    let mut from = 0.0;
    let mut spans = Vec::new();
    for (name, (hue, tint), share) in parts.filter(|(.., share)| *share > 0.0) {
        spans.push(Span {
            name,
            from,
            to: from + share,
            hue,
            tint,
        });
        from += share;
    }
    spans
}

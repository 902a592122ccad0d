//! Load by time: I/Os, bytes, latency, and how many at once.

use nestrace_analyzer::analysis::{Device, OpHistograms, Slot};

use super::{Axis, Chart, Hue, Line, Lines, Plot, Subject, Unit};

const MEDIAN: &str = "median";
const P99: &str = "99th percentile";

/// Seconds, and a value.
type Curve = Vec<(f64, f64)>;
/// What is drawn of a device.
type Series = fn(&Device, f64) -> Vec<(&'static str, bool, Curve)>;

pub(super) fn plots(subject: &Subject<'_>, duration_ns: u64) -> Vec<Plot> {
    let end_s = duration_ns as f64 / 1e9;
    let plots: [(&str, &str, &str, Axis, Series); 4] = [
        (
            "iops",
            "How many I/Os per second are asked for?",
            "Reads and writes (bios), by the time of their Q.",
            Axis::linear("I/Os per second", Unit::PerSecond),
            |device, end_s| vec![("", false, rates(device, end_s, |op| op.queued))],
        ),
        (
            "throughput",
            "How many bytes per second are asked for?",
            "Bytes of reads and writes (bios), by the time of their Q.",
            Axis::linear("throughput", Unit::BytesPerSecond),
            |device, end_s| vec![("", false, rates(device, end_s, |op| op.bytes))],
        ),
        (
            "latency-over-time",
            "When is I/O slow?",
            "Latency (Q2C) of bios with data, by the time they ended; accurate to 3 %. Strong: half of them are faster. Pale: 99 of 100 are faster.",
            Axis::log("latency", Unit::Nanoseconds),
            |device, _| {
                let (p50, p99) = latency(device);
                vec![(MEDIAN, false, p50), (P99, true, p99)]
            },
        ),
        (
            "depth",
            "How many requests are in flight at once?",
            "Requests in flight, between D and C. Strong: mean over time. Pale: maximum.",
            Axis::linear("requests", Unit::Count),
            |device, end_s| {
                let (mean, max) = depth(device, end_s);
                vec![("mean", false, mean), ("most", true, max)]
            },
        ),
    ];
    plots
        .into_iter()
        .filter_map(|(id, question, note, y, series)| {
            let lines = lines(subject, end_s, series);
            (!lines.is_empty()).then(|| Plot {
                id: format!("{id}-{}", subject.slug),
                subject: subject.name.clone(),
                question: question.to_owned(),
                note: note.to_owned(),
                chart: Chart::Lines(Lines {
                    x: Axis::linear("time", Unit::Seconds),
                    y,
                    lines,
                }),
            })
        })
        .collect()
}

fn lines(subject: &Subject<'_>, end_s: f64, series: Series) -> Vec<Line> {
    let devices = [
        (subject.guest, subject.guest_name(), Hue::Guest),
        (subject.host, subject.host_name(), Hue::Device),
    ];
    let mut lines = Vec::new();
    for (device, name, hue) in devices {
        let Some(device) = device else { continue };
        for (what, is_faint, points) in series(device, end_s) {
            if points.is_empty() {
                continue;
            }
            let is_latency = what == MEDIAN || what == P99;
            lines.push(Line {
                label: if what.is_empty() {
                    name.clone()
                } else {
                    format!("{name}, {what}")
                },
                hue,
                is_faint,
                is_step: !is_latency,
                joined_within: if is_latency {
                    device.figures.latency_step_ns as f64 * 1.5 / 1e9
                } else {
                    f64::INFINITY
                },
                points,
            });
        }
    }
    lines
}

/// A step for each slot of the series, and zero where there was none.
fn rates(device: &Device, end_s: f64, of: fn(&OpHistograms) -> u64) -> Curve {
    let Some(histograms) = device.stats.as_ref().map(|stats| &stats.histograms) else {
        return Vec::new();
    };
    let step_s = histograms.step_ns as f64 / 1e9;
    let total = |slot: &Slot| {
        let by_op = &slot.by_op;
        let ops = [&by_op.read, &by_op.write];
        ops.into_iter().flatten().map(of).sum::<u64>()
    };
    let mut points: Curve = Vec::new();
    for slot in &histograms.over_time {
        let at_s = device.figures.recording_s(slot.from_ns);
        // Before the first slot, and where the guest stood still, there was nothing.
        let until_s = points.last().map_or(0.0, |before| before.0 + step_s);
        if at_s > until_s + step_s / 2.0 || points.is_empty() && at_s > 0.0 {
            points.push((until_s, 0.0));
            points.push((at_s, 0.0));
        }
        points.push((at_s, total(slot) as f64 / step_s));
    }
    if points.iter().all(|(_, rate)| *rate == 0.0) {
        return Vec::new();
    }
    if let Some(last) = points.last().copied() {
        let end = (last.0 + step_s).min(end_s.max(last.0));
        points.extend([(end, last.1), (end, 0.0)]);
    }
    points
}

fn latency(device: &Device) -> (Curve, Curve) {
    let half_s = device.figures.latency_step_ns as f64 / 2e9;
    let at = |from_ns: u64| device.figures.recording_s(from_ns) + half_s;
    let slots = device.figures.latency.iter();
    slots
        .map(|slot| {
            (
                (at(slot.from_ns), slot.p50_ns as f64),
                (at(slot.from_ns), slot.p99_ns as f64),
            )
        })
        .unzip()
}

/// Within a slot the mean and the most; between two of them nothing changes.
fn depth(device: &Device, end_s: f64) -> (Curve, Curve) {
    let at = |ns: u64| device.figures.recording_s(ns);
    let (mut mean, mut max) = (Vec::new(), Vec::new());
    let slots = &device.figures.depth;
    let shortest_s = device.figures.latency_step_ns as f64 / 4e9;
    for (place, slot) in slots.iter().enumerate() {
        let (from_s, until_s, then) = (at(slot.from_ns), at(slot.until_ns), slot.then as f64);
        if mean.is_empty() && from_s > 0.0 {
            mean.push((from_s, 0.0));
            max.push((from_s, 0.0));
        }
        mean.push((from_s, slot.mean));
        max.push((from_s, slot.max as f64));
        // What lasts for a moment would only be a stroke.
        let next = slots.get(place + 1).map(|next| at(next.from_ns));
        if next.is_none_or(|next_s| next_s - until_s > shortest_s) {
            mean.push((until_s, then));
            max.push((until_s, then));
        }
    }
    if let Some(last) = mean.last().copied() {
        mean.push((end_s.max(last.0), last.1));
        max.push((end_s.max(last.0), last.1));
    }
    (mean, max)
}

//! How far requests jump, guest beside host: the figure of Le, Huang and Wang (FAST'12).

use nestrace_analyzer::analysis::Device;

use super::latency::{curve, shares};
use super::{Axis, Chart, Hue, Line, Lines, Plot, Subject, Unit};

/// What is nearer is drawn here: a millionth of the range.
const LEAST: f64 = 1e-6;

pub(super) fn plot(subject: &Subject<'_>) -> Option<Plot> {
    let guest = subject
        .guest
        .and_then(|device| line(device, subject.guest_name(), Hue::Guest));
    let host = subject
        .host
        .and_then(|device| line(device, subject.host_name(), Hue::Device));
    let lines: Vec<Line> = guest.into_iter().chain(host).collect();
    (!lines.is_empty()).then(|| Plot {
        id: format!("seeks-{}", subject.slug),
        subject: subject.name.clone(),
        question: String::from("How far does each request jump?"),
        note: String::from("Distance from the end of one request to the start of the next, in the order of D, as a share of the address range in use. A curve that starts high at the left edge is sequential I/O."),
        chart: Chart::Lines(Lines {
            x: Axis::log("distance, share of the range in use", Unit::Share),
            y: shares(),
            lines,
        }),
    })
}

pub(super) fn line(device: &Device, name: String, hue: Hue) -> Option<Line> {
    let (first, last) = device.figures.touched?;
    let range = last.saturating_sub(first).max(1) as f64;
    let mut line = curve(name, hue, &device.figures.seek_sectors, LEAST, 1.0 / range)?;
    // The curve reaches all of the range whatever the largest jump was.
    if let Some(last) = line.points.last().copied() {
        line.points.push((1.0f64.max(last.0), last.1));
    }
    Some(line)
}

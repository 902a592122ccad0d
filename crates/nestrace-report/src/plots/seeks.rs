//! How far requests jump, guest beside host: the figure of Le, Huang and Wang (FAST'12).

use nestrace_analyzer::analysis::Device;

use super::latency;
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
        chart: chart(lines),
    })
}

pub(super) fn line(device: &Device, name: String, hue: Hue) -> Option<Line> {
    line_of(shares(device), name, hue)
}

/// A line of [`shares`].
pub(crate) fn line_of(points: Vec<(f64, f64)>, name: String, hue: Hue) -> Option<Line> {
    (!points.is_empty()).then_some(Line {
        label: name,
        hue,
        is_faint: false,
        is_step: true,
        joined_within: f64::INFINITY,
        points,
    })
}

/// How far each request jumps, as a share of the range in use, and the share of requests that jump no farther; empty of
/// a device without requests.
pub(crate) fn shares(device: &Device) -> Vec<(f64, f64)> {
    let (Some((first, last)), cdf) = (device.figures.touched, &device.figures.seek_sectors) else {
        return Vec::new();
    };
    let range = last.saturating_sub(first).max(1) as f64;
    let place = |sectors: u64| (sectors as f64 / range).max(LEAST);
    let begin = cdf.points.first().map(|point| (place(point.0), 0.0));
    let mut points: Vec<(f64, f64)> = begin.into_iter().collect();
    points.extend(cdf.shares().map(|(sectors, share)| (place(sectors), share)));
    // The curve reaches all of the range whatever the largest jump was.
    if let Some(last) = points.last().copied() {
        points.push((1.0f64.max(last.0), last.1));
    }
    points
}

/// The axes of such lines.
pub(crate) fn chart(lines: Vec<Line>) -> Chart {
    Chart::Lines(Lines {
        x: Axis::log("distance, share of the range in use", Unit::Share),
        y: latency::shares(),
        lines,
    })
}

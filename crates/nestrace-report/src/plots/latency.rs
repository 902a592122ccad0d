//! Latency as each layer has it, and how long I/O waits for the device.

use nestrace_analyzer::Cdf;
use nestrace_analyzer::analysis::{Device, ReadWriteCdf};

use super::{Axis, Chart, Hue, Line, Lines, Plot, Subject, Unit};

/// A curve of shares; the first point is where it leaves 0.
pub(super) fn curve(
    label: impl Into<String>,
    hue: Hue,
    cdf: &Cdf,
    least: f64,
    unit: f64,
) -> Option<Line> {
    let first = cdf.points.first()?;
    let place = |value: u64| (value as f64 * unit).max(least);
    let mut points = vec![(place(first.0), 0.0)];
    points.extend(cdf.shares().map(|(value, share)| (place(value), share)));
    Some(Line {
        label: label.into(),
        hue,
        is_faint: false,
        is_step: true,
        joined_within: f64::INFINITY,
        points,
    })
}

pub(super) fn shares() -> Axis {
    Axis::linear("share of I/Os", Unit::Share)
}

pub(super) fn layers(subject: &Subject<'_>) -> Vec<Plot> {
    let reads = layer_curves(subject, "reads", |cdf| &cdf.read);
    let writes = layer_curves(subject, "writes", |cdf| &cdf.write);
    [reads, writes].into_iter().flatten().collect()
}

fn layer_curves(subject: &Subject<'_>, what: &str, of: fn(&ReadWriteCdf) -> &Cdf) -> Option<Plot> {
    let curve = |label: String, hue: Hue, cdf: &ReadWriteCdf| curve(label, hue, of(cdf), 1.0, 1.0);
    let mut lines = Vec::new();
    if let Some(guest) = subject.guest {
        let span = guest_span(guest, what);
        lines.extend(curve(
            format!("{} ({span})", subject.guest_name()),
            Hue::Guest,
            &to_end(guest),
        ));
    }
    if let Some(qemu) = subject.qemu {
        lines.extend(curve(String::from("QEMU"), Hue::Qemu, &qemu.cdf));
    }
    let files = subject
        .images
        .iter()
        .filter_map(|image| image.file_io.as_ref());
    let files = files.fold(ReadWriteCdf::default(), |sum, file| ReadWriteCdf {
        read: sum.read.merged(&file.cdf.read),
        write: sum.write.merged(&file.cdf.write),
    });
    lines.extend(curve(String::from("QEMU's file I/O"), Hue::HostFs, &files));
    let is_alone = subject.guest.is_none() && subject.qemu.is_none();
    if let Some(device) = subject
        .host
        .or(subject.guest.filter(|_| subject.qemu.is_none()))
    {
        let name = if subject.host.is_some() {
            subject.host_name()
        } else {
            subject.guest_name()
        };
        if is_alone {
            lines.extend(curve(format!("{name} (Q2C)"), Hue::HostQueue, &q2c(device)));
        }
        lines.extend(curve(format!("{name} (D2C)"), Hue::Device, &d2c(device)));
    }
    if lines.is_empty() {
        return None;
    }
    let (question, note) = if is_alone {
        (
            format!("How long do {what} take in total and at the device?"),
            String::from("Q2C: from queue to completion. D2C: at the device."),
        )
    } else {
        (
            format!("How long do {what} take at each layer?"),
            between_layers(subject, what),
        )
    };
    Some(Plot {
        id: format!("latency-{what}-{}", subject.slug),
        subject: subject.name.clone(),
        question,
        note,
        chart: Chart::Lines(Lines {
            x: Axis::log("latency", Unit::Nanoseconds),
            y: shares(),
            lines,
        }),
    })
}

/// How the curves of layers are to be read. QEMU gets the flushes around a write as requests of their own.
fn between_layers(subject: &Subject<'_>, what: &str) -> String {
    let flushes = subject
        .guest
        .is_some_and(|guest| what == "writes" && guest.counts.device_flushes > 0);
    let flushes = if flushes {
        " Below the guest, the flushes before and after a write are separate requests. Their time is in the gap below the guest's curve."
    } else {
        ""
    };
    format!(
        "The gap between two curves is the time between these two layers.{flushes} The device's curve holds all I/O of the device, not only this guest's."
    )
}

/// What the guest's curve spans: Q2C ends with the data, the bio with the flush after them.
pub(super) fn guest_span(guest: &Device, what: &str) -> &'static str {
    if what == "writes" && guest.figures.flushed_after > 0 {
        "Q2C and the flush after"
    } else {
        "Q2C"
    }
}

/// Q to the end of the bio, as chains have it.
fn to_end(device: &Device) -> ReadWriteCdf {
    ReadWriteCdf {
        read: device.figures.q2c_read.clone(),
        write: device.figures.to_end_write.clone(),
    }
}

fn q2c(device: &Device) -> ReadWriteCdf {
    ReadWriteCdf {
        read: device.figures.q2c_read.clone(),
        write: device.figures.q2c_write.clone(),
    }
}

fn d2c(device: &Device) -> ReadWriteCdf {
    ReadWriteCdf {
        read: device.figures.d2c_read.clone(),
        write: device.figures.d2c_write.clone(),
    }
}

/// Q to D, guest and host.
pub(super) fn wait(subject: &Subject<'_>) -> Option<Plot> {
    let guest = subject.guest.and_then(|guest| {
        curve(
            subject.guest_name(),
            Hue::Guest,
            &guest.figures.q2d,
            1.0,
            1.0,
        )
    });
    let host = subject.host.and_then(|host| {
        curve(
            subject.host_name(),
            Hue::Device,
            &host.figures.q2d,
            1.0,
            1.0,
        )
    });
    let lines: Vec<Line> = guest.into_iter().chain(host).collect();
    (!lines.is_empty()).then(|| Plot {
        id: format!("queue-wait-{}", subject.slug),
        subject: subject.name.clone(),
        question: String::from("How long does an I/O wait in the queue before the device gets it?"),
        note: String::from("Time from Q to D of each bio with data: in the plug, in the scheduler, and waiting for a tag."),
        chart: Chart::Lines(Lines {
            x: Axis::log("time from Q to D", Unit::Nanoseconds),
            y: shares(),
            lines,
        }),
    })
}

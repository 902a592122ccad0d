//! Curves of two recordings over each other: A thin and pale, B strong, each layer in its colour.

use nestrace_analyzer::compare::{Both, DevicePair, DiskPair, ExplainedBy, Explanation};
use nestrace_analyzer::{Analysis, Cdf, analysis::Device};

use super::latency::{curve, guest_span, shares};
use super::segments::look;
use super::subject::{shown, slug};
use super::{Axis, Chart, Hue, Line, Lines, Plot, Span, SpanRow, Spans, Unit, seeks};
use crate::units::time;

/// A pair of devices of one layer.
#[derive(Clone, Copy)]
struct Layer<'a> {
    devices: Both<&'a Device>,
    hue: Hue,
    /// `guest`, `host` (below a guest's disk) or `device` (alone).
    name: &'static str,
}

/// Every plot of a disk.
pub(crate) fn of_disk(pair: &DiskPair, analyses: Both<&Analysis>) -> Vec<Plot> {
    let name = format!("{}-{}", pair.names.a.guest, pair.names.a.disk);
    let subject = shown(&format!("{}/{}", pair.names.a.guest, pair.names.a.disk));
    let layer = |places: Option<Both<usize>>, hue: Hue, name: &'static str| {
        let places = places?;
        let devices = Both {
            a: analyses.a.devices.get(places.a)?,
            b: analyses.b.devices.get(places.b)?,
        };
        Some(Layer { devices, hue, name })
    };
    let layers: Vec<Layer<'_>> = [
        layer(pair.guest_places, Hue::Guest, "guest"),
        layer(pair.host_places, Hue::Device, "host"),
    ]
    .into_iter()
    .flatten()
    .collect();
    let mut plots: Vec<Plot> = parts(&pair.explanations, &slug(&name), &subject)
        .into_iter()
        .collect();
    plots.extend(curves(&layers, &slug(&name), &subject));
    plots
}

/// Every plot of a device.
pub(crate) fn of_device(pair: &DevicePair, analyses: Both<&Analysis>) -> Vec<Plot> {
    let (a, b) = (
        analyses.a.devices.get(pair.places.a),
        analyses.b.devices.get(pair.places.b),
    );
    let (Some(a), Some(b)) = (a, b) else {
        return Vec::new();
    };
    let guest = pair.names.a.guest.as_deref().unwrap_or_default();
    let name = format!("device-{guest}-{}-{}", pair.names.a.name, pair.places.a);
    let subject = shown(&pair.names.a.name);
    let layer = Layer {
        devices: Both { a, b },
        hue: Hue::Device,
        name: "device",
    };
    let mut plots: Vec<Plot> = parts(&pair.explanations, &slug(&name), &subject)
        .into_iter()
        .collect();
    plots.extend(curves(&[layer], &slug(&name), &subject));
    plots
}

fn curves(layers: &[Layer<'_>], slug: &str, subject: &str) -> Vec<Plot> {
    let reads: Curves = [
        |it| &it.figures.q2c_read,
        |it| &it.figures.q2c_read,
        |it| &it.figures.d2c_read,
    ];
    let writes: Curves = [
        |it| &it.figures.to_end_write,
        |it| &it.figures.q2c_write,
        |it| &it.figures.d2c_write,
    ];
    let mut plots = Vec::new();
    for (what, of) in [("reads", reads), ("writes", writes)] {
        let note = "Thin: A, thick: B. Q2C is the time from queue to completion, D2C the time at the device. A curve further to the left is faster.";
        plots.extend(lines(
            &format!("latency-{what}"),
            format!("How long do {what} take in A and in B?"),
            note,
            (Axis::log("latency", Unit::Nanoseconds), slug, subject),
            layers
                .iter()
                .flat_map(|layer| latency(layer, what, of))
                .collect(),
        ));
    }
    plots.extend(lines(
        "queue-wait",
        String::from("How long does an I/O wait in the queue in A and in B?"),
        "Thin: A, thick: B. Time from Q to D of each bio with data.",
        (
            Axis::log("time from Q to D", Unit::Nanoseconds),
            slug,
            subject,
        ),
        layers.iter().flat_map(wait).collect(),
    ));
    plots.extend(lines(
        "seeks",
        String::from("How far does each request jump in A and in B?"),
        "Thin: A, thick: B. Distance from the end of one request to the start of the next, in the order of D, as a share of the address range in use. A curve that starts high at the left edge is sequential I/O.",
        (Axis::log("distance, share of the range in use", Unit::Share), slug, subject),
        layers.iter().flat_map(seek).collect(),
    ));
    plots
}

fn lines(
    id: &str,
    question: String,
    note: &str,
    (x, slug, subject): (Axis, &str, &str),
    lines: Vec<Line>,
) -> Option<Plot> {
    // One recording alone is no comparison.
    let is_both = lines.iter().any(|line| line.is_faint) && lines.iter().any(|line| !line.is_faint);
    is_both.then(|| Plot {
        id: format!("{id}-{slug}"),
        subject: subject.to_owned(),
        question,
        note: note.to_owned(),
        chart: Chart::Lines(Lines {
            x,
            y: shares(),
            lines,
        }),
    })
}

/// The curve of each recording, named after it.
fn both(
    layer: &Layer<'_>,
    hue: Hue,
    of: impl Fn(&Device, String) -> Option<Line>,
    what: &str,
) -> Vec<Line> {
    let named = |device: &Device, which: &str| {
        let name = if layer.name == "guest" {
            format!("{which}: guest {}{what}", device.name)
        } else {
            format!("{which}: {}{what}", device.name)
        };
        let mut line = of(device, shown(&name))?;
        line.is_faint = which == "A";
        line.hue = hue;
        Some(line)
    };
    let (a, b) = (named(layer.devices.a, "A"), named(layer.devices.b, "B"));
    a.into_iter().chain(b).collect()
}

/// Q to the end of the bio, Q2C, D2C.
type Curves = [fn(&Device) -> &Cdf; 3];

/// Of a guest's disk to the end of each bio, as its chains and the bars of parts; of the host's device D2C; of a
/// device alone Q2C and D2C.
fn latency(layer: &Layer<'_>, what: &str, of: Curves) -> Vec<Line> {
    let [to_end, q2c, d2c] = of;
    let line = |cdf: fn(&Device) -> &Cdf| {
        move |device: &Device, name: String| curve(name, Hue::Device, cdf(device), 1.0, 1.0)
    };
    let mut all = Vec::new();
    match layer.name {
        "guest" => {
            let Both { a, b } = layer.devices;
            let spans = [guest_span(a, what), guest_span(b, what)];
            let span = spans.into_iter().max_by_key(|span| span.len());
            let span = format!(" ({})", span.unwrap_or_default());
            all.extend(both(layer, layer.hue, line(to_end), &span));
        }
        "device" => all.extend(both(layer, Hue::HostQueue, line(q2c), " (Q2C)")),
        _ => {}
    }
    if layer.name != "guest" {
        all.extend(both(layer, layer.hue, line(d2c), " (D2C)"));
    }
    all
}

fn wait(layer: &Layer<'_>) -> Vec<Line> {
    let line =
        |device: &Device, name: String| curve(name, Hue::Device, &device.figures.q2d, 1.0, 1.0);
    both(layer, layer.hue, line, "")
}

fn seek(layer: &Layer<'_>) -> Vec<Line> {
    let line = |device: &Device, name: String| seeks::line(device, name, Hue::Device);
    both(layer, layer.hue, line, "")
}

/// The parts of the mean latencies, A above B.
fn parts(explanations: &[Explanation], slug: &str, subject: &str) -> Option<Plot> {
    let mut rows = Vec::new();
    for explanation in explanations {
        for (which, is_a) in [("A", true), ("B", false)] {
            rows.push(row(explanation, which, is_a));
        }
    }
    let spans = || rows.iter().flat_map(|row: &SpanRow| &row.spans);
    let is_layered = explanations
        .iter()
        .any(|it| it.method == ExplainedBy::Segments);
    let keys = if is_layered {
        let occurs = |hue: &Hue| spans().any(|span| span.hue == *hue);
        let hues = Hue::ALL.into_iter().filter(occurs);
        hues.map(|hue| (hue.meaning().to_owned(), hue, 1.0))
            .collect()
    } else {
        vec![
            (String::from("queue (Q2D)"), Hue::HostQueue, 1.0),
            (String::from("device (D2C)"), Hue::Device, 1.0),
        ]
    };
    (spans().count() > 0).then(|| Plot {
        id: format!("parts-{slug}"),
        subject: subject.to_owned(),
        question: String::from("Where does the time of an I/O go in A and in B?"),
        note: String::from("Each bar is a mean latency, split by layer. Both recordings have the same scale. Where a colour has two shades, the strong one is the way down and the pale one is the way back."),
        chart: Chart::Spans(Spans {
            unit: Unit::Nanoseconds,
            title: String::from("mean latency"),
            keys,
            rows,
        }),
    })
}

fn row(explanation: &Explanation, which: &str, is_a: bool) -> SpanRow {
    let of = |a: Option<f64>, b: Option<f64>| if is_a { a } else { b }.unwrap_or(0.0);
    let mut spans = Vec::new();
    let mut from = 0.0;
    for part in &explanation.parts {
        let ns = of(part.mean.a, part.mean.b);
        if ns <= 0.0 {
            continue;
        }
        let (hue, tint) = match part.mean.name {
            "q2d_mean" => (Hue::HostQueue, 1.0),
            "d2c_mean" => (Hue::Device, 1.0),
            segment => look(segment),
        };
        spans.push(Span {
            name: part.mean.name.to_owned(),
            from,
            to: from + ns,
            hue,
            tint,
        });
        from += ns;
    }
    let mean = of(explanation.latency.a, explanation.latency.b);
    SpanRow {
        label: format!("{which}: {}", crate::operation::many(explanation.operation)),
        detail: format!("{} on average", time(mean.round() as u64)),
        spans,
    }
}

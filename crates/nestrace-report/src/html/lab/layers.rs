//! FAST'12's figures of a workload: latency, and of the worst and the best combination beside the bare device how requests
//! jump, merge and wait in the guest and on the host.

use super::slug;
use crate::lab::extremes::Extremes;
use crate::lab::statements::percent;
use crate::lab::{Comparison, LayerFigures, Row};
use crate::plots::{
    Axis, Chart, ColumnGroup, Columns, Hue, Plot, Span, SpanRow, Spans, Unit, seek_chart, seek_line,
};

/// Bars of a figure.
const MAX_BARS: usize = 48;

/// In the order of the page.
pub(super) fn plots(comparison: &Comparison, workload: &str, rows: &[&Row]) -> Vec<Plot> {
    let mut plots: Vec<Plot> = latency(workload, rows).into_iter().collect();
    let Some(extremes) = Extremes::of(rows) else {
        return plots;
    };
    for row in extremes
        .worst
        .first()
        .into_iter()
        .chain(extremes.best.first())
    {
        plots.extend(beside_bare(comparison, row));
    }
    plots
}

/// Mean latency of each combination relative to the bare device's.
fn latency(workload: &str, rows: &[&Row]) -> Option<Plot> {
    let relative = |row: &&&Row| Some((row.baseline.as_ref()?, row.relative_latency?).1);
    let nested: Vec<&&Row> = rows.iter().filter(|row| relative(row).is_some()).collect();
    let bar = |row: &&&Row| {
        let latency = relative(row)?;
        Some(SpanRow {
            label: row.id.clone(),
            detail: percent(latency),
            spans: vec![Span {
                name: String::from("latency"),
                from: 0.0,
                to: latency,
                hue: Hue::HostFs,
                tint: 1.0,
            }],
        })
    };
    let shown: Vec<SpanRow> = nested.iter().take(MAX_BARS).filter_map(bar).collect();
    (!shown.is_empty()).then(|| Plot {
        id: format!("latency-{}", slug(workload)),
        subject: String::new(),
        question: format!("What does nesting add to the latency under {workload}?"),
        note: String::from(
            "Mean latency of the operation that took most time, relative to the same guest file system on the bare device (100 %).",
        ),
        chart: Chart::Spans(Spans {
            unit: Unit::OfWhole,
            title: String::from("relative to the bare device"),
            keys: vec![(String::from("nested"), Hue::HostFs, 1.0)],
            rows: shown,
        }),
    })
}

/// A combination beside its bare device, of both recordings.
fn beside_bare(comparison: &Comparison, row: &Row) -> Vec<Plot> {
    let Some(bare) = row.baseline.as_ref().and_then(|id| comparison.row(id)) else {
        return Vec::new();
    };
    let (Some(own), Some(before)) = (&row.explanation, &bare.explanation) else {
        return Vec::new();
    };
    let layers: Vec<Layer<'_>> = [
        (&own.guest, "guest, nested", Hue::Guest, 1.0),
        (&before.guest, "guest, bare", Hue::Guest, 0.4),
        (&own.host, "device, nested", Hue::Device, 1.0),
        (&before.host, "device, bare", Hue::Device, 0.4),
    ]
    .into_iter()
    .filter_map(|(figures, name, hue, tint)| {
        Some(Layer {
            figures: figures.as_ref()?,
            name,
            hue,
            tint,
        })
    })
    .collect();
    let lines = layers.iter().filter_map(|layer| {
        let mut line = seek_line(
            layer.figures.seeks.clone(),
            layer.name.to_owned(),
            layer.hue,
        )?;
        line.is_faint = layer.tint < 1.0;
        Some(line)
    });
    let lines: Vec<_> = lines.collect();
    let seeks = (!lines.is_empty()).then(|| Plot {
        id: format!("seeks-{}", slug(&row.id)),
        subject: String::new(),
        question: format!("How far does each request of {} jump?", row.id),
        note: format!(
            "Distance from the end of one request to the start of the next, in the order of D, as a share of the address range in use; beside it {}. A curve that starts high at the left edge is sequential I/O.",
            bare.id
        ),
        chart: seek_chart(lines),
    });
    let merges = columns(
        &layers,
        row,
        "merges",
        "How many bios are merged",
        Axis::linear("share of bios", Unit::Share),
        |figures| figures.merged,
    );
    let waits = columns(
        &layers,
        row,
        "queue-wait",
        "How long does a bio wait in the queue",
        Axis::linear("mean time from Q to D", Unit::Nanoseconds),
        |figures| figures.queue_wait_mean_ns,
    );
    [seeks, merges, waits].into_iter().flatten().collect()
}

/// The guest's disk or the device below, of one recording.
struct Layer<'r> {
    figures: &'r LayerFigures,
    name: &'static str,
    hue: Hue,
    tint: f64,
}

fn columns(
    layers: &[Layer<'_>],
    row: &Row,
    id: &str,
    question: &str,
    y: Axis,
    of: fn(&LayerFigures) -> Option<f64>,
) -> Option<Plot> {
    let group = |layer: &Layer<'_>| {
        Some(ColumnGroup {
            label: layer.name.to_owned(),
            hue: layer.hue,
            tint: layer.tint,
            values: vec![of(layer.figures)?],
        })
    };
    let groups: Vec<ColumnGroup> = layers.iter().filter_map(group).collect();
    (!groups.is_empty()).then(|| Plot {
        id: format!("{id}-{}", slug(&row.id)),
        subject: String::new(),
        question: format!("{question} under {}?", row.id),
        note: String::from("Of the recorded runs."),
        chart: Chart::Columns(Columns {
            x_title: String::new(),
            y,
            classes: vec![String::new()],
            groups,
        }),
    })
}

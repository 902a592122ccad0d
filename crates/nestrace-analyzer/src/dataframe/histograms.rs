//! `vscsiStats`' histograms, a bin a row.

use super::{DataFrame, PolarsResult, table};
use crate::Analysis;
use crate::result::analysis::{ByOp, Device, Edges, OpHistograms};

struct Row<'a> {
    device: &'a Device,
    from_ns: Option<u64>,
    op: &'static str,
    histogram: &'static str,
    at_most: Option<i64>,
    n: u64,
}

/// A row for each bin of each histogram that has samples: of `histogram` `length_bytes`, `seek_sectors`,
/// `seek_of_16_sectors`, `outstanding`, `latency_us` and `interarrival_us`, by `op`.
///
/// A bin counts what is above the `at_most` of the one before and not above its own; the last one has none.
/// `from_ns` is null for the whole recording, else the beginning of a stretch of time after its start.
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn histograms(analysis: &Analysis) -> PolarsResult<DataFrame> {
    let mut rows = Vec::new();
    for device in &analysis.devices {
        let Some(stats) = &device.stats else { continue };
        let histograms = &stats.histograms;
        let mut add =
            |from_ns, by_op| of_time(device, from_ns, &histograms.edges, by_op, &mut rows);
        add(None, &histograms.all);
        for slot in &histograms.over_time {
            add(Some(slot.from_ns), &slot.by_op);
        }
    }
    table!(&rows, row => {
        side: row.device.side.name(),
        guest: row.device.guest.as_deref(),
        device: row.device.name.as_str(),
        from_ns: row.from_ns,
        op: row.op,
        histogram: row.histogram,
        at_most: row.at_most,
        n: row.n,
    })
}

fn of_time<'a>(
    device: &'a Device,
    from_ns: Option<u64>,
    edges: &Edges,
    by_op: &ByOp,
    rows: &mut Vec<Row<'a>>,
) {
    for (op, histograms) in [
        ("read", &by_op.read),
        ("write", &by_op.write),
        ("discard", &by_op.discard),
        ("flush", &by_op.flush),
    ] {
        let Some(histograms) = histograms else {
            continue;
        };
        for (histogram, edges, bins) in with_edges(edges, histograms) {
            let edges = edges.iter().map(|edge| Some(*edge)).chain([None]);
            rows.extend(edges.zip(bins).map(|(at_most, n)| Row {
                device,
                from_ns,
                op,
                histogram,
                at_most,
                n: *n,
            }));
        }
    }
}

fn with_edges<'a>(
    edges: &Edges,
    histograms: &'a OpHistograms,
) -> [(&'static str, &'static [i64], &'a [u64]); 6] {
    [
        ("length_bytes", edges.length_bytes, &histograms.length),
        ("seek_sectors", edges.seek_sectors, &histograms.seek),
        (
            "seek_of_16_sectors",
            edges.seek_sectors,
            &histograms.seek_of_16,
        ),
        ("outstanding", edges.outstanding, &histograms.outstanding),
        ("latency_us", edges.latency_us, &histograms.latency),
        (
            "interarrival_us",
            edges.interarrival_us,
            &histograms.interarrival,
        ),
    ]
}

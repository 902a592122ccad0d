//! `chains[]`: a disk's bios, and where their time went.

use super::{DataFrame, PolarsResult, table};
use crate::Analysis;
use crate::result::analysis::{Chains, Segment};

/// A row for each guest's disk: how many bios were followed, and their summed latency. Reasons why others
/// were not are in the JSON form and in [`stories`](super::stories).
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn chains(analysis: &Analysis) -> PolarsResult<DataFrame> {
    table!(&analysis.chains, chains => {
        guest: chains.guest.as_str(),
        disk: chains.disk.as_str(),
        guest_device: chains.guest_device.as_str(),
        guest_bios: chains.guest_bios,
        guest_requests: chains.guest_requests,
        linked: chains.linked,
        unlinked: chains.unlinked.values().sum::<u64>(),
        wrong_order: chains.wrong_order,
        stretched: chains.stretched,
        shared: chains.shared,
        ambiguous: chains.ambiguous,
        data_bios: chains.latency_ns.data.n,
        data_q2c_ns: chains.latency_ns.data.sum,
        residual_share: chains.residual_share,
        file_ios: chains.file_ios,
        file_ios_unlinked: chains.file_ios_unlinked.values().sum::<u64>(),
        deferred_reads: chains.deferred.reads,
        deferred_writes: chains.deferred.writes,
        deferred_bytes: chains.deferred.bytes,
    })
}

/// A row for each part of a disk's latency, in the order of the path, of `op` `data` (all but flushes),
/// `read`, `write`, `discard` and `flush`. `mean_ns` is over all chains of the operation, the percentiles over
/// the `n` that have the segment.
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn segments(analysis: &Analysis) -> PolarsResult<DataFrame> {
    let rows: Vec<Row<'_>> = analysis
        .chains
        .iter()
        .flat_map(|chains| {
            let by_op = &chains.by_op;
            [
                ("data", &chains.segments),
                ("read", &by_op.read),
                ("write", &by_op.write),
                ("discard", &by_op.discard),
                ("flush", &by_op.flush),
            ]
            .into_iter()
            .flat_map(move |(op, segments)| {
                let row = move |segment| Row {
                    chains,
                    op,
                    segment,
                };
                segments.iter().map(row)
            })
        })
        .collect();
    table!(&rows, row => {
        guest: row.chains.guest.as_str(),
        disk: row.chains.disk.as_str(),
        guest_device: row.chains.guest_device.as_str(),
        op: row.op,
        segment: row.segment.name,
        n: row.segment.n,
        mean_ns: row.segment.mean_ns,
        p50_ns: row.segment.p50_ns,
        p99_ns: row.segment.p99_ns,
        share: row.segment.share,
    })
}

struct Row<'a> {
    chains: &'a Chains,
    op: &'static str,
    segment: &'a Segment,
}

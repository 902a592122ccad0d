//! `devices[]` without its distributions.

use super::{DataFrame, PolarsResult, table};
use crate::Analysis;

/// A row for each block device: `side`, `guest`, `device`, `dev` (`MAJ:MIN`), counts, bytes, queue depth.
/// Its times are in [`latencies`](super::latencies).
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn devices(analysis: &Analysis) -> PolarsResult<DataFrame> {
    table!(&analysis.devices, device => {
        side: device.side.name(),
        guest: device.guest.as_deref(),
        device: device.name.as_str(),
        dev: device.dev.as_str(),
        scheduler: device.scheduler.as_deref(),
        queued: device.counts.queued,
        issued: device.counts.issued,
        completed: device.counts.completed,
        discards: device.counts.discards,
        flushes: device.counts.flushes,
        device_flushes: device.counts.device_flushes,
        back_merges: device.counts.back_merges,
        front_merges: device.counts.front_merges,
        request_merges: device.counts.request_merges,
        splits: device.counts.splits,
        requeues: device.counts.requeues,
        remaps: device.counts.remaps,
        readahead: device.counts.readahead,
        meta: device.counts.meta,
        read_bytes: device.bytes.read,
        write_bytes: device.bytes.write,
        discard_bytes: device.bytes.discard,
        queue_depth_mean: device.queue_depth.mean,
        queue_depth_max: device.queue_depth.max,
        busy_share: device.queue_depth.busy_share,
        d2d_seeks: device.seek_sectors.d2d.as_ref().map(|seek| seek.n),
        d2d_seek_median_sectors: device.seek_sectors.d2d.as_ref().and_then(|seek| seek.median),
        d2d_sequential_share: device.seek_sectors.d2d.as_ref().and_then(|seek| seek.sequential_share),
    })
}

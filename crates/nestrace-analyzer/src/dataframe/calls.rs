//! `calls[]` and single calls of the guests' programs.

use super::{DataFrame, PolarsResult, table};
use crate::Analysis;
use crate::result::analysis::{CallFile, CallRow, CallStory, Segment};

/// A row for each program, file and operation: how many calls, their summed latency, and how many of them were followed
/// to the host. No row where no guest's calls were recorded. `inode` and `path` are null as in the JSON; `mount` is null
/// for calls that are about all file systems.
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn calls(analysis: &Analysis) -> PolarsResult<DataFrame> {
    let rows: Vec<&CallRow> = analysis.calls.iter().flatten().collect();
    table!(&rows, row => {
        side: row.side.name(),
        guest: row.guest.as_str(),
        process: row.process.as_str(),
        op: row.op.name(),
        mount: mount(&row.file),
        inode: row.file.inode,
        path: row.file.path.as_deref(),
        n: row.n,
        without_io: row.without_io,
        failed: row.failed,
        submitted: row.submitted,
        linked: row.linked,
        bytes: row.bytes,
        sum_ns: row.latency_ns.sum,
        mean_ns: row.latency_ns.mean,
        p50_ns: row.latency_ns.p50,
        p99_ns: row.latency_ns.p99,
        max_ns: row.latency_ns.max,
        journal_share: row.journal_share,
        others_data_share: row.others_data_share,
        image_sync_share: row.image_sync_share,
        residual_share: row.residual_share,
        waited_bios: row.waited.bios,
        waited_bytes: row.waited.bytes,
        deferred_bios: row.deferred.bios,
        deferred_bytes: row.deferred.bytes,
    })
}

/// A row for each part of the latency of a row of [`calls`], in the order of the path. `mean_ns` is over all linked calls
/// of the row, the percentiles over the `n` that have the segment.
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn call_segments(analysis: &Analysis) -> PolarsResult<DataFrame> {
    let calls = analysis.calls.iter().flatten();
    let rows: Vec<Row<'_>> = calls
        .flat_map(|call| {
            let row = move |segment| Row { call, segment };
            call.segments.iter().map(row)
        })
        .collect();
    table!(&rows, row => {
        guest: row.call.guest.as_str(),
        process: row.call.process.as_str(),
        op: row.call.op.name(),
        mount: mount(&row.call.file),
        inode: row.call.file.inode,
        path: row.call.file.path.as_deref(),
        segment: row.segment.name,
        n: row.segment.n,
        mean_ns: row.segment.mean_ns,
        p50_ns: row.segment.p50_ns,
        p99_ns: row.segment.p99_ns,
        share: row.segment.share,
    })
}

struct Row<'a> {
    call: &'a CallRow,
    segment: &'a Segment,
}

/// A row for each call: who called, what it did on which file, how long it took, and each segment in nanoseconds.
///
/// `guest` and `call` name a call. `start_ns` is its begin on the guest's clock, `at_ns` the time after the start of the
/// recording on the host's, off by at most `clock_bound_ns`. The segments of a linked call sum to `latency_ns`, with
/// `residual_ns` 0; of one that was not followed to the host they are null. `bios` is how many bios of the guest's disks
/// it waited for; others may have waited for them too.
///
/// # Errors
///
/// None that is known: polars' own, should it refuse a table of equally long columns.
pub fn call_stories(calls: &[CallStory]) -> PolarsResult<DataFrame> {
    table!(calls, call => {
        side: call.side.name(),
        guest: call.guest.as_str(),
        call: call.call,
        process: call.process.as_str(),
        pid: call.pid,
        tid: call.tid,
        op: call.op.name(),
        mount: mount(&call.file),
        inode: call.file.inode,
        path: call.file.path.as_deref(),
        offset: call.offset,
        bytes: call.bytes,
        result: call.result,
        start_ns: call.tree.ts_ns,
        at_ns: call.at_ns,
        clock_bound_ns: call.at_ns.map(|_| call.clock_bound_ns),
        latency_ns: call.latency_ns,
        without_io: call.without_io,
        bios: call.bios,
        linked: call.linked,
        guest_fs_submit_ns: call.segment_ns("guest_fs_submit"),
        guest_dirty_throttle_ns: call.segment_ns("guest_dirty_throttle"),
        guest_page_wait_ns: call.segment_ns("guest_page_wait"),
        guest_journal_ns: call.segment_ns("guest_journal"),
        guest_queue_ns: call.segment_ns("guest_queue"),
        virt_submit_ns: call.segment_ns("virt_submit"),
        qemu_submit_ns: call.segment_ns("qemu_submit"),
        qemu_job_ns: call.segment_ns("qemu_job"),
        host_fs_submit_ns: call.segment_ns("host_fs_submit"),
        host_queue_ns: call.segment_ns("host_queue"),
        stack_submit_ns: call.segment_ns("stack_submit"),
        stack_between_ns: call.segment_ns("stack_between"),
        stack_complete_ns: call.segment_ns("stack_complete"),
        device_ns: call.segment_ns("device"),
        device_flush_ns: call.segment_ns("device_flush"),
        remote_ns: call.segment_ns("remote"),
        host_fs_between_ns: call.segment_ns("host_fs_between"),
        host_fs_complete_ns: call.segment_ns("host_fs_complete"),
        qemu_between_ns: call.segment_ns("qemu_between"),
        qemu_complete_ns: call.segment_ns("qemu_complete"),
        virt_complete_ns: call.segment_ns("virt_complete"),
        guest_fs_between_ns: call.segment_ns("guest_fs_between"),
        guest_fs_complete_ns: call.segment_ns("guest_fs_complete"),
        residual_ns: call.residual_ns(),
    })
}

fn mount(file: &CallFile) -> Option<&str> {
    (!file.mount.is_empty()).then_some(file.mount.as_str())
}

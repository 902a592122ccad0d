//! The flush machinery of a hardware queue (`blk-flush.c`).

use crate::layout::*;

/// The request that a request's hardware queue flushes with. A queue has one and reuses it, so it identifies the flush that
/// this request waits for. 0 where it is not known.
#[inline(always)]
pub fn flushed_with(request: *const u8) -> u64 {
    if !has(&RQ_CONTEXT) || !has(&CONTEXT_HCTXS) || !has(&HCTX_FLUSHES) || !has(&FLUSHES_REQUEST) {
        return 0;
    }
    let context: u64 = follow(request, &RQ_CONTEXT);
    if context == 0 {
        return 0;
    }
    let hctx: u64 = copy_field(context, &CONTEXT_HCTXS);
    let flushes: u64 = copy_field(hctx, &HCTX_FLUSHES);
    copy_field(flushes, &FLUSHES_REQUEST)
}

//! Light detail: one record for each completed request, with the probe's own stamps of D and C.

use aya_ebpf::{btf_maps::LruHashMap, macros::btf_map, macros::btf_tracepoint, programs::BtfTracePointContext};
use nestrace_abi::{Kind, Source};

use crate::{block, ring, second_program};

/// What is known of a request between D and C.
#[repr(C)]
#[derive(Clone, Copy)]
struct InFlight {
    /// 0: not in flight.
    issued_ns: u64,
    offset: u64,
    done_bytes: u64,
    /// The number of the recording that saw it issued.
    recording: u32,
    pad: u32,
}

/// Requests by address. An entry stays when its request has ended, because a driver uses the same
/// requests again and again: writing into an entry costs a tenth of adding and removing it. Those of a device that
/// is gone are the least recently used.
#[btf_map]
static IN_FLIGHT: LruHashMap<u64, InFlight, 65536> = LruHashMap::new();

#[btf_tracepoint(function = "block_rq_issue")]
pub fn light_rq_issue(ctx: BtfTracePointContext) -> i32 {
    if let Some(record) = block::request_record(Kind::RequestDone, ctx.arg(0)) {
        let started = InFlight { issued_ns: record.ts_ns, offset: record.offset, done_bytes: 0, recording: ring::recording(), pad: 0 };
        // A copy: a key taken from within the record would make the compiler keep the record's parts apart.
        let request = record.object;
        match IN_FLIGHT.get_ptr_mut(&request) {
            // SAFETY: one request is issued or completes on one processor at a time, and no other
            // program of ours touches its entry.
            Some(entry) => unsafe { *entry = started },
            None => {
                let _ = IN_FLIGHT.insert(&request, &started, 0);
            }
        }
    }
    0
}

#[btf_tracepoint(function = "block_rq_complete")]
pub fn light_rq_complete(ctx: BtfTracePointContext) -> i32 {
    second_program::first(Source::Block, ctx.arg(0), || complete(&ctx));
    0
}

#[btf_tracepoint(function = "block_rq_complete")]
pub fn light_rq_complete_nested(ctx: BtfTracePointContext) -> i32 {
    second_program::second(Source::Block, ctx.arg(0), || complete(&ctx));
    0
}

#[inline(always)]
fn complete(ctx: &BtfTracePointContext) {
    let Some(mut record) = block::completion(Kind::RequestDone, ctx) else { return };
    let remaining = record.related;
    let request = record.object;
    record.related = 0;
    if let Some(entry) = IN_FLIGHT.get_ptr_mut(&request) {
        // SAFETY: as above.
        let entry = unsafe { &mut *entry };
        // One of an earlier recording may have completed, and been issued anew, while the gate was shut.
        if entry.issued_ns != 0 && entry.recording == ring::recording() {
            entry.done_bytes += record.bytes;
            if remaining == 0 {
                record.related = entry.issued_ns;
                record.offset = entry.offset;
                record.bytes = entry.done_bytes;
                entry.issued_ns = 0;
            }
        }
    }
    if remaining == 0 {
        ring::send(record, Source::Block);
    }
}

//! Light detail: one record for each completed request, with the probe's own stamps of D and C.

use aya_ebpf::{btf_maps::LruHashMap, macros::btf_map, macros::btf_tracepoint, programs::BtfTracePointContext};
use nestrace_abi::{Kind, Source};

use crate::{block, ring};

/// What is known of a request between D and C.
#[repr(C)]
#[derive(Clone, Copy)]
struct InFlight {
    issued_ns: u64,
    offset: u64,
    done_bytes: u64,
}

#[btf_map]
static IN_FLIGHT: LruHashMap<u64, InFlight, 65536> = LruHashMap::new();

#[btf_tracepoint(function = "block_rq_issue")]
pub fn light_rq_issue(ctx: BtfTracePointContext) -> i32 {
    if let Some(record) = block::request_record(Kind::RequestDone, ctx.arg(0)) {
        let started = InFlight { issued_ns: record.ts_ns, offset: record.offset, done_bytes: 0 };
        // A copy: a key taken from within the record would make the compiler keep the record's parts apart.
        let request = record.object;
        let _ = IN_FLIGHT.insert(&request, &started, 0);
    }
    0
}

#[btf_tracepoint(function = "block_rq_complete")]
pub fn light_rq_complete(ctx: BtfTracePointContext) -> i32 {
    let Some(mut record) = block::completion(Kind::RequestDone, &ctx) else { return 0 };
    let remaining = record.related;
    let request = record.object;
    record.related = 0;
    if let Some(started) = IN_FLIGHT.get_ptr_mut(&request) {
        // SAFETY: one request completes on one processor at a time, and no other program of ours
        // touches the entry between its D and its last C.
        let started = unsafe { &mut *started };
        started.done_bytes += record.bytes;
        if remaining == 0 {
            record.related = started.issued_ns;
            record.offset = started.offset;
            record.bytes = started.done_bytes;
        }
    }
    if remaining == 0 {
        let _ = IN_FLIGHT.remove(&request);
        ring::send(record, Source::Block);
    }    0
}

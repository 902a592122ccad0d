//! Light detail: one record for each completed request, with the probe's own stamps of D and C.

use core::ptr::{read_volatile, write_volatile};

use aya_ebpf::{
    btf_maps::{Array, LruHashMap, PerCpuArray},
    macros::{btf_map, btf_tracepoint},
    programs::BtfTracePointContext,
};
use nestrace_abi::{Kind, Source};

use crate::{block, ring, second_program};

/// What is known of a request between D and C.
#[repr(C)]
#[derive(Clone, Copy)]
struct InFlight {
    /// Its address.
    request: u64,
    /// [`check_of`] what does not change until it completes.
    check: u64,
    /// 0: not in flight.
    issued_ns: u64,
    offset: u64,
    done_bytes: u32,
    /// The number of the recording that saw it issued.
    recording: u32,
}

/// Requests that are in flight, each at the place that its address gives. An array, because a look at it is a few
/// instructions of the program's own, and one into a hash a call of the kernel's.
#[btf_map]
static IN_FLIGHT: Array<InFlight, PLACES> = Array::new();
const PLACES: usize = 1 << PLACE_BITS;
const PLACE_BITS: u32 = 16;

/// Those whose place was taken when they were issued. An entry stays when its request has ended, because a driver uses
/// the same requests again and again: writing into an entry costs a tenth of adding and removing it. Those of a device
/// that is gone are the least recently used.
#[btf_map]
static DISPLACED: LruHashMap<u64, InFlight, 16384> = LruHashMap::new();

/// The fraction of the golden ratio.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// The programs, which may interrupt one another but not themselves.
#[derive(Clone, Copy)]
enum Program {
    Issue,
    Complete,
    Nested,
}

/// By processor and program: where an address becomes a number.
#[btf_map]
static ADDRESS: PerCpuArray<u64, 3> = PerCpuArray::new();

/// An address as a number: of what the verifier knows as a pointer it allows no arithmetic.
#[inline(always)]
fn number_of(address: u64, program: Program) -> u64 {
    let Some(place) = ADDRESS.get_ptr_mut(program as u32) else { return 0 };
    // SAFETY: the place is valid for the program's run, and no other program's.
    unsafe {
        write_volatile(place, address);
        read_volatile(place)
    }
}

/// A request's place.
#[inline(always)]
fn place_of(request: u64) -> Option<*mut InFlight> {
    IN_FLIGHT.get_ptr_mut((request.wrapping_mul(MIX) >> (64 - PLACE_BITS)) as u32)
}

/// Tells an entry that one processor wrote from one that two wrote into at once.
#[inline(always)]
fn check_of(entry: &InFlight) -> u64 {
    let facts = entry.issued_ns.wrapping_mul(MIX) ^ entry.offset.rotate_left(24) ^ u64::from(entry.recording);
    entry.request ^ facts
}

/// Remembers a request. Two processors that issue at the same place at once may both find it free: at most one of the
/// two is remembered then, and what is not is sent without the time of its D.
#[inline(always)]
fn remember(mut started: InFlight) {
    started.check = check_of(&started);
    let request = started.request;
    let Some(place) = place_of(request) else { return };
    // SAFETY: the place is valid for the program's run.
    let there = unsafe { *place };
    let is_taken = there.issued_ns != 0 && there.request != request && there.recording == started.recording;
    if !is_taken {
        // SAFETY: as above.
        unsafe { *place = started };
        return;
    }
    match DISPLACED.get_ptr_mut(&request) {
        // SAFETY: one request is issued or completes on one processor at a time.
        Some(entry) => unsafe { *entry = started },
        None => {
            let _ = DISPLACED.insert(&request, &started, 0);
        }
    }
}

/// What is remembered of a request that this recording saw issued.
#[inline(always)]
fn remembered(request: u64) -> Option<*mut InFlight> {
    let is_it = |entry: &*mut InFlight| {
        // SAFETY: the entry is valid for the program's run.
        let entry = unsafe { **entry };
        let is_whole = entry.check == check_of(&entry);
        is_whole && entry.request == request && entry.issued_ns != 0 && entry.recording == ring::recording()
    };
    place_of(request).filter(is_it).or_else(|| DISPLACED.get_ptr_mut(&request).filter(is_it))
}

#[btf_tracepoint(function = "block_rq_issue")]
pub fn light_rq_issue(ctx: BtfTracePointContext) -> i32 {
    if let Some(record) = block::request_record(Kind::RequestDone, ctx.arg(0)) {
        remember(InFlight {
            request: number_of(record.object, Program::Issue),
            check: 0,
            issued_ns: record.ts_ns,
            offset: record.offset,
            done_bytes: 0,
            recording: ring::recording(),
        });
    }
    0
}

#[btf_tracepoint(function = "block_rq_complete")]
pub fn light_rq_complete(ctx: BtfTracePointContext) -> i32 {
    second_program::first(Source::Block, ctx.arg(0), || complete(&ctx, Program::Complete));
    0
}

#[btf_tracepoint(function = "block_rq_complete")]
pub fn light_rq_complete_nested(ctx: BtfTracePointContext) -> i32 {
    second_program::second(Source::Block, ctx.arg(0), || complete(&ctx, Program::Nested));
    0
}

#[inline(always)]
fn complete(ctx: &BtfTracePointContext, program: Program) {
    let Some(mut record) = block::completion(Kind::RequestDone, ctx) else { return };
    let remaining = record.related;
    record.related = 0;
    if let Some(entry) = remembered(number_of(record.object, program)) {
        // SAFETY: one request is issued or completes on one processor at a time, and no other program of ours
        // touches its entry while it is in flight.
        let entry = unsafe { &mut *entry };
        entry.done_bytes += record.bytes as u32;
        if remaining == 0 {
            record.related = entry.issued_ns;
            record.offset = entry.offset;
            record.bytes = u64::from(entry.done_bytes);
            entry.issued_ns = 0;
        }
    }
    if remaining == 0 {
        ring::send(record, Source::Block);
    }
}

//! Light detail: one record for each completed request, with the probe's own stamps of D and C.

use aya_ebpf::{
    btf_maps::{Array, LruHashMap},
    helpers::{bpf_get_smp_processor_id, bpf_ktime_get_ns},
    macros::{btf_map, btf_tracepoint},
    programs::BtfTracePointContext,
};
use nestrace_abi::{
    Kind, Record, Source,
    maps::{IN_FLIGHT_PLACES, InFlight, MIX},
};

use crate::{
    block,
    done::{self, MMAPABLE},
    layout::{DONE_SLOTS, number_of},
    preemption, ring, second_program, sums,
};

/// Requests that are in flight, each at the place that its address gives. An array, because a look at it is a few
/// instructions of the program's own, and one into a hash a call of the kernel's.
#[btf_map]
static IN_FLIGHT: Array<InFlight, IN_FLIGHT_PLACES, MMAPABLE> = Array::new();
const PLACE_BITS: u32 = IN_FLIGHT_PLACES.ilog2();

/// Those whose place was taken when they were issued. An entry stays when its request has ended, because a driver uses
/// the same requests again and again: writing into an entry costs a tenth of adding and removing it. Those of a device
/// that is gone are the least recently used.
#[btf_map]
static DISPLACED: LruHashMap<u64, InFlight, 16384> = LruHashMap::new();

/// A processor may stand still between two programs, if it is a virtual one.
const JUST_ENDED_NS: u64 = 1_000_000_000;

/// A request's place.
#[inline(always)]
fn place_of(request: u64) -> Option<*mut InFlight> {
    IN_FLIGHT.get_ptr_mut((request.wrapping_mul(MIX) >> (64 - PLACE_BITS)) as u32)
}

/// Writes what is known at D, in place: nothing is copied, nor cleared that nobody reads before it is written.
#[inline(always)]
fn begin(entry: &mut InFlight, request: u64, issued_ns: u64, recording: u32, dev: u32) {
    entry.check = InFlight::check_of(request, issued_ns, recording, dev);
    entry.request = request;
    entry.issued_ns = issued_ns;
    entry.done_bytes = 0;
    entry.recording = recording;
    entry.dev = dev;
}

/// Remembers a request. Two processors that issue at the same place at once may both find it free: at most one of the
/// two is remembered then, and what is not is sent without the time of its D.
#[inline(always)]
fn remember(pointer: *const u8, recording: u32, dev: u32) {
    let request = number_of(pointer);
    // SAFETY: no preconditions.
    let issued_ns = unsafe { bpf_ktime_get_ns() };
    let Some(place) = place_of(request) else { return };
    // SAFETY: the place is valid for the program's run.
    let there = unsafe { &mut *place };
    if sums::on() && is_in_flight(there, request, recording) {
        sums::begins_again(pointer, there.issued_ns);
    }
    // Of one that has just ended the second program may not have seen that yet.
    let is_taken = there.request != request
        && there.recording == recording
        && (there.issued_ns != 0 || issued_ns.wrapping_sub(there.check) < JUST_ENDED_NS);
    if !is_taken {
        begin(there, request, issued_ns, recording, dev);
        return;
    }
    if let Some(entry) = DISPLACED.get_ptr_mut(&request) {
        // SAFETY: one request is issued or completes on one processor at a time.
        begin(unsafe { &mut *entry }, request, issued_ns, recording, dev);
        return;
    }
    let started = InFlight {
        request,
        check: InFlight::check_of(request, issued_ns, recording, dev),
        issued_ns,
        offset: 0,
        done_bytes: 0,
        left_bytes: 0,
        recording,
        dev,
    };
    let _ = DISPLACED.insert(&request, &started, 0);
}

/// Whether that is a request that this recording saw issued, and that is in flight.
#[inline(always)]
fn is_in_flight(entry: &InFlight, request: u64, recording: u32) -> bool {
    entry.request == request && entry.is_in_flight(recording)
}

#[btf_tracepoint(function = "block_rq_issue")]
pub fn light_rq_issue(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::Block, number_of(ctx.arg(0)), || issue(&ctx)))
}

#[btf_tracepoint(function = "block_rq_issue")]
pub fn light_rq_issue_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::Block, number_of(ctx.arg(0)), || issue(&ctx)))
}

#[inline(always)]
fn issue(ctx: &BtfTracePointContext) -> i32 {
    let request: *const u8 = ctx.arg(0);
    let recording = ring::recording();
    if recording == 0 || request.is_null() {
        return 0;
    }
    // While the probes sum, the place of the sum stands for the device.
    let wanted = if sums::on() { sums::place_of_request(request) } else { block::wanted_disk(request) };
    if let Some(dev) = wanted {
        remember(request, recording, dev);
    }
    0
}

#[btf_tracepoint(function = "block_rq_complete")]
pub fn light_rq_complete(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        let request: *const u8 = ctx.arg(0);
        let recording = ring::recording();
        if recording == 0 || request.is_null() {
            return 0;
        }
        let number = number_of(request);
        if let Some(place) = place_of(number) {
            // SAFETY: the place is valid for the program's run. One request is issued or completes on one processor at a
            // time, and no other program of ours touches its entry while it is in flight.
            let entry = unsafe { &mut *place };
            if is_in_flight(entry, number, recording) {
                complete(&ctx, request, entry);
                return 0;
            }
            // That it has ended the second program is not to see before this one has done its work.
            if entry.request == number {
                entry.request = 0;
            }
        }
        second_program::first(Source::Block, number, || complete_elsewhere(&ctx, request, number, recording));
        0
    })
}

/// An entry says by itself whether the first program has done its work: the request is not in flight any more, or what is
/// left of it is what this event leaves.
#[btf_tracepoint(function = "block_rq_complete")]
pub fn light_rq_complete_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        let request: *const u8 = ctx.arg(0);
        if request.is_null() {
            return 0;
        }
        let number = number_of(request);
        let place = place_of(number);
        if let Some(place) = place {
            // SAFETY: as above.
            let entry = unsafe { &mut *place };
            if entry.request == number {
                // If this recording has not seen it issued, the first program has not been called, or else it would have
                // taken the entry's request away. That counts as skipped.
                if entry.issued_ns == 0 {
                    return 0;
                }
                let recording = ring::recording();
                if is_in_flight(entry, number, recording) {
                    if entry.done_bytes == 0 || entry.left_bytes != block::left_bytes(&ctx) {
                        second_program::rescued(Source::Block);
                        complete(&ctx, request, entry);
                    }
                    return 0;
                }
            }
        }
        let recording = ring::recording();
        second_program::second(Source::Block, number, || complete_elsewhere(&ctx, request, number, recording));
        0
    })
}

/// A request that is not at its place: in the other map, or nothing is known of its D.
#[inline(always)]
fn complete_elsewhere(ctx: &BtfTracePointContext, request: *const u8, number: u64, recording: u32) {
    if let Some(entry) = DISPLACED.get_ptr_mut(&number) {
        // SAFETY: as in `light_rq_complete`.
        let entry = unsafe { &mut *entry };
        if is_in_flight(entry, number, recording) {
            complete(ctx, request, entry);
            return;
        }
    }
    if sums::on() {
        sums::unknown_request(request);
        return;
    }
    let Some(dev) = block::wanted_disk(request) else { return };
    let mut record = ended(request, dev);
    block::describe_completion(&mut record, ctx);
    let is_last = record.related == 0;
    if is_last {
        send(record);
    }
}

#[inline(always)]
fn send(record: Record) {
    if DONE_SLOTS.load() != 0 {
        done::put(record);
    } else {
        ring::send(record, Source::Block);
    }
}

/// A completed request that was remembered: sends it when its last part is.
#[inline(always)]
fn complete(ctx: &BtfTracePointContext, request: *const u8, entry: &mut InFlight) {
    if sums::on() {
        sum(ctx, request, entry);
        return;
    }
    let mut record = ended(request, entry.dev);
    block::describe_completion(&mut record, ctx);
    let left_bytes = record.related as u32;
    if entry.done_bytes != 0 {
        record.offset = entry.offset;
        record.bytes += u64::from(entry.done_bytes);
    }
    if left_bytes != 0 {
        entry.offset = record.offset;
        entry.done_bytes = record.bytes as u32;
        entry.left_bytes = left_bytes;
        return;
    }
    record.related = entry.issued_ns;
    entry.issued_ns = 0;
    entry.check = record.ts_ns;
    send(record);
}

/// The same where it is only summed.
#[inline(always)]
fn sum(ctx: &BtfTracePointContext, request: *const u8, entry: &mut InFlight) {
    let left_bytes = block::left_bytes(ctx);
    let done_bytes = entry.done_bytes.wrapping_add(block::done_bytes(ctx) as u32);
    if left_bytes != 0 {
        entry.done_bytes = done_bytes;
        entry.left_bytes = left_bytes;
        return;
    }
    // SAFETY: no preconditions.
    let ended_ns = unsafe { bpf_ktime_get_ns() };
    let issued_ns = entry.issued_ns;
    entry.issued_ns = 0;
    entry.check = ended_ns;
    sums::request_ends(request, entry.dev, done_bytes, issued_ns, ended_ns);
}

/// Of whatever thread the end interrupted nothing is said.
#[inline(always)]
fn ended(request: *const u8, dev: u32) -> Record {
    Record {
        // SAFETY: no preconditions.
        ts_ns: unsafe { bpf_ktime_get_ns() },
        kind: Kind::RequestDone as u8,
        // SAFETY: no preconditions.
        cpu: unsafe { bpf_get_smp_processor_id() } as u16,
        object: request as u64,
        dev,
        ..Record::default()
    }
}

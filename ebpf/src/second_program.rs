//! Tracepoints that interrupt one another, and the second program that listens on each of them.
//!
//! Since Linux 7.0 threads interrupt one another, too: a program may be preempted, and until its thread goes on all that the
//! others of that processor do would be skipped. There a second program listens on each tracepoint that threads come by.
//!
//! The kernel does not run a program that already runs on this processor. A loop device completes in
//! the block softirq, a disk's interrupt comes in the middle of the program and completes too: that
//! completion would be skipped (on 6.1 and 6.12 in guests, 1 to 3 of 4,500, each of them missing against
//! blktrace; of direct I/O's on 6.18, 48 of 360,000). So a second program is attached after the first. The
//! first one leaves the event's key, the second takes it away, or does the work where it finds none. A mark
//! "the first one runs" would not do: an interrupt before the program has set it, in the kernel's own steps to start
//! the program, finds no mark (in a guest without KVM, one in five of those that were skipped).

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};
use core::ptr::{read_volatile, write_volatile};

use aya_ebpf::{
    btf_maps::{Array, PerCpuArray},
    macros::btf_map,
};
use nestrace_abi::{Source, maps::MIX};

use crate::{preemption, ring};

/// Interrupts nest no deeper: task, softirq, interrupt, and one that a second program was kept from
/// taking away.
const DEPTH: usize = 4;

/// By source: events of this processor that the first program has taken and the second one has not
/// looked at yet; 0 is a free place.
#[btf_map]
static TAKEN: PerCpuArray<[u64; DEPTH], 8> = PerCpuArray::new();

/// The same of all processors, for kernels where a thread may go on with the second program on another one: buckets of
/// [`DEPTH`] places, one of which the event's key chooses.
#[btf_map]
static TAKEN_ANYWHERE: Array<[u64; DEPTH], BUCKETS> = Array::new();
const BUCKETS: usize = 1 << BUCKET_BITS;
const BUCKET_BITS: u32 = 13;

/// By source: events that a second program took over from the first.
#[btf_map]
static RESCUED: PerCpuArray<u64, 8> = PerCpuArray::new();

/// Runs the first program's body and leaves the event's key (an address or its `number_of`, not 0) for the second.
#[inline(always)]
pub fn first(source: Source, key: u64, body: impl FnOnce()) {
    // While nobody records there is perhaps no second program that takes keys away.
    if !ring::open() {
        return;
    }
    leave(source, key);
    body();
}

/// Runs the second program's body if the kernel has skipped the first one for this event.
///
/// What both miss is the first one's `recursion_misses` minus what is counted here.
#[inline(always)]
pub fn second(source: Source, key: u64, body: impl FnOnce()) {
    if take(source, key) || !ring::open() {
        return;
    }
    rescued(source);
    body();
}

/// The first program on a tracepoint that only threads come by: where it may be preempted for another thread that comes by,
/// it leaves the event's key, too.
#[inline(always)]
pub fn first_of_threads(source: Source, key: u64, body: impl FnOnce() -> i32) -> i32 {
    if preemption::may_move() && ring::open() {
        leave(source, key);
    }
    body()
}

/// The second program on it, which is attached only where the first may be preempted.
#[inline(always)]
pub fn second_of_threads(source: Source, key: u64, body: impl FnOnce() -> i32) -> i32 {
    second(source, key, || {
        body();
    });
    0
}

/// Counts an event that a second program takes over.
#[inline(always)]
pub fn rescued(source: Source) {
    if let Some(count) = RESCUED.get_ptr_mut(source as u32) {
        // SAFETY: the slot is valid for the program's run. Atomic, because the second program of another
        // tracepoint of this source can interrupt.
        unsafe { atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(count, 1) };
    }
}

/// Whoever interrupts this has freed its own place again before it goes on, so that the one found stays free.
#[inline(always)]
fn leave(source: Source, key: u64) {
    if preemption::may_move() {
        leave_anywhere(of_source(source, key));
        return;
    }
    let Some(taken) = TAKEN.get_ptr_mut(source as u32) else { return };
    let mut at = 0;
    while at < DEPTH - 1 {
        // SAFETY: a place of this processor's own map value; volatile, because an interrupt changes it.
        let place = unsafe { &raw mut (*taken)[at] };
        // SAFETY: as above.
        let there = unsafe { read_volatile(place) };
        if there == 0 || there == key {
            break;
        }
        at += 1;
    }
    // SAFETY: as above. With no free place the last one is given up.
    unsafe { write_volatile(&raw mut (*taken)[at], key) };
}

#[inline(always)]
fn take(source: Source, key: u64) -> bool {
    let (taken, key) = if preemption::may_move() {
        let key = of_source(source, key);
        (bucket_of(key), key)
    } else {
        (TAKEN.get_ptr_mut(source as u32), key)
    };
    let Some(taken) = taken else { return true };
    let mut at = 0;
    while at < DEPTH {
        // SAFETY: as in `leave`.
        let place = unsafe { &raw mut (*taken)[at] };
        // SAFETY: as in `leave`.
        if unsafe { read_volatile(place) } == key {
            // SAFETY: as in `leave`.
            unsafe { write_volatile(place, 0) };
            return true;
        }
        at += 1;
    }
    false
}

/// A key that no other source has. What goes at its upper end is the same in all addresses of the kernel's objects.
#[inline(always)]
fn of_source(source: Source, key: u64) -> u64 {
    (key << 3) | source as u64
}

#[inline(always)]
fn bucket_of(key: u64) -> Option<*mut [u64; DEPTH]> {
    TAKEN_ANYWHERE.get_ptr_mut((key.wrapping_mul(MIX) >> (64 - BUCKET_BITS)) as u32)
}

/// Two processors may look for a place in the same bucket at once.
#[inline(always)]
fn leave_anywhere(key: u64) {
    let Some(bucket) = bucket_of(key) else { return };
    let mut at = 0;
    while at < DEPTH {
        // SAFETY: a place of a map's value, which is valid for the program's run.
        let place = unsafe { &raw mut (*bucket)[at] };
        // SAFETY: as above.
        let (there, is_ours) =
            unsafe { atomic_cxchg::<u64, { AtomicOrdering::Relaxed }, { AtomicOrdering::Relaxed }>(place, 0, key) };
        if is_ours || there == key {
            return;
        }
        at += 1;
    }
}

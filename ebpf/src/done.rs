//! Whole requests on their way to an agent: in places of an array that it maps, because a ring's entry takes two calls of
//! the kernel's.

use core::ptr::{read_volatile, write_volatile};
use core::sync::atomic::{Ordering, compiler_fence};

use aya_ebpf::{btf_maps::Array, macros::btf_map};
use nestrace_abi::{
    Record, Source,
    maps::{DoneCount, DoneSlot},
};

use crate::{layout::DONE_SLOTS, ring};

/// `BPF_F_MMAPABLE`.
pub const MMAPABLE: usize = 1 << 10;
/// Interrupts nest no deeper.
const DEPTH: u64 = 8;

/// The collector says how many there are.
#[btf_map]
static DONE: Array<DoneSlot, 1, MMAPABLE> = Array::new();

#[btf_map]
static DONE_COUNTS: Array<DoneCount, 1, MMAPABLE> = Array::new();

/// Puts a request into the next place of its processor.
#[inline(always)]
pub fn put(record: Record) {
    if !put_into(&record) {
        ring::count_drop(Source::Block);
    }
}

/// Whoever interrupts this ends before it goes on (a tracepoint's programs are not preempted), so a place that was taken
/// between the look at `written` and the claim is filled by then, and bears its number.
#[inline(always)]
fn put_into(record: &Record) -> bool {
    let cpu = u32::from(record.cpu);
    let Some(count) = DONE_COUNTS.get_ptr_mut(cpu) else { return false };
    let n_slots = u64::from(DONE_SLOTS.load());
    // SAFETY: fields of this processor's own map value; volatile, because interrupts and the collector change them.
    let (mut number, taken) =
        unsafe { (read_volatile(&raw const (*count).written), read_volatile(&raw const (*count).taken)) };
    if number.wrapping_sub(taken) >= n_slots - DEPTH {
        return false;
    }
    let mut tries = 0;
    while tries < DEPTH {
        // SAFETY: as above.
        unsafe { write_volatile(&raw mut (*count).written, number + 1) };
        let place = u64::from(cpu) * n_slots + (number & (n_slots - 1));
        let Some(slot) = DONE.get_ptr_mut(place as u32) else { return false };
        // SAFETY: the place is valid for the program's run.
        let slot = unsafe { &mut *slot };
        // SAFETY: as above.
        if unsafe { read_volatile(&slot.number) } != number + 1 {
            slot.record = *record;
            compiler_fence(Ordering::Release);
            // SAFETY: as above. What is stored first is seen first on x86.
            unsafe { write_volatile(&mut slot.number, number + 1) };
            return true;
        }
        number += 1;
        tries += 1;
    }
    false
}

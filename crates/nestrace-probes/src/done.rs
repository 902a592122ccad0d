//! Whole requests of light detail, out of the array that the probes put them into.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::Map;
use nestrace_abi::maps::{DONE, DONE_COUNTS, DoneCount, DoneSlot};
use nestrace_wire::kernel_buffers::put_slots;

use crate::{ProbeError, map_error, mapped::Mapped};

/// The places of all processors, in this process' memory.
pub struct DoneRequests {
    slots: Mapped<DoneSlot>,
    counts: Mapped<DoneCount>,
    /// Of one processor.
    n_slots: usize,
}

impl DoneRequests {
    /// Of so many processors with so many places each.
    pub(super) fn of(
        slots: Map,
        counts: Map,
        n_cpus: usize,
        n_slots: usize,
    ) -> Result<Self, ProbeError> {
        Ok(Self {
            slots: Mapped::of(slots, n_cpus.saturating_mul(n_slots)).map_err(map_error(DONE))?,
            counts: Mapped::of(counts, n_cpus).map_err(map_error(DONE_COUNTS))?,
            n_slots,
        })
    }

    /// Processors.
    #[must_use]
    pub fn n_cpus(&self) -> usize {
        self.counts.n
    }

    /// Copies what a processor has put there since the last time, at most so many requests; gives how many.
    pub fn take(&mut self, cpu: usize, most: usize, to: &mut Vec<u8>) -> u64 {
        let n_slots = self.n_slots;
        let places = (cpu.checked_mul(n_slots)).and_then(|first| self.slots.get(first, n_slots));
        let (Some(count), Some(places)) = (self.counts.get(cpu, 1), places) else {
            return 0;
        };
        // SAFETY: within the mapping and aligned; the probes only read it.
        let taken = unsafe { AtomicU64::from_ptr(&raw mut (*count.as_ptr()).taken) };
        let first = taken.load(Ordering::Relaxed);
        let place = |number: u64| (number % n_slots as u64) as usize;
        let is_filled = |number: u64| {
            // SAFETY: one of the processor's places; the probes write it last.
            let its = unsafe {
                AtomicU64::from_ptr(&raw mut (*places.add(place(number)).as_ptr()).number)
            };
            its.load(Ordering::Acquire) == number + 1
        };
        let all = first..first + n_slots.min(most) as u64;
        let n = all.take_while(|number| is_filled(*number)).count();
        let until_end = n.min(n_slots - place(first));
        for (begin, n) in [(place(first), until_end), (0, n - until_end)] {
            // SAFETY: places that the probes have filled and do not touch before `taken` says that they may.
            let filled = unsafe {
                let begin = places.add(begin).cast::<u8>();
                NonNull::slice_from_raw_parts(begin, n * size_of::<DoneSlot>()).as_ref()
            };
            put_slots(filled, to);
        }
        taken.store(first + n as u64, Ordering::Release);
        n as u64
    }
}

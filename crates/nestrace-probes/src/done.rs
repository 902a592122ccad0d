//! Whole requests of light detail, out of the array that the probes put them into.

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::{Map, MapData, MapError};
use nestrace_abi::maps::{DONE, DONE_COUNTS, DoneCount, DoneSlot};
use nestrace_wire::kernel_buffers::put_slots;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

use crate::{ProbeError, map_error};

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

/// An array map in this process' memory. Dropping it takes it out.
struct Mapped<T> {
    // Programs are loaded one by one and refer to it, so it must stay open.
    _map: MapData,
    base: NonNull<T>,
    /// Values.
    n: usize,
    n_bytes: NonZeroUsize,
}

impl<T> Mapped<T> {
    fn of(map: Map, n: usize) -> Result<Self, MapError> {
        let Map::Array(data) = map else {
            return Err(MapError::InvalidMapType { map_type: 0 });
        };
        // Values follow one another, each on a multiple of 8 bytes; what is mapped are whole pages.
        let n_bytes = size_of::<T>().saturating_mul(n).next_multiple_of(4096);
        let n_bytes = NonZeroUsize::new(n_bytes).unwrap_or(NonZeroUsize::MIN);
        let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping, of a map that is as large, at a place that the kernel chooses.
        let mapped = unsafe {
            let fd = data.fd().as_fd();
            mmap(None, n_bytes, protection, MapFlags::MAP_SHARED, fd, 0)
        };
        let base = mapped.map_err(|errno| MapError::IoError(errno.into()))?;
        Ok(Self {
            _map: data,
            base: base.cast(),
            n,
            n_bytes,
        })
    }

    /// So many values from the one at this place on, if there are as many.
    fn get(&self, place: usize, n: usize) -> Option<NonNull<T>> {
        let is_there = place.checked_add(n).is_some_and(|end| end <= self.n);
        // SAFETY: within the mapping.
        is_there.then(|| unsafe { self.base.add(place) })
    }
}

impl<T> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing refers to it any more.
        let _ = unsafe { munmap(self.base.cast(), self.n_bytes.get()) };
    }
}

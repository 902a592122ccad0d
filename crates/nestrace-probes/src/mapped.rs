//! An array map of the probes in this process' memory.

use std::num::NonZeroUsize;
use std::os::fd::AsFd;
use std::ptr::NonNull;

use aya::maps::{Map, MapData, MapError};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};

/// An array map in this process' memory. Dropping it takes it out.
pub(super) struct Mapped<T> {
    // Programs are loaded one by one and refer to it, so it must stay open.
    _map: MapData,
    base: NonNull<T>,
    /// Values.
    pub n: usize,
    n_bytes: NonZeroUsize,
}

impl<T> Mapped<T> {
    /// Of so many values.
    pub fn of(map: Map, n: usize) -> Result<Self, MapError> {
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
    pub fn get(&self, place: usize, n: usize) -> Option<NonNull<T>> {
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

//! Writes through a mapping.

use std::fs::File;
use std::io;
use std::num::NonZeroUsize;

use nix::sys::mman::{MapFlags, MsFlags, ProtFlags, mmap, msync, munmap};

use crate::deed::Range;
use crate::monotonic_ns;

/// Maps a range, has `fill` write to it, and gives what msync returned with the times around it.
pub fn write(
    file: &File,
    range: Range,
    fill: impl FnOnce(&mut [u8]),
) -> io::Result<(i64, u64, u64)> {
    let length = NonZeroUsize::new(range.bytes).ok_or(io::ErrorKind::InvalidInput)?;
    let offset = i64::try_from(range.offset).map_err(io::Error::other)?;
    let protection = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a new mapping of an open file, at an address that the kernel chooses.
    let memory = unsafe { mmap(None, length, protection, MapFlags::MAP_SHARED, file, offset)? };
    // SAFETY: the mapping has that many bytes, lies within the file, and nothing else in this process refers to it.
    let data = unsafe { std::slice::from_raw_parts_mut(memory.cast().as_ptr(), range.bytes) };
    fill(data);
    let begin = monotonic_ns()?;
    // SAFETY: the mapping is there until the next call.
    unsafe { msync(memory, range.bytes, MsFlags::MS_SYNC)? };
    let end = monotonic_ns()?;
    // SAFETY: nothing refers to it any more.
    unsafe { munmap(memory, range.bytes)? };
    Ok((0, begin, end))
}

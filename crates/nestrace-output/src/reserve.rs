//! Space on the disk that a file has before it is written.

use std::fs::File;

use nix::fcntl::{FallocateFlags, fallocate};

use crate::nocow;

/// Reserves so many bytes for an empty file, to be written as often as one likes. Best effort: a file system
/// without `fallocate` (NFS, 9p) gives none.
pub(crate) fn reserve(file: &File, bytes: u64) {
    nocow::mark(file);
    let size = i64::try_from(bytes).unwrap_or(i64::MAX);
    let _ = fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, size);
}

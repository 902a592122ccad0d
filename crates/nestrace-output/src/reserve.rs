//! Space on the disk that a file has before it is written.

use std::{fs::File, os::fd::AsRawFd};

use nix::fcntl::{FallocateFlags, fallocate};

/// `FS_NOCOW_FL` of `linux/fs.h`.
const NO_COPY_ON_WRITE: libc::c_long = 0x0080_0000;

mod ioctl {
    #![allow(missing_docs, reason = "the macros take no documentation")]
    nix::ioctl_read!(fs_ioc_getflags, b'f', 1, libc::c_long);
    nix::ioctl_write_ptr!(fs_ioc_setflags, b'f', 2, libc::c_long);
}

/// Reserves so many bytes for an empty file, to be written as often as one likes. Best effort: a file system
/// without `fallocate` (NFS, 9p) gives none.
pub(crate) fn reserve(file: &File, bytes: u64) {
    write_in_place(file);
    let size = i64::try_from(bytes).unwrap_or(i64::MAX);
    let _ = fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, 0, size);
}

/// btrfs writes what is overwritten to another place, and on a full disk there is none. It does not where the file
/// was marked while it was empty; other file systems refuse the mark.
fn write_in_place(file: &File) {
    let mut flags = 0;
    // SAFETY: the descriptor is open, and the kernel writes at most the `c_long` that `flags` is.
    if unsafe { ioctl::fs_ioc_getflags(file.as_raw_fd(), &raw mut flags) }.is_ok() {
        flags |= NO_COPY_ON_WRITE;
        // SAFETY: the descriptor is open, and the kernel only reads the `c_long` that `flags` is.
        let _ = unsafe { ioctl::fs_ioc_setflags(file.as_raw_fd(), &raw const flags) };
    }
}

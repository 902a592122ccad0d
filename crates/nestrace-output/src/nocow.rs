//! The mark of files that btrfs writes over in place (`chattr +C`).

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// `FS_NOCOW_FL` of `linux/fs.h`.
const NOCOW: libc::c_long = 0x0080_0000;

mod ioctl {
    #![allow(missing_docs, reason = "the macros take no documentation")]
    nix::ioctl_read!(fs_ioc_getflags, b'f', 1, libc::c_long);
    nix::ioctl_write_ptr!(fs_ioc_setflags, b'f', 2, libc::c_long);
}

/// Whether a file has the mark.
///
/// # Errors
/// The file system has no such marks.
pub fn is_marked(file: &File) -> io::Result<bool> {
    Ok(flags(file)? & NOCOW != 0)
}

/// Marks an empty file, best effort: what is overwritten has no other place on a full disk. File systems that always
/// write in place refuse it.
pub(crate) fn mark(file: &File) {
    if let Ok(flags) = flags(file) {
        let flags = flags | NOCOW;
        // SAFETY: the descriptor is open, and the kernel only reads the `c_long` that `flags` is.
        let _ = unsafe { ioctl::fs_ioc_setflags(file.as_raw_fd(), &raw const flags) };
    }
}

fn flags(file: &File) -> io::Result<libc::c_long> {
    let mut flags = 0;
    // SAFETY: the descriptor is open, and the kernel writes at most the `c_long` that `flags` is.
    unsafe { ioctl::fs_ioc_getflags(file.as_raw_fd(), &raw mut flags) }?;
    Ok(flags)
}

//! Opening files where another process sees them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Opens `path` as the process `pid` would: below its root, in its mount namespace, with absolute
/// symbolic links counted from its root too. Only for reading, or `O_PATH`.
///
/// # Errors
///
/// What the system says; permission is needed to look into the other process.
pub fn open_in_root(pid: u32, path: &Path, flags: OFlag) -> io::Result<File> {
    let root = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(format!("/proc/{pid}/root"))?;
    // openat2 refuses flags that O_PATH ignores.
    let wait = if flags.contains(OFlag::O_PATH) {
        OFlag::empty()
    } else {
        OFlag::O_NONBLOCK
    };
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC | wait)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT);
    Ok(File::from(openat2(&root, path, how)?))
}

//! Files of `/proc`, read up to a bound: what they hold is made by the process that they are about.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// `cmdline`. A guest with a thousand disks has 700 KiB.
pub const MAX_CMDLINE: usize = 1 << 20;
/// `stat` and `comm`.
pub const MAX_STAT: usize = 4 << 10;
/// `fdinfo/N`: an image with QEMU's locks has 1 KiB; a process may hold millions of locks.
pub const MAX_FDINFO: usize = 64 << 10;
/// `mountinfo`: a host with 10,000 mounts has 2 MiB.
pub const MAX_MOUNTINFO: usize = 8 << 20;
/// `net/unix`: 100,000 sockets have 8 MiB.
pub const MAX_NET_UNIX: usize = 16 << 20;
/// `maps`: a process has 65,530 mappings at most by default, of 100 bytes and a path.
pub const MAX_MAPS: usize = 16 << 20;
/// Entries of `fd`; QEMU with 1,000 disks has fewer than 8,000.
pub const MAX_DESCRIPTORS: usize = 16_384;

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcText {
    /// The bytes, at most as many as were asked for.
    pub bytes: Vec<u8>,
    /// There is more.
    pub is_cut: bool,
}

impl ProcText {
    /// The text; what is no UTF-8 is replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Reads at most `max` bytes of a file.
///
/// # Errors
/// What the system says.
pub fn read(path: impl AsRef<Path>, max: usize) -> io::Result<ProcText> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(path)?;
    let mut bytes = Vec::new();
    file.take(max as u64 + 1).read_to_end(&mut bytes)?;
    let is_cut = bytes.len() > max;
    bytes.truncate(max);
    Ok(ProcText { bytes, is_cut })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_than_the_bound_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [b'x'; 100]).unwrap();
        for (max, n, is_cut) in [(99, 99, true), (100, 100, false), (200, 100, false)] {
            let read = read(file.path(), max).unwrap();
            assert_eq!((read.bytes.len(), read.is_cut), (n, is_cut));
        }
        assert!(read("/proc/self/cmdline", MAX_CMDLINE).is_ok());
        assert!(read("/nowhere", 1).is_err());
    }
}

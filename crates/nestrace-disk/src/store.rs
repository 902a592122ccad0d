//! Where a disk's data is: memory, or a file without a name. Both are gone with the program.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::Context;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::memfd::{MFdFlags, memfd_create};

/// A sparse file.
#[derive(Debug)]
pub struct Store(File);

impl Store {
    /// A file of `size` bytes in `folder`, or in memory.
    pub fn create(folder: Option<&Path>, size: u64) -> anyhow::Result<Self> {
        let file = match folder {
            Some(folder) => OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_TMPFILE)
                .open(folder)
                .with_context(|| format!("make a file without a name in {}", folder.display()))?,
            None => memfd_create("nestrace-disk", MFdFlags::MFD_CLOEXEC)
                .map(File::from)
                .context("make a file in memory")?,
        };
        file.set_len(size).context("set the size of the data")?;
        Ok(Self(file))
    }

    /// Reads what a request asks for.
    pub fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut data = vec![0; length];
        self.0.read_exact_at(&mut data, offset)?;
        Ok(data)
    }

    /// Writes.
    pub fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_all_at(data, offset)
    }

    /// Makes zeros, and frees what they took.
    pub fn clear(&self, offset: u64, length: u64) -> io::Result<()> {
        let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
        let too_large = |_| io::Error::from(io::ErrorKind::InvalidInput);
        let offset = i64::try_from(offset).map_err(too_large)?;
        let length = i64::try_from(length).map_err(too_large)?;
        fallocate(&self.0, flags, offset, length).map_err(io::Error::from)
    }
}

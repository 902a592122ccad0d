//! Opens files that are input. A name can belong to anything: what is no regular file is refused
//! before a byte of it is read, and opening never waits (a FIFO would wait for its writer).

use std::{
    fs::{File, OpenOptions},
    io::{Error, ErrorKind, Result},
    os::unix::fs::OpenOptionsExt,
    path::Path,
};

use nix::fcntl::OFlag;

/// Opens a regular file for reading.
///
/// # Errors
/// If it cannot be opened, or is a directory, a device, a FIFO or a socket.
pub fn open(path: &Path) -> Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlag::O_NONBLOCK.bits())
        .open(path)?;
    if file.metadata()?.is_file() {
        Ok(file)
    } else {
        Err(Error::new(ErrorKind::InvalidInput, "not a regular file"))
    }
}

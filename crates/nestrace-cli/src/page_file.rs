//! The file of a report's page: what may be replaced, and how it is written.

use std::fs;
use std::io::{ErrorKind, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use nestrace_bundle::input_file;
use nestrace_report::html;

use crate::exit::{FAILURE, Failure, USAGE};

/// Fails before long work is done, not after: a page that is not ours is replaced by force only. No force makes a file of
/// a FIFO: to open one waits until somebody else does, maybe for ever.
///
/// # Errors
/// If the file may not be replaced.
pub fn check(file: &Path, force: bool) -> Result<(), Failure> {
    if is_fifo(file) {
        let message = format!("{} is a FIFO, not a file", file.display());
        return Err(Failure::new(USAGE, message).hint("choose another name"));
    }
    if force || may_replace(file) {
        return Ok(());
    }
    Err(not_ours(file, "exists and is not a report of nestrace"))
}

/// What is in the way of a result.
#[must_use]
pub fn not_ours(path: &Path, what: &str) -> Failure {
    Failure::new(USAGE, format!("{} {what}", path.display()))
        .hint("choose another name, or replace it with --force")
}

/// Whether it is a FIFO, by its own name or through a link.
#[must_use]
pub fn is_fifo(path: &Path) -> bool {
    path.metadata()
        .is_ok_and(|there| there.file_type().is_fifo())
}

/// Nothing is there, nothing is in it, or it is an older report. A device (/dev/null) has nothing in it, and to
/// read from one, a terminal say, waits.
fn may_replace(file: &Path) -> bool {
    if fs::metadata(file).is_ok_and(|there| there.file_type().is_char_device()) {
        return true;
    }
    let mut head = [0; 512];
    match input_file::open(file).and_then(|mut file| file.read(&mut head)) {
        Ok(n) => n == 0 || String::from_utf8_lossy(&head[..n]).contains(html::GENERATOR),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// Writes a file.
///
/// # Errors
/// If it cannot be written.
pub fn put(file: &Path, bytes: &[u8]) -> Result<(), Failure> {
    fs::write(file, bytes).map_err(|error| cannot(file, &error))
}

/// Why it was not written.
#[must_use]
pub fn cannot(path: &Path, error: &std::io::Error) -> Failure {
    Failure::new(FAILURE, format!("write {}: {error}", path.display()))
}

//! The debug symbols of a QEMU that exports none: a file of their own, which is found by the program's build-id.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use nestrace_probes::refusal::with_causes;

use super::elf::{Elf, ElfError, Table};
use super::{Bytes, Located, next_note};
use crate::topology::namespace::{open_regular, read_regular};

/// `NT_GNU_BUILD_ID`.
const NOTE_TYPE: u32 = 3;
/// SHA-1 has 20 bytes; some linkers write more.
const MAX_ID: usize = 64;

/// Why a file has no debug symbols for a program.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DebugFileError {
    /// The system's word.
    #[error("cannot be opened: {0}")]
    Open(#[source] io::Error),
    /// It cannot be read as a program.
    #[error("cannot be read: {0}")]
    Elf(String),
    /// It is of another build.
    #[error("has build-id {file}, and the program has {program}")]
    OtherBuild {
        /// Of the file.
        file: String,
        /// Of the program.
        program: String,
    },
    /// Debug symbols and the program lie apart, and nothing ties them.
    #[error("has no build-id, or the program has none")]
    NoBuildId,
    /// It has no function that is asked for.
    #[error("has no symbols of QEMU's block layer")]
    NoSymbols,
}

/// The file of debug symbols that a user named.
///
/// # Errors
/// [`DebugFileError::Open`], also for what is no regular file.
pub fn open(path: &Path) -> Result<File, DebugFileError> {
    let mut options = std::fs::OpenOptions::new();
    let place = options.read(true).custom_flags(libc::O_PATH).open(path);
    place
        .and_then(|place| read_regular(&place))
        .map_err(DebugFileError::Open)
}

/// The debug symbols that are installed for a program, in the root of its process or in this one's.
#[must_use]
pub fn installed(pid: u32, program: &File) -> Option<File> {
    let place = place(&build_id(program).ok()??)?;
    let in_root = open_regular(pid, &place).ok();
    in_root.or_else(|| open(&place).ok())
}

/// Adds the functions that a file of debug symbols has and the program does not name.
///
/// # Errors
/// [`DebugFileError`].
pub(crate) fn add<P: Bytes + ?Sized, D: Bytes + ?Sized>(
    located: &mut Located,
    program: &P,
    debug: &D,
    names: &[&str],
) -> Result<(), DebugFileError> {
    let id = build_id(program).map_err(|error| not_read(&error))?;
    let of_debug = build_id(debug).map_err(|error| not_read(&error))?;
    let (Some(id), Some(of_debug)) = (id, of_debug) else {
        return Err(DebugFileError::NoBuildId);
    };
    if id != of_debug {
        return Err(DebugFileError::OtherBuild {
            file: hex(&of_debug),
            program: hex(&id),
        });
    }
    // The debug file has no code: an address becomes an offset by the program's own segments.
    let program = Elf::read(program).map_err(|error| not_read(&error))?;
    let debug = Elf::read(debug).map_err(|error| not_read(&error))?;
    let mut found = false;
    let symbols = &mut located.symbols;
    // The program may have named others than these.
    let unknown = names.iter().filter(|name| !symbols.contains_key(**name));
    let mut n_unknown = unknown.count();
    let read = debug.functions(Table::All, |symbol| {
        if let Some(name) = names.iter().find(|name| name.as_bytes() == symbol.name)
            && let Some(offset) = program.code_offset(symbol.address)
        {
            found = true;
            if !symbols.contains_key(*name) {
                symbols.insert((*name).to_owned(), offset);
                n_unknown -= 1;
            }
        }
        n_unknown > 0
    });
    read.map_err(|error| not_read(&error))?;
    found.then_some(()).ok_or(DebugFileError::NoSymbols)
}

fn not_read(error: &ElfError) -> DebugFileError {
    DebugFileError::Elf(with_causes(error))
}

fn build_id<B: Bytes + ?Sized>(data: &B) -> Result<Option<Vec<u8>>, ElfError> {
    let Some(section) = Elf::read(data)?.section(b".note.gnu.build-id") else {
        return Ok(None);
    };
    let note = next_note(&mut section.as_slice());
    let id = note.filter(|(kind, owner, _)| *kind == NOTE_TYPE && *owner == b"GNU\0");
    let id = id.map(|(.., id)| id.to_vec());
    Ok(id.filter(|id| (2..=MAX_ID).contains(&id.len())))
}

/// `/usr/lib/debug/.build-id/ab/cdef….debug`.
fn place(id: &[u8]) -> Option<PathBuf> {
    let (first, rest) = id.split_at_checked(1)?;
    let mut place = PathBuf::from("/usr/lib/debug/.build-id");
    place.push(hex(first));
    place.push(OsStr::new(&format!("{}.debug", hex(rest))));
    Some(place)
}

fn hex(id: &[u8]) -> String {
    id.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_id_names_its_file() {
        let place = place(&[0xab, 0x01, 0xff]).unwrap();
        assert_eq!(place, Path::new("/usr/lib/debug/.build-id/ab/01ff.debug"));
        assert_eq!(super::place(&[]), None);
    }

    #[test]
    fn what_is_no_program_has_no_symbols() {
        let mut located = Located::default();
        let added = add(&mut located, &b"no program"[..], &b"none"[..], &["main"]);
        assert!(matches!(added, Err(DebugFileError::Elf(_))), "{added:?}");
        assert!(open(Path::new("/dev/zero")).is_err());
    }
}

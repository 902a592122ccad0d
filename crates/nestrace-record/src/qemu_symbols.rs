//! Where a QEMU binary has the functions and USDT probes that the recorder attaches to.
//!
//! Functions come from `.dynsym` (QEMU exports its own for its modules) and, where that lacks some,
//! from `.symtab`. USDT notes are in `.note.stapsdt`. Both are addresses in the program's image; a
//! uprobe wants offsets in the file, so they are mapped through the program headers.
//!
//! Where the binary has neither, the file of its debug symbols may be there: distributions ship one for each build-id
//! ([`debug_file`]).
//!
//! The binary is whatever a process says it runs, so nothing here trusts it: what does not parse is
//! left out, and [`Located::problem`] says so.

pub mod debug_file;
mod elf;

use std::collections::BTreeMap;
use std::fs::File;

use nestrace_probes::refusal::with_causes;
use serde::{Deserialize, Serialize};

pub(crate) use elf::{Bytes, Elf, ElfError, Table};

/// What was found. Offsets are in bytes from the start of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Located {
    /// Offset of each function that was asked for and is there.
    pub symbols: BTreeMap<String, u64>,
    /// Every USDT probe, of every provider.
    pub usdt: Vec<UsdtProbe>,
    /// Why the file could not be read as a program, if so.
    pub problem: Option<String>,
}

/// One USDT note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsdtProbe {
    /// `qemu`.
    pub provider: String,
    /// `virtqueue_fill`.
    pub name: String,
    /// Offset of the instruction to probe.
    pub location: u64,
    /// Offset of the counter that switches the probe on while it is above 0; `None` if it is always on.
    pub semaphore: Option<u64>,
    /// Where the arguments are, in the assembler's words: `8@%rdi 8@%rsi -4@%edx`.
    pub args: String,
}

/// Looks for functions and USDT probes in the bytes of an ELF program (64-bit, little endian).
#[must_use]
pub fn locate(elf: &[u8], names: &[&str]) -> Located {
    locate_from(elf, names)
}

/// The same, reading only those parts of the file that are needed: a build with debug information has
/// hundreds of megabytes.
#[must_use]
pub fn locate_in(program: &File, names: &[&str]) -> Located {
    locate_from(program, names)
}

/// The same for the program that the process `pid` runs; where it names none, with the debug symbols that are installed for it.
#[must_use]
pub fn locate_program(pid: u32, program: &File, names: &[&str]) -> Located {
    let mut located = locate_in(program, names);
    if located.symbols.is_empty()
        && located.usdt.is_empty()
        && let Some(debug) = debug_file::installed(pid, program)
    {
        // What is of no use adds nothing: it was not asked for.
        let _ = debug_file::add(&mut located, program, &debug, names);
    }
    located
}

/// The same in bytes, with a file of debug symbols.
///
/// # Errors
/// Why that file is of no use.
pub fn locate_with(
    program: &[u8],
    debug: &[u8],
    names: &[&str],
) -> Result<Located, debug_file::DebugFileError> {
    let mut located = locate(program, names);
    debug_file::add(&mut located, program, debug, names).map(|()| located)
}

fn locate_from<B: Bytes + ?Sized>(data: &B, names: &[&str]) -> Located {
    let mut located = Located::default();
    if let Err(error) = locate_all(data, names, &mut located) {
        located.problem = Some(with_causes(&error));
    }
    located
}

fn locate_all<B: Bytes + ?Sized>(
    data: &B,
    names: &[&str],
    located: &mut Located,
) -> Result<(), ElfError> {
    let elf = Elf::read(data)?;
    located.usdt = usdt_probes(&elf);
    let symbols = &mut located.symbols;
    for table in [Table::Exported, Table::All] {
        elf.functions(table, |symbol| {
            if let Some(name) = names.iter().find(|name| name.as_bytes() == symbol.name)
                && !symbols.contains_key(*name)
                && let Some(offset) = elf.code_offset(symbol.address)
            {
                symbols.insert((*name).to_owned(), offset);
            }
            symbols.len() < names.len()
        })?;
    }
    Ok(())
}

/// `NT_STAPSDT`.
const NOTE_TYPE: u32 = 3;

/// More probes than QEMU has trace points are not taken.
const MAX_USDT: usize = 16_384;

fn usdt_probes<B: Bytes + ?Sized>(elf: &Elf<'_, B>) -> Vec<UsdtProbe> {
    let Some(section) = elf.section(b".note.stapsdt") else {
        return Vec::new();
    };
    let mut bytes = section.as_slice();
    // A prelinked program is moved; the note has the base's address before that.
    let base = elf.section_address(b".stapsdt.base");
    let mut probes = Vec::new();
    while let Some((kind, owner, description)) = next_note(&mut bytes)
        && probes.len() < MAX_USDT
    {
        if kind == NOTE_TYPE && owner == b"stapsdt\0" {
            probes.extend(usdt_probe(description, base, elf));
        }
    }
    probes
}

/// Takes one note from the front: type, owner, description.
fn next_note<'a>(bytes: &mut &'a [u8]) -> Option<(u32, &'a [u8], &'a [u8])> {
    let owner_length = take_u32(bytes)?;
    let description_length = take_u32(bytes)?;
    let kind = take_u32(bytes)?;
    Some((
        kind,
        take_padded(bytes, owner_length)?,
        take_padded(bytes, description_length)?,
    ))
}

/// Address, address of the base, address of the semaphore, then provider, name and arguments.
fn usdt_probe<B: Bytes + ?Sized>(
    mut description: &[u8],
    base: Option<u64>,
    elf: &Elf<'_, B>,
) -> Option<UsdtProbe> {
    let address = take_u64(&mut description)?;
    let noted_base = take_u64(&mut description)?;
    let semaphore = take_u64(&mut description)?;
    let moved = base.map_or(0, |base| base.wrapping_sub(noted_base));
    let semaphore = match semaphore {
        0 => None,
        address => Some(elf.data_offset(address.wrapping_add(moved))?),
    };
    Some(UsdtProbe {
        provider: take_string(&mut description)?,
        name: take_string(&mut description)?,
        location: elf.code_offset(address.wrapping_add(moved))?,
        semaphore,
        args: take_string(&mut description)?,
    })
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (word, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*word))
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (word, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*word))
}

/// Takes `length` bytes and what pads them to four; the last one may lack its padding.
fn take_padded<'a>(bytes: &mut &'a [u8], length: u32) -> Option<&'a [u8]> {
    let length = usize::try_from(length).ok()?;
    let (taken, rest) = bytes.split_at_checked(length)?;
    let padding = length.checked_next_multiple_of(4)? - length;
    *bytes = rest.get(padding..).unwrap_or_default();
    Some(taken)
}

fn take_string(bytes: &mut &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    let (text, rest) = bytes.split_at_checked(end)?;
    *bytes = rest.get(1..)?;
    Some(String::from_utf8_lossy(text).into_owned())
}

#[cfg(test)]
mod tests;

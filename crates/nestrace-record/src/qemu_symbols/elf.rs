//! A reader of 64-bit little-endian ELF programs that takes only what is asked for, in bounded parts.
//!
//! The file is whatever a process says it runs: tables of any size, names without an end, offsets that point anywhere.
//! A table that is larger than any real program's is refused; nothing is read twice, and of symbols only one part is in
//! memory at a time.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::arithmetic_side_effects)
)]

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Bytes of the largest file that is read. QEMU with debug information has 300 MB.
const MAX_PROGRAM: u64 = 1 << 30;
const MAX_SEGMENTS: u16 = 256;
const MAX_SECTIONS: u16 = 1024;
/// A table of names: that of QEMU with all its symbols has 4 MiB.
const MAX_NAMES: u64 = 16 << 20;
/// Symbols of one table: QEMU with debug information has some 100,000.
const MAX_SYMBOLS: u64 = 1 << 20;
/// The longest name that is compared.
const MAX_NAME: usize = 256;
/// Bytes of a section that is read as a whole.
const MAX_SECTION: u64 = 1 << 20;
/// Symbols that are read at once.
const SYMBOLS_AT_ONCE: usize = 4096;
/// Bytes of a `Elf64_Sym`.
const SYMBOL_BYTES: usize = 24;

/// Why a file cannot be read as a program.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ElfError {
    /// It is no 64-bit little-endian ELF file.
    #[error("it is not a 64-bit little-endian ELF program")]
    NotElf,
    /// A part of it lies outside of the file, or cannot be read.
    #[error("its {what} cannot be read")]
    Read {
        what: &'static str,
        #[source]
        error: io::Error,
    },
    /// A part is larger than any program's.
    #[error("it has too many {what}: {n}, and {max} is the limit")]
    TooMany {
        what: &'static str,
        n: u64,
        max: u64,
    },
    /// A part contradicts itself.
    #[error("its {what} are damaged")]
    Damaged { what: &'static str },
}

/// Where bytes are read from.
pub(crate) trait Bytes {
    fn length(&self) -> io::Result<u64>;
    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Bytes for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        FileExt::read_exact_at(self, buffer, offset)
    }
}

impl Bytes for [u8] {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        let start = usize::try_from(offset).ok();
        let found = start.and_then(|start| self.get(start..start.checked_add(buffer.len())?));
        buffer.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A program's loaded segment.
#[derive(Clone, Copy, Debug)]
struct Segment {
    executable: bool,
    writable: bool,
    offset: u64,
    address: u64,
    file_bytes: u64,
}

impl Segment {
    /// The part of it that lies in a file of this many bytes.
    fn within(self, length: u64) -> Self {
        let file_bytes = self.file_bytes.min(length.saturating_sub(self.offset));
        Self { file_bytes, ..self }
    }
}

/// A section, its name by its place in the table of names.
#[derive(Clone, Copy, Debug)]
struct Section {
    name: u32,
    kind: u32,
    address: u64,
    offset: u64,
    bytes: u64,
    link: u32,
}

const SYMBOL_TABLE: u32 = 2;
const DYNAMIC_SYMBOL_TABLE: u32 = 11;
const NO_BITS: u32 = 8;

/// Where a symbol's name and address are.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol<'a> {
    pub name: &'a [u8],
    pub address: u64,
}

/// A program whose headers have been read.
pub(crate) struct Elf<'data, B: Bytes + ?Sized> {
    data: &'data B,
    segments: Vec<Segment>,
    sections: Vec<Section>,
    section_names: Vec<u8>,
}

/// Which table of symbols.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Table {
    /// What the program exports (`.dynsym`).
    Exported,
    /// All (`.symtab`), where the program was not stripped.
    All,
}

impl<'data, B: Bytes + ?Sized> Elf<'data, B> {
    /// Reads the headers.
    pub fn read(data: &'data B) -> Result<Self, ElfError> {
        let length = data.length().map_err(|error| ElfError::Read {
            what: "size",
            error,
        })?;
        if length > MAX_PROGRAM {
            return Err(too_many("bytes", length, MAX_PROGRAM));
        }
        let mut header = [0u8; 64];
        data.read_exact_at(&mut header, 0)
            .map_err(|_| ElfError::NotElf)?;
        if !header.starts_with(b"\x7fELF\x02\x01") {
            return Err(ElfError::NotElf);
        }
        let damaged = || ElfError::Damaged { what: "headers" };
        let segments_at = u64_at(&header, 32).ok_or_else(damaged)?;
        let sections_at = u64_at(&header, 40).ok_or_else(damaged)?;
        let segment_bytes = u16_at(&header, 54).ok_or_else(damaged)?;
        let n_segments = u16_at(&header, 56).ok_or_else(damaged)?;
        let section_bytes = u16_at(&header, 58).ok_or_else(damaged)?;
        let n_sections = u16_at(&header, 60).ok_or_else(damaged)?;
        let names_index = u16_at(&header, 62).ok_or_else(damaged)?;
        if n_segments > MAX_SEGMENTS {
            return Err(too_many("segments", n_segments.into(), MAX_SEGMENTS.into()));
        }
        if n_sections > MAX_SECTIONS {
            return Err(too_many("sections", n_sections.into(), MAX_SECTIONS.into()));
        }
        if (n_segments > 0 && segment_bytes != 56) || (n_sections > 0 && section_bytes != 64) {
            return Err(damaged());
        }
        let mut elf = Self {
            data,
            segments: Vec::new(),
            sections: Vec::new(),
            section_names: Vec::new(),
        };
        let table = elf.bytes(
            "segments",
            segments_at,
            u64::from(n_segments).saturating_mul(56),
        )?;
        let segments = table.chunks_exact(56).filter_map(segment);
        elf.segments = segments.map(|segment| segment.within(length)).collect();
        let table = elf.bytes(
            "sections",
            sections_at,
            u64::from(n_sections).saturating_mul(64),
        )?;
        elf.sections = table.chunks_exact(64).filter_map(section).collect();
        if let Some(names) = elf.sections.get(usize::from(names_index)) {
            if names.bytes > MAX_SECTION {
                return Err(too_many("names of sections", names.bytes, MAX_SECTION));
            }
            elf.section_names = elf.bytes("names of sections", names.offset, names.bytes)?;
        }
        Ok(elf)
    }

    /// Calls `take` with each function that is defined in the table, until it returns `false`.
    pub fn functions(
        &self,
        table: Table,
        mut take: impl FnMut(Symbol<'_>) -> bool,
    ) -> Result<(), ElfError> {
        let kind = match table {
            Table::Exported => DYNAMIC_SYMBOL_TABLE,
            Table::All => SYMBOL_TABLE,
        };
        let Some(symbols) = self.sections.iter().find(|section| section.kind == kind) else {
            return Ok(());
        };
        let names = usize::try_from(symbols.link)
            .ok()
            .and_then(|link| self.sections.get(link))
            .ok_or(ElfError::Damaged { what: "symbols" })?;
        if names.bytes > MAX_NAMES {
            return Err(too_many("bytes of symbol names", names.bytes, MAX_NAMES));
        }
        let n_symbols = symbols.bytes.checked_div(SYMBOL_BYTES as u64).unwrap_or(0);
        if n_symbols > MAX_SYMBOLS {
            return Err(too_many("symbols", n_symbols, MAX_SYMBOLS));
        }
        let names = self.bytes("names of symbols", names.offset, names.bytes)?;
        let mut part = vec![0u8; SYMBOLS_AT_ONCE.saturating_mul(SYMBOL_BYTES)];
        let mut offset = symbols.offset;
        let mut left = usize::try_from(n_symbols)
            .unwrap_or(0)
            .saturating_mul(SYMBOL_BYTES);
        while left > 0 {
            let length = left.min(part.len());
            let wanted = part.get_mut(..length).unwrap_or_default();
            self.data
                .read_exact_at(wanted, offset)
                .map_err(|error| ElfError::Read {
                    what: "symbols",
                    error,
                })?;
            for entry in wanted.chunks_exact(SYMBOL_BYTES) {
                if let Some(symbol) = function(entry, &names)
                    && !take(symbol)
                {
                    return Ok(());
                }
            }
            offset = offset.saturating_add(length as u64);
            left = left.saturating_sub(length);
        }
        Ok(())
    }

    /// The bytes of a section; nothing where there is none, or more of it than a program has.
    pub fn section(&self, name: &[u8]) -> Option<Vec<u8>> {
        let section = self.section_named(name)?;
        if section.kind == NO_BITS || section.bytes > MAX_SECTION {
            return None;
        }
        self.bytes("section", section.offset, section.bytes).ok()
    }

    /// The address of a section, where there is one.
    pub fn section_address(&self, name: &[u8]) -> Option<u64> {
        Some(self.section_named(name)?.address)
    }

    /// Where a section's bytes lie in the file, and how many there are.
    pub fn section_place(&self, name: &[u8]) -> Option<(u64, u64)> {
        let section = self.section_named(name)?;
        (section.kind != NO_BITS).then_some((section.offset, section.bytes))
    }

    /// The offset in the file of code at an address: within a segment that is executable and not writable.
    pub fn code_offset(&self, address: u64) -> Option<u64> {
        self.offset_where(address, |segment| segment.executable && !segment.writable)
    }

    /// The offset in the file of data at an address: within a segment that is writable and not executable.
    pub fn data_offset(&self, address: u64) -> Option<u64> {
        self.offset_where(address, |segment| segment.writable && !segment.executable)
    }

    fn offset_where(&self, address: u64, is_wanted: impl Fn(&Segment) -> bool) -> Option<u64> {
        let mut segments = self.segments.iter().filter(|segment| is_wanted(segment));
        segments.find_map(|segment| {
            let within = address
                .checked_sub(segment.address)
                .filter(|within| *within < segment.file_bytes)?;
            segment.offset.checked_add(within)
        })
    }

    fn section_named(&self, name: &[u8]) -> Option<&Section> {
        self.sections
            .iter()
            .find(|section| string_at(&self.section_names, section.name) == Some(name))
    }

    /// The caller has bounded `length`.
    fn bytes(&self, what: &'static str, offset: u64, length: u64) -> Result<Vec<u8>, ElfError> {
        let length = usize::try_from(length).map_err(|_| ElfError::Damaged { what })?;
        let mut bytes = vec![0u8; length];
        match self.data.read_exact_at(&mut bytes, offset) {
            Ok(()) => Ok(bytes),
            Err(error) => Err(ElfError::Read { what, error }),
        }
    }
}

const fn too_many(what: &'static str, n: u64, max: u64) -> ElfError {
    ElfError::TooMany { what, n, max }
}

/// A `PT_LOAD`.
fn segment(header: &[u8]) -> Option<Segment> {
    const LOAD: u32 = 1;
    const EXECUTABLE: u32 = 1;
    const WRITABLE: u32 = 2;
    let flags = u32_at(header, 4)?;
    (u32_at(header, 0)? == LOAD).then_some(Segment {
        executable: flags & EXECUTABLE != 0,
        writable: flags & WRITABLE != 0,
        offset: u64_at(header, 8)?,
        address: u64_at(header, 16)?,
        file_bytes: u64_at(header, 32)?,
    })
}

fn section(header: &[u8]) -> Option<Section> {
    Some(Section {
        name: u32_at(header, 0)?,
        kind: u32_at(header, 4)?,
        address: u64_at(header, 16)?,
        offset: u64_at(header, 24)?,
        bytes: u64_at(header, 32)?,
        link: u32_at(header, 40)?,
    })
}

/// A symbol that is a function and defined here.
fn function<'a>(entry: &[u8], names: &'a [u8]) -> Option<Symbol<'a>> {
    const FUNCTION: u8 = 2;
    let kind = entry.get(4)? & 0xf;
    let section = u16_at(entry, 6)?;
    if kind != FUNCTION || section == 0 {
        return None;
    }
    Some(Symbol {
        name: string_at(names, u32_at(entry, 0)?)?,
        address: u64_at(entry, 8)?,
    })
}

/// The string at a place of a table, if it ends within [`MAX_NAME`] bytes.
fn string_at(table: &[u8], at: u32) -> Option<&[u8]> {
    let rest = table.get(usize::try_from(at).ok()?..)?;
    let rest = rest.get(..rest.len().min(MAX_NAME))?;
    rest.get(..rest.iter().position(|byte| *byte == 0)?)
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u16::from_le_bytes(*word))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_le_bytes(*word))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_le_bytes(*word))
}

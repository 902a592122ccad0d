//! Where a QEMU binary has the functions and USDT probes that the recorder attaches to.
//!
//! Functions come from `.dynsym` (QEMU exports its own for its modules) and, where that lacks some,
//! from `.symtab`. USDT notes are in `.note.stapsdt`. Both are addresses in the program's image; a
//! uprobe wants offsets in the file, so they are mapped through the program headers.
//!
//! The binary is whatever a process says it runs, so nothing here trusts it: what does not parse is
//! left out, and [`Located::problem`] says so.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use object::read::elf::ElfFile64;
use object::{
    LittleEndian, Object as _, ObjectSection as _, ObjectSegment as _, ReadCache, ReadRef,
    SymbolKind,
};

/// What was found. Offsets are in bytes from the start of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Located {
    /// Offset of each function that was asked for and is there.
    pub symbols: BTreeMap<String, u64>,
    /// Every USDT probe, of every provider.
    pub usdt: Vec<UsdtProbe>,
    /// Why the file could not be read as a program, if so.
    pub problem: Option<String>,
}

/// One USDT note.
#[derive(Clone, Debug, PartialEq, Eq)]
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
///
/// # Errors
/// If the file cannot be opened, or is larger than any program ([`MAX_PROGRAM`]).
pub fn locate_in(path: &Path, names: &[&str]) -> io::Result<Located> {
    let file = File::open(path)?;
    let length = file.metadata()?.len();
    if length > MAX_PROGRAM {
        let problem = format!("{length} bytes are too many for a program");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, problem));
    }
    Ok(locate_from(&ReadCache::new(file), names))
}

/// Bytes of the largest file that is read. QEMU with debug information has 300 MB; a sparse file that
/// claims to be a program must not make the recorder allocate what it names.
pub const MAX_PROGRAM: u64 = 1 << 30;

fn locate_from<'data, R: ReadRef<'data>>(data: R, names: &[&str]) -> Located {
    let elf = match ElfFile64::<LittleEndian, R>::parse(data) {
        Ok(elf) => elf,
        Err(error) => {
            return Located {
                problem: Some(error.to_string()),
                ..Located::default()
            };
        }
    };
    let segments = Segments::of(&elf);
    let mut symbols = BTreeMap::new();
    pick(elf.dynamic_symbols(), names, &segments, &mut symbols);
    if symbols.len() < names.len() {
        pick(elf.symbols(), names, &segments, &mut symbols);
    }
    Located {
        symbols,
        usdt: usdt_probes(&elf, &segments),
        problem: None,
    }
}

/// The loaded segments: address, bytes in the file, offset in the file.
struct Segments(Vec<(u64, u64, u64)>);

impl Segments {
    fn of<'data, R: ReadRef<'data>>(elf: &ElfFile64<'data, LittleEndian, R>) -> Self {
        let place = |(address, (offset, length))| (address, length, offset);
        Self(
            elf.segments()
                .map(|segment| place((segment.address(), segment.file_range())))
                .collect(),
        )
    }

    fn file_offset(&self, address: u64) -> Option<u64> {
        self.0.iter().find_map(|(start, length, offset)| {
            let within = address
                .checked_sub(*start)
                .filter(|within| within < length)?;
            offset.checked_add(within)
        })
    }
}

fn pick<'data: 'file, 'file, S: object::ObjectSymbol<'data>>(
    table: impl Iterator<Item = S> + 'file,
    names: &[&str],
    segments: &Segments,
    found: &mut BTreeMap<String, u64>,
) {
    for symbol in table.filter(|symbol| symbol.is_definition() && symbol.kind() == SymbolKind::Text)
    {
        let Ok(name) = symbol.name() else { continue };
        if !names.contains(&name) || found.contains_key(name) {
            continue;
        }
        if let Some(offset) = segments.file_offset(symbol.address()) {
            found.insert(name.to_owned(), offset);
        }
    }
}

/// `NT_STAPSDT`.
const NOTE_TYPE: u32 = 3;

fn usdt_probes<'data, R: ReadRef<'data>>(
    elf: &ElfFile64<'data, LittleEndian, R>,
    segments: &Segments,
) -> Vec<UsdtProbe> {
    let Some(section) = elf.section_by_name(".note.stapsdt") else {
        return Vec::new();
    };
    let Ok(mut bytes) = section.data() else {
        return Vec::new();
    };
    // A prelinked program is moved; the note has the base's address before that.
    let base = elf
        .section_by_name(".stapsdt.base")
        .map(|section| section.address());
    let mut probes = Vec::new();
    while let Some((kind, owner, description)) = next_note(&mut bytes) {
        if kind == NOTE_TYPE && owner == b"stapsdt\0" {
            probes.extend(usdt_probe(description, base, segments));
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
fn usdt_probe(mut description: &[u8], base: Option<u64>, segments: &Segments) -> Option<UsdtProbe> {
    let address = take_u64(&mut description)?;
    let noted_base = take_u64(&mut description)?;
    let semaphore = take_u64(&mut description)?;
    let moved = base.map_or(0, |base| base.wrapping_sub(noted_base));
    let semaphore = match semaphore {
        0 => None,
        address => Some(segments.file_offset(address.wrapping_add(moved))?),
    };
    Some(UsdtProbe {
        provider: take_string(&mut description)?,
        name: take_string(&mut description)?,
        location: segments.file_offset(address.wrapping_add(moved))?,
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

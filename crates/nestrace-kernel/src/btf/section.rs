//! One BTF section: header, types in the order of their numbers, strings.

use std::ops::Range;
use std::sync::Arc;

use super::error::BtfError;
use super::names::NameIndex;
use super::types::{Kind, Type};

/// How many typedefs, qualifiers and tags are followed before a chain counts as endless.
const MAX_CHAIN: usize = 32;
/// `struct btf_header`: magic, version, flags, and five words.
const HEADER: usize = 24;
/// `struct btf_type`: name, info, size or type.
const TYPE: usize = 12;
/// Distribution kernels have 5 to 12 MB; a debug kernel stays below 100.
const MAX_LENGTH: usize = 64 << 20;
/// The kernel refuses names from `KSYM_NAME_LEN` (512) on.
const MAX_NAME: usize = 1024;

/// The parsed section. Types are decoded when they are asked for; only where each begins is kept.
#[derive(Debug)]
pub(super) struct Section {
    data: Vec<u8>,
    strings: Range<usize>,
    /// Where each type begins in `data`, by number − `first_id`.
    starts: Vec<u32>,
    first_id: u32,
    /// Split BTF counts string offsets on from the end of its base's strings.
    first_string: u32,
    pub(super) names: NameIndex,
    /// Numbers of all enum types; most are anonymous.
    pub(super) enums: Vec<u32>,
    pub(super) base: Option<Arc<Section>>,
}

impl Section {
    pub(super) fn parse(bytes: &[u8], base: Option<Arc<Self>>) -> Result<Self, BtfError> {
        if bytes.len() > MAX_LENGTH {
            return Err(BtfError::TooLarge {
                length: bytes.len(),
                limit: MAX_LENGTH,
            });
        }
        let (types, strings) = header(bytes)?;
        // Type 0 is void; it has no entry.
        let (first_id, first_string) = base
            .as_ref()
            .map_or((1, 0), |base| (base.end_id(), base.end_string()));
        let mut section = Self {
            data: bytes.to_vec(),
            strings,
            starts: Vec::with_capacity(types.len() / 32),
            first_id,
            first_string,
            names: NameIndex::default(),
            enums: Vec::new(),
            base,
        };
        section.find_types(types)?;
        section.index_names()?;
        Ok(section)
    }

    /// The first number after those of this section.
    pub(super) fn end_id(&self) -> u32 {
        // At most MAX_LENGTH / TYPE types in each section, so this saturates only in theory.
        self.first_id
            .saturating_add(u32::try_from(self.starts.len()).unwrap_or(u32::MAX))
    }

    fn end_string(&self) -> u32 {
        let length = u32::try_from(self.strings.len()).unwrap_or(u32::MAX);
        self.first_string.saturating_add(length)
    }

    /// The type with this number, here or in the base; `None` for void and for numbers out of range.
    pub(super) fn get(&self, id: u32) -> Option<Type<'_>> {
        match (id.checked_sub(self.first_id), &self.base) {
            (Some(index), _) => {
                let start = *self.starts.get(usize::try_from(index).ok()?)?;
                Type::decode(self, id, start as usize)
            }
            (None, Some(base)) => base.get(id),
            (None, None) => None,
        }
    }

    /// A string by offset, without its NUL; the base's strings included.
    pub(super) fn string(&self, offset: u32) -> Option<&[u8]> {
        let Some(own) = offset.checked_sub(self.first_string) else {
            return self.base.as_ref()?.string(offset);
        };
        let from_here = self.data.get(self.strings.clone())?.get(own as usize..)?;
        let bounded = from_here.get(..MAX_NAME).unwrap_or(from_here);
        let end = bounded.iter().position(|byte| *byte == 0)?;
        bounded.get(..end)
    }

    /// A little-endian word at an offset into the section.
    pub(super) fn word(&self, offset: usize) -> Option<u32> {
        word(&self.data, offset)
    }

    /// Types of this name, the module's own first, in the order of their numbers.
    pub(super) fn named<'a>(&'a self, name: &'a str) -> impl Iterator<Item = Type<'a>> + 'a {
        let own = std::iter::once(self);
        own.chain(self.base.as_deref())
            .flat_map(move |section| {
                section
                    .candidates(name.as_bytes())
                    .filter_map(|id| section.get(id))
            })
            .filter(move |found| found.name() == Some(name.as_bytes()))
    }

    /// Follows `const`, `volatile`, `restrict` and tags; stops at a typedef.
    pub(super) fn unqualified(&self, id: u32) -> Option<Type<'_>> {
        self.follow(id, Kind::is_modifier)
    }

    /// Follows typedefs as well.
    pub(super) fn resolved(&self, id: u32) -> Option<Type<'_>> {
        self.follow(id, |kind| kind.is_modifier() || kind == Kind::Typedef)
    }

    fn follow(&self, mut id: u32, through: impl Fn(Kind) -> bool) -> Option<Type<'_>> {
        for _ in 0..MAX_CHAIN {
            let found = self.get(id)?;
            if !through(found.kind) {
                return Some(found);
            }
            id = found.size_or_type;
        }
        None
    }

    fn find_types(&mut self, types: Range<usize>) -> Result<(), BtfError> {
        let mut at = types.start;
        while at < types.end {
            let id = self.end_id();
            let available = types.end.saturating_sub(at);
            let truncated = |needed| BtfError::Truncated {
                item: "type",
                offset: at,
                needed,
                available,
            };
            let info = word(&self.data, at.saturating_add(4))
                .filter(|_| available >= TYPE)
                .ok_or(truncated(TYPE))?;
            let number = Kind::number(info);
            let kind = Kind::from_number(number).ok_or(BtfError::UnknownKind {
                id,
                offset: at,
                kind: number,
            })?;
            let length = TYPE.saturating_add(kind.extra_bytes(Kind::vlen(info)));
            if length > available {
                return Err(truncated(length));
            }
            if matches!(kind, Kind::Enum | Kind::Enum64) {
                self.enums.push(id);
            }
            self.starts.push(u32::try_from(at).unwrap_or(u32::MAX));
            at = at.saturating_add(length);
        }
        Ok(())
    }

    /// Names are entered from the last type to the first, so that a lookup meets the first one first.
    fn index_names(&mut self) -> Result<(), BtfError> {
        let mut names = NameIndex::with_types(self.starts.len());
        for (index, start) in self.starts.iter().enumerate().rev() {
            let index = u32::try_from(index).unwrap_or(u32::MAX);
            let id = self.first_id.saturating_add(index);
            let Some(found) = Type::decode(self, id, *start as usize) else {
                continue;
            };
            if found.name_offset == 0 || !found.kind.is_looked_up_by_name() {
                continue;
            }
            let name = self.string(found.name_offset).ok_or(BtfError::Name {
                id,
                offset: *start as usize,
                string: found.name_offset,
            })?;
            names.insert(name, index);
        }
        self.names = names;
        Ok(())
    }

    /// Numbers of this section's own types that may have this name (the caller compares).
    fn candidates(&self, name: &[u8]) -> impl Iterator<Item = u32> + '_ {
        self.names
            .candidates(name)
            .map(|index| self.first_id.saturating_add(index))
    }
}

/// Checks the header and returns where types and strings lie.
fn header(bytes: &[u8]) -> Result<(Range<usize>, Range<usize>), BtfError> {
    let Some(fixed) = bytes.first_chunk::<HEADER>() else {
        return Err(BtfError::Truncated {
            item: "header",
            offset: 0,
            needed: HEADER,
            available: bytes.len(),
        });
    };
    let [m0, m1, version, _flags, ..] = *fixed;
    match u16::from_le_bytes([m0, m1]) {
        0xeb9f => {}
        0x9feb => return Err(BtfError::BigEndian),
        found => return Err(BtfError::Magic { found }),
    }
    if version != 1 {
        return Err(BtfError::Version { found: version });
    }
    let field = |offset| word(bytes, offset).unwrap_or_default();
    let wrong = |field, value| BtfError::Header {
        field,
        value,
        available: bytes.len(),
    };

    let header_length = field(4);
    if (header_length as usize) < HEADER || header_length as usize > bytes.len() {
        return Err(wrong("hdr_len", header_length));
    }
    let range = |names: [&'static str; 2], offset: u32, length: u32| {
        let start = (header_length as usize).saturating_add(offset as usize);
        let end = start.saturating_add(length as usize);
        if start > bytes.len() {
            return Err(wrong(names[0], offset));
        }
        if end > bytes.len() {
            return Err(wrong(names[1], length));
        }
        Ok(start..end)
    };
    let types = range(["type_off", "type_len"], field(8), field(12))?;
    let strings = range(["str_off", "str_len"], field(16), field(20))?;
    Ok((types, strings))
}

fn word(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes
        .get(offset..)?
        .first_chunk()
        .map(|chunk| u32::from_le_bytes(*chunk))
}

//! Where a field lies.

use super::Btf;
use super::types::{Kind, Type};

/// Bytes of a pointer: BTF does not say, and only 64-bit kernels are read.
const POINTER: u32 = 8;
/// How deep anonymous members are searched, and arrays of arrays measured.
const MAX_DEPTH: u32 = 16;
/// How many members one query looks at; the kernel's largest struct has a few hundred.
const MAX_MEMBERS: u32 = 1 << 20;

/// A field within its outermost struct.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FieldAt {
    /// Offset in bytes; of a bit field: of the naturally aligned unit that holds it.
    pub byte_offset: u32,
    /// Size in bytes; of a bit field: of that unit. 0 for a flexible array.
    pub size: u32,
    /// Set for a bit field.
    pub bit: Option<BitField>,
}

/// The bits of a bit field within its unit, counted from the least significant one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitField {
    /// Number of the lowest bit.
    pub offset: u32,
    /// How many bits.
    pub width: u32,
}

/// A member as BTF describes it.
#[derive(Clone, Copy)]
struct Member {
    type_id: u32,
    bit_offset: u32,
    /// 0 if it is no bit field.
    bits: u32,
}

impl Btf {
    /// Where `path` (`"bi_iter.bi_sector"`) lies in a struct or union, or in a typedef of one.
    ///
    /// Each component is looked up in the struct reached so far and in its *anonymous* members; named
    /// members are entered only where the path names them. Of several structs with the same name the
    /// first one that has the field answers. Pointers and arrays are not followed.
    #[must_use]
    pub fn offset_of(&self, struct_name: &str, path: &str) -> Option<FieldAt> {
        self.member_of(struct_name, path)
            .and_then(|member| self.place(member))
    }

    /// The size in bytes of a struct, union, enum or typedef.
    #[must_use]
    pub fn size_of(&self, name: &str) -> Option<u32> {
        self.section
            .named(name)
            .find_map(|found| self.type_size(found))
    }

    /// The name of the struct or union that a field points to.
    #[must_use]
    pub fn pointee(&self, struct_name: &str, path: &str) -> Option<String> {
        let member = self.member_of(struct_name, path)?;
        let pointer = self
            .section
            .resolved(member.type_id)
            .filter(|found| found.kind == Kind::Pointer)?;
        let target = self.section.resolved(pointer.size_or_type)?;
        if !matches!(target.kind, Kind::Struct | Kind::Union | Kind::Forward) {
            return None;
        }
        let name = target.name().filter(|name| !name.is_empty())?;
        Some(String::from_utf8_lossy(name).into_owned())
    }

    fn member_of(&self, struct_name: &str, path: &str) -> Option<Member> {
        let mut budget = MAX_MEMBERS;
        self.section.named(struct_name).find_map(|found| {
            let outer = match found.kind {
                Kind::Typedef => self.section.resolved(found.size_or_type)?,
                _ => found,
            };
            self.walk(outer, path, &mut budget)
        })
    }

    fn walk(&self, outer: Type<'_>, path: &str, budget: &mut u32) -> Option<Member> {
        let mut within = outer;
        let mut base = 0u32;
        let mut components = path.split('.').peekable();
        while let Some(component) = components.next() {
            let mut member = self.find(within, component.as_bytes(), MAX_DEPTH, budget)?;
            member.bit_offset = member.bit_offset.checked_add(base)?;
            if components.peek().is_none() {
                return Some(member);
            }
            base = member.bit_offset;
            within = self.section.resolved(member.type_id)?;
        }
        None
    }

    /// Looks for a member by name, then within anonymous members. `bit_offset` counts from `within`.
    fn find(&self, within: Type<'_>, name: &[u8], depth: u32, budget: &mut u32) -> Option<Member> {
        if !matches!(within.kind, Kind::Struct | Kind::Union) || name.is_empty() {
            return None;
        }
        for [name_offset, type_id, offset] in within.entries::<3>() {
            *budget = budget.checked_sub(1)?;
            let (bit_offset, bits) = match within.kind_flag {
                true => (offset & 0x00ff_ffff, offset >> 24),
                false => (offset, 0),
            };
            let found = match within.string(name_offset) {
                Some(found) if found == name => Some(Member {
                    type_id,
                    bit_offset: 0,
                    bits,
                }),
                Some([]) => self
                    .section
                    .resolved(type_id)
                    .filter(|_| depth > 0)
                    .and_then(|inner| self.find(inner, name, depth.saturating_sub(1), budget)),
                _ => None,
            };
            if let Some(mut member) = found {
                member.bit_offset = member.bit_offset.checked_add(bit_offset)?;
                return Some(member);
            }
        }
        None
    }

    fn place(&self, member: Member) -> Option<FieldAt> {
        let size = self.type_size(self.section.resolved(member.type_id)?)?;
        if member.bits != 0 {
            return bit_field(member, size);
        }
        // An odd bit offset without a bit-field size is an encoding that compilers gave up before 5.15.
        (member.bit_offset.is_multiple_of(8)).then_some(FieldAt {
            byte_offset: member.bit_offset / 8,
            size,
            bit: None,
        })
    }

    fn type_size<'a>(&'a self, mut found: Type<'a>) -> Option<u32> {
        let mut count = 1u32;
        for _ in 0..MAX_DEPTH {
            let size = match found.kind {
                Kind::Int
                | Kind::Float
                | Kind::Struct
                | Kind::Union
                | Kind::Enum
                | Kind::Enum64 => found.size_or_type,
                Kind::Pointer => POINTER,
                Kind::Array => {
                    count = count.checked_mul(found.word(2)?)?;
                    found = self.section.resolved(found.word(0)?)?;
                    continue;
                }
                Kind::Typedef => {
                    found = self.section.resolved(found.size_or_type)?;
                    continue;
                }
                _ => return None,
            };
            return count.checked_mul(size);
        }
        None
    }
}

/// The smallest aligned unit, of the declared type's size or larger, that holds all the bits.
fn bit_field(member: Member, declared_size: u32) -> Option<FieldAt> {
    let end = member.bit_offset.checked_add(member.bits)?;
    let mut size = declared_size;
    while matches!(size, 1 | 2 | 4 | 8) {
        let unit = size.checked_mul(8)?;
        let start = member.bit_offset.checked_div(unit)?.checked_mul(unit)?;
        if end <= start.checked_add(unit)? {
            let offset = member.bit_offset.checked_sub(start)?;
            let bit = Some(BitField {
                offset,
                width: member.bits,
            });
            return Some(FieldAt {
                byte_offset: start / 8,
                size,
                bit,
            });
        }
        size = size.checked_mul(2)?;
    }
    None
}

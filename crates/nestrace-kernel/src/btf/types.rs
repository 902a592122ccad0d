//! `struct btf_type` and what follows it, kind by kind (`include/uapi/linux/btf.h`).

use super::section::Section;

macro_rules! kinds {
    ($($name:ident = $number:literal, $fixed:literal, $each:literal;)+) => {
        /// The kinds of Linux 6.18.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(super) enum Kind { $($name,)+ }

        impl Kind {
            pub(super) fn from_number(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }

            /// Bytes after the type's own twelve.
            pub(super) fn extra_bytes(self, vlen: u16) -> usize {
                let (fixed, each): (usize, usize) = match self { $(Self::$name => ($fixed, $each),)+ };
                each.saturating_mul(usize::from(vlen)).saturating_add(fixed)
            }
        }
    };
}

// Name = number, fixed bytes that follow, bytes that follow for each of `vlen`.
kinds! {
    Int = 1, 4, 0;
    Pointer = 2, 0, 0;
    Array = 3, 12, 0;
    Struct = 4, 0, 12;
    Union = 5, 0, 12;
    Enum = 6, 0, 8;
    Forward = 7, 0, 0;
    Typedef = 8, 0, 0;
    Volatile = 9, 0, 0;
    Const = 10, 0, 0;
    Restrict = 11, 0, 0;
    Func = 12, 0, 0;
    FuncProto = 13, 0, 8;
    Variable = 14, 4, 0;
    DataSection = 15, 0, 12;
    Float = 16, 0, 0;
    DeclTag = 17, 4, 0;
    TypeTag = 18, 0, 0;
    Enum64 = 19, 0, 12;
}

impl Kind {
    /// `info` bits 24–28.
    pub(super) fn number(info: u32) -> u8 {
        info.to_le_bytes()[3] & 0x1f
    }

    /// `info` bits 0–15: members, enumerators or parameters.
    pub(super) fn vlen(info: u32) -> u16 {
        let [low, high, ..] = info.to_le_bytes();
        u16::from_le_bytes([low, high])
    }

    /// Forward declarations are left out: they would hide the definition.
    pub(super) fn is_looked_up_by_name(self) -> bool {
        matches!(
            self,
            Self::Struct | Self::Union | Self::Enum | Self::Enum64 | Self::Typedef | Self::Func
        )
    }

    pub(super) fn is_modifier(self) -> bool {
        matches!(
            self,
            Self::Volatile | Self::Const | Self::Restrict | Self::TypeTag
        )
    }
}

/// One decoded type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Type<'a> {
    pub(super) id: u32,
    pub(super) kind: Kind,
    pub(super) name_offset: u32,
    /// Struct, union: members carry bit-field sizes. Enum: values are signed.
    pub(super) kind_flag: bool,
    pub(super) vlen: u16,
    /// The size in bytes, or the number of the type that this one refers to.
    pub(super) size_or_type: u32,
    section: &'a Section,
    /// Where what follows the twelve bytes begins.
    body: usize,
}

impl<'a> Type<'a> {
    pub(super) fn decode(section: &'a Section, id: u32, start: usize) -> Option<Self> {
        let info = section.word(start.checked_add(4)?)?;
        Some(Self {
            id,
            kind: Kind::from_number(Kind::number(info))?,
            name_offset: section.word(start)?,
            kind_flag: info >> 31 == 1,
            vlen: Kind::vlen(info),
            size_or_type: section.word(start.checked_add(8)?)?,
            section,
            body: start.checked_add(12)?,
        })
    }

    /// Word `index` of what follows the type.
    pub(super) fn word(&self, index: usize) -> Option<u32> {
        self.section
            .word(self.body.checked_add(index.checked_mul(4)?)?)
    }

    /// Entries of `N` words: members, enumerators, parameters.
    pub(super) fn entries<const N: usize>(self) -> impl Iterator<Item = [u32; N]> + 'a {
        (0..usize::from(self.vlen)).map_while(move |entry| {
            let first = entry.checked_mul(N)?;
            let mut words = [0; N];
            for (index, word) in words.iter_mut().enumerate() {
                *word = self.word(first.checked_add(index)?)?;
            }
            Some(words)
        })
    }

    pub(super) fn string(&self, offset: u32) -> Option<&'a [u8]> {
        self.section.string(offset)
    }

    pub(super) fn name(&self) -> Option<&'a [u8]> {
        self.string(self.name_offset)
    }
}

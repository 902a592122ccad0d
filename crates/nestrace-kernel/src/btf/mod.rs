//! A reader for BTF, the kernel's description of its own types.
//!
//! It answers what the collector asks (where is a field, what are a tracepoint's arguments, which
//! value has an enumerator) and nothing else. It covers every kind up to Linux 6.18, little endian,
//! 64-bit kernels. Ours, because aya-obj keeps its BTF members private and btf-rs is LGPL.
//!
//! The bytes may be hostile (a module's BTF, a file handed over by a user): offsets are checked,
//! chains of types are bounded, and a query over nonsense is `None`.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used
)]

mod enums;
mod error;
mod fields;
mod functions;
mod names;
mod section;
mod types;

use std::sync::Arc;

pub use error::BtfError;
pub use fields::{BitField, FieldAt};
pub use functions::Arg;

use section::Section;

/// The types of a kernel, or of one of its modules together with those of the kernel.
///
/// Cloning is cheap: the bytes are shared.
#[derive(Clone, Debug)]
pub struct Btf {
    section: Arc<Section>,
}

impl Btf {
    /// Reads `/sys/kernel/btf/vmlinux`, or a `.BTF` section of vmlinux.
    ///
    /// # Errors
    /// A [`BtfError`] that names the item and the offset where the bytes stop making sense.
    pub fn parse(bytes: &[u8]) -> Result<Self, BtfError> {
        Section::parse(bytes, None).map(|section| Self {
            section: Arc::new(section),
        })
    }

    /// Reads `/sys/kernel/btf/MODULE`, or the `.BTF` section of a `.ko`: its numbering of types and
    /// strings continues that of `base`. Queries see the module's types first, then those of `base`.
    ///
    /// # Errors
    /// As [`Btf::parse`].
    pub fn parse_split(bytes: &[u8], base: &Self) -> Result<Self, BtfError> {
        let base = Some(Arc::clone(&base.section));
        Section::parse(bytes, base).map(|section| Self {
            section: Arc::new(section),
        })
    }

    /// The number of types, `void` and those of the base included.
    #[must_use]
    pub fn n_types(&self) -> u32 {
        self.section.end_id()
    }

    /// Whether there is a struct, union, enum or typedef of this name.
    #[must_use]
    pub fn has_type(&self, name: &str) -> bool {
        self.section
            .named(name)
            .any(|found| found.kind != types::Kind::Func)
    }

    /// The value of an enumerator of the enum `enum_name`, or of any enum (most are anonymous) where
    /// `enum_name` is empty. Values of unsigned 64-bit enums keep their bits.
    #[must_use]
    pub fn enum_value(&self, enum_name: &str, enumerator: &str) -> Option<i64> {
        enums::enum_value(&self.section, enum_name, enumerator)
    }
}

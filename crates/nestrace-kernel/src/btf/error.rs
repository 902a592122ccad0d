//! What can be wrong with BTF.

use thiserror::Error;

/// Why bytes are not BTF that can be read. Offsets count from the first byte handed in.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BtfError {
    /// The bytes end within an item.
    #[error("read BTF {item} at offset {offset}: {needed} bytes needed, {available} left")]
    Truncated {
        /// What was being read.
        item: &'static str,
        /// Where it begins.
        offset: usize,
        /// Its length in bytes.
        needed: usize,
        /// Bytes left from `offset` on.
        available: usize,
    },
    /// The magic number is not that of BTF.
    #[error("read BTF magic at offset 0: found {found:#06x}, not 0xeb9f")]
    Magic {
        /// The number found.
        found: u16,
    },
    /// BTF of a big-endian kernel.
    #[error("read BTF magic at offset 0: big-endian BTF is not supported")]
    BigEndian,
    /// A version that this reader does not know.
    #[error("read BTF version at offset 2: found {found}, only 1 is known")]
    Version {
        /// The version found.
        found: u8,
    },
    /// A header field that cannot be true.
    #[error("read BTF header field {field}: {value} is out of range for {available} bytes")]
    Header {
        /// Name of the field in `struct btf_header`.
        field: &'static str,
        /// Its value.
        value: u32,
        /// Length of the input in bytes.
        available: usize,
    },
    /// A kind of type that this reader does not know; its length, and so all that follows, is unknown.
    #[error("read BTF type {id} at offset {offset}: unknown kind {kind}")]
    UnknownKind {
        /// Number of the type.
        id: u32,
        /// Where it begins.
        offset: usize,
        /// Its kind.
        kind: u8,
    },
    /// A name outside the strings, without an end, or longer than any that a kernel accepts.
    #[error(
        "read name of BTF type {id} at offset {offset}: string {string} is out of range, unterminated or too long"
    )]
    Name {
        /// Number of the type.
        id: u32,
        /// Where the type begins.
        offset: usize,
        /// Offset of the name in the strings.
        string: u32,
    },
    /// More bytes than any kernel's BTF has.
    #[error("read BTF: {length} bytes exceed the limit of {limit}")]
    TooLarge {
        /// Length of the input in bytes.
        length: usize,
        /// The limit in bytes.
        limit: usize,
    },
}

//! What a request asks for, in terms that the guest and QEMU have in common.

/// The operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Operation {
    /// Data from the disk.
    Read,
    /// Data to the disk.
    Write,
    /// Zeroes to the disk, which are not sent.
    WriteZeroes,
    /// The disk may forget.
    Discard,
    /// What was written has to last.
    Flush,
}

impl Operation {
    /// How an I/O trace names it.
    pub const fn in_stories(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write | Self::WriteZeroes => "write",
            Self::Discard => "discard",
            Self::Flush => "flush",
        }
    }
}

/// The operation and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// What.
    pub operation: Operation,
    /// First byte on the disk; 0 of a flush.
    pub offset: u64,
    /// Bytes; 0 of a flush.
    pub bytes: u64,
}

//! What an I/O does, as far as latencies are distinguished by it.

use nestrace_abi::flags;

/// The operations that latencies are distinguished by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    Read,
    Write,
    Discard,
    /// Flushes, zone operations, driver commands: no data I/O.
    Other,
}

impl Operation {
    /// As the kernel's statistics do it: only discards are discards; write-zeroes and secure erase
    /// count as writes (`op_stat_group`, `blk_types.h`).
    #[inline]
    pub(crate) const fn of(op: u32) -> Self {
        match op {
            flags::OP_READ => Self::Read,
            flags::OP_WRITE | flags::OP_WRITE_ZEROES | flags::OP_SECURE_ERASE => Self::Write,
            flags::OP_DISCARD => Self::Discard,
            _ => Self::Other,
        }
    }

    /// Those that move or discard data.
    pub(crate) const WITH_DATA: [Self; 3] = [Self::Read, Self::Write, Self::Discard];

    /// The place among [`Self::WITH_DATA`].
    #[inline]
    pub(crate) const fn place(self) -> Option<usize> {
        match self {
            Self::Read => Some(0),
            Self::Write => Some(1),
            Self::Discard => Some(2),
            Self::Other => None,
        }
    }
}

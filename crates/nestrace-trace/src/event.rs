//! One stored event: a row of `host.arrows`. What the columns hold for each kind is written at
//! [`nestrace_abi::Kind`]. Where that depends on the kind, read them by the names in `meaning`.

mod meaning;

use nestrace_abi::{Kind, Source};

/// One row of a recording. Columns that a kind does not use hold 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Event {
    /// `CLOCK_MONOTONIC` of the recording machine, nanoseconds.
    pub ts_ns: u64,
    /// Number of a [`Kind`]; see [`Event::kind`].
    pub kind: u8,
    /// Small extra fact of the kind.
    pub sub: u8,
    /// Processor.
    pub cpu: u16,
    /// Thread id; 0 in the idle task.
    pub tid: u32,
    /// Device (`MAJOR << 20 | MINOR`), or the guest's index in the manifest for file and QEMU events.
    pub dev: u32,
    /// The identity that the event is about.
    pub object: u64,
    /// A second identity.
    pub related: u64,
    /// Byte offset on the device or in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// Operation and flags: [`nestrace_abi::flags`].
    pub flags: u32,
    /// Inode of the owner.
    pub inode: u64,
    /// Byte offset in the owner.
    pub file_offset: u64,
    /// Device of the owner's super block.
    pub owner_dev: u32,
    /// The kernel's kiocb.
    pub iocb: u64,
    /// What the kiocb was made from.
    pub origin: u64,
    /// Index into [`nestrace_abi::end_io::SYMBOLS`].
    pub end_io: u8,
    /// cgroup id.
    pub cgroup: u64,
    /// Priority, status or errno, by kind.
    pub aux: u32,
}

impl Event {
    /// Sector −1, in bytes: what the kernel gives a request that has no place on the device, a flush or a
    /// driver's own command (virtio-blk's question for a disk's serial number is one).
    pub const NOWHERE: u64 = u64::MAX << 9;

    /// An event of that kind, whose other columns hold 0.
    #[must_use]
    pub fn at(ts_ns: u64, kind: Kind) -> Self {
        Self {
            ts_ns,
            kind: kind as u8,
            ..Self::default()
        }
    }

    /// A mark that an unknown number of events of a source is missing from here on: what a reader puts
    /// in the place of bytes that it cannot read. A recorder's own [`Kind::Loss`] has a total instead.
    #[must_use]
    pub fn gap(ts_ns: u64, source: Source) -> Self {
        Self {
            ts_ns,
            kind: Kind::Loss as u8,
            sub: source as u8,
            related: 1,
            ..Self::default()
        }
    }

    /// Whether it is a mark of that kind.
    #[must_use]
    pub const fn is_gap(&self) -> bool {
        self.kind == Kind::Loss as u8 && self.related != 0
    }

    /// The kind, or `None` for one that a newer release added (such events are skipped).
    #[must_use]
    #[inline]
    pub const fn kind(&self) -> Option<Kind> {
        Kind::from_u8(self.kind)
    }

    /// The operation bits of `flags`: one of `flags::OP_*`.
    #[must_use]
    #[inline]
    pub const fn op(&self) -> u32 {
        self.flags & nestrace_abi::flags::OP_MASK
    }
}

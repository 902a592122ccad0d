//! Numbers of what the topology holds: a type for each list, where a function takes numbers of two.

/// A guest: its place among the topology's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GuestId(pub u32);

/// A disk of any guest: its place in `Images::disks`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DiskId(pub u32);

/// A disk of one guest: its place among that guest's in the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct GuestDiskId(pub u32);

/// An image: its place in `Images::images`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ImageId(pub u32);

/// A block device of the host, `MAJOR << 20 | MINOR`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct DevNo(pub u32);

//! Requests, their times and their completions.

use serde::{Deserialize, Serialize};

/// Bytes of a sector.
pub const SECTOR_BYTES: u64 = 512;

/// Nanoseconds since the disk was switched on.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct DiskNs(pub u64);

impl DiskNs {
    /// After everything else.
    pub const MAX: Self = Self(u64::MAX);

    /// This time and `ns` more.
    #[must_use]
    pub fn plus(self, ns: u64) -> Self {
        Self(self.0.saturating_add(ns))
    }

    /// Nanoseconds since an earlier time; 0 if that is later.
    #[must_use]
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// Data from the disk.
    Read,
    /// Data to the disk; its cache may keep it.
    Write,
    /// Everything that was written goes to the medium.
    Flush,
    /// Data that is not needed any more.
    Discard,
}

/// A request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it.
    pub id: u64,
    /// What it asks for.
    pub operation: Operation,
    /// Where, in bytes; rounded down to a sector. What lies beyond the end is left out.
    pub offset_bytes: u64,
    /// How much, in bytes; rounded up to sectors.
    pub length_bytes: u64,
}

/// A request that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Completion {
    /// When.
    pub at: DiskNs,
    /// The request's.
    pub id: u64,
}

/// Sectors of a request: the first, and the one after its last. Empty only where the disk has none.
pub(crate) fn sectors(request: &Request, disk_sectors: u64) -> (u64, u64) {
    let first = (request.offset_bytes / SECTOR_BYTES).min(disk_sectors.saturating_sub(1));
    let end = request.offset_bytes.saturating_add(request.length_bytes);
    let end = end.div_ceil(SECTOR_BYTES);
    (first, end.clamp(first + 1, disk_sectors.max(first + 1)))
}

//! `image-maps.json`: where an image with a format of its own (qcow2) keeps the guest's data.
//!
//! A map is what the image's own tables said when they were read, once before and once after the
//! recording. QEMU holds new table entries back until the guest flushes, so a map can lack the
//! newest clusters; what it has is true for its time.

use serde::{Deserialize, Serialize};

/// Extents of one map beyond this are left out, and [`ImageMap::partial`] says so.
pub const MAX_EXTENTS: usize = 1 << 20;
/// The file is never longer.
pub const MAX_IMAGE_MAPS_BYTES: u64 = 256 << 20;

/// Where one image keeps the guest's data.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct ImageMap {
    /// Index into [`crate::manifest::Topology::guests`].
    pub guest: u32,
    /// Index into [`crate::manifest::Guest::disks`].
    pub disk: u32,
    /// Index into [`crate::manifest::Disk::images`]: the file that the extents lie in. With an external
    /// data file, that file.
    pub image: u32,
    /// Host's `CLOCK_MONOTONIC` at which the tables were read, nanoseconds.
    pub mono_ns: u64,
    /// Bytes of a cluster.
    pub cluster_bytes: u64,
    /// Bytes that the guest sees.
    pub virtual_size: u64,
    /// Data, ascending by the guest's offset; neighbours that touch in both are one.
    pub extents: Vec<Extent>,
    /// Compressed clusters, ascending by the guest's offset.
    pub compressed: Vec<CompressedCluster>,
    /// Where the image keeps its own tables (header, L1 and L2, reference counts, snapshots), ascending; neighbours are one.
    /// Whatever is in neither is unknown: the state of a stopped machine, data that is in no table yet. `None` where that
    /// was not looked for, as in older recordings.
    pub tables: Option<Vec<TableRange>>,
    /// Why something is missing from it; `None` if it is whole.
    pub partial: Option<String>,
}

/// A part of the file that holds the image's own tables. Stored as `[file_offset, bytes]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(from = "(u64, u64)", into = "(u64, u64)")]
pub struct TableRange {
    /// Byte offset in the file.
    pub file_offset: u64,
    /// Length.
    pub bytes: u64,
}

impl TableRange {
    /// All of them, ascending; what touches or overlaps is one.
    #[must_use]
    pub fn joined<'r>(ranges: impl IntoIterator<Item = &'r Self>) -> Vec<Self> {
        let mut ranges: Vec<Self> = ranges.into_iter().copied().collect();
        ranges.sort_unstable();
        let mut joined: Vec<Self> = Vec::new();
        for range in ranges {
            let end = range.file_offset.saturating_add(range.bytes);
            match joined.last_mut() {
                Some(last) if range.file_offset <= last.file_offset.saturating_add(last.bytes) => {
                    last.bytes = last.bytes.max(end.saturating_sub(last.file_offset));
                }
                _ => joined.push(range),
            }
        }
        joined
    }
}

impl From<(u64, u64)> for TableRange {
    fn from((file_offset, bytes): (u64, u64)) -> Self {
        Self { file_offset, bytes }
    }
}

impl From<TableRange> for (u64, u64) {
    fn from(range: TableRange) -> Self {
        (range.file_offset, range.bytes)
    }
}

/// A range of the guest's disk and where it lies in the file. Stored as `[guest_offset, bytes, file_offset]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u64)", into = "(u64, u64, u64)")]
pub struct Extent {
    /// Byte offset on the guest's disk.
    pub guest_offset: u64,
    /// Length in both.
    pub bytes: u64,
    /// Byte offset in the file.
    pub file_offset: u64,
}

/// A cluster of the guest's disk that is stored compressed. Stored as
/// `[guest_offset, file_offset, file_bytes]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "(u64, u64, u64)", into = "(u64, u64, u64)")]
pub struct CompressedCluster {
    /// Byte offset on the guest's disk.
    pub guest_offset: u64,
    /// Byte offset in the file, any byte.
    pub file_offset: u64,
    /// Bytes in the file, to the end of the last sector that it touches.
    pub file_bytes: u64,
}

impl From<(u64, u64, u64)> for Extent {
    fn from((guest_offset, bytes, file_offset): (u64, u64, u64)) -> Self {
        Self {
            guest_offset,
            bytes,
            file_offset,
        }
    }
}

impl From<Extent> for (u64, u64, u64) {
    fn from(extent: Extent) -> Self {
        (extent.guest_offset, extent.bytes, extent.file_offset)
    }
}

impl From<(u64, u64, u64)> for CompressedCluster {
    fn from((guest_offset, file_offset, file_bytes): (u64, u64, u64)) -> Self {
        Self {
            guest_offset,
            file_offset,
            file_bytes,
        }
    }
}

impl From<CompressedCluster> for (u64, u64, u64) {
    fn from(cluster: CompressedCluster) -> Self {
        (
            cluster.guest_offset,
            cluster.file_offset,
            cluster.file_bytes,
        )
    }
}

/// Reads the file.
///
/// # Errors
/// What the parser says.
pub fn from_slice(bytes: &[u8]) -> Result<Vec<ImageMap>, serde_json::Error> {
    serde_json::from_slice(bytes)
}

/// The bytes of the file.
#[must_use]
pub fn to_json(maps: &[ImageMap]) -> Vec<u8> {
    // Only maps with keys that are no strings can fail, and there are none.
    serde_json::to_vec(maps).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_comes_back_from_its_bytes() {
        let maps = vec![ImageMap {
            image: 1,
            extents: vec![Extent::from((0, 65536, 327_680))],
            compressed: vec![CompressedCluster::from((65536, 400_001, 511))],
            tables: Some(vec![TableRange::from((0, 65536))]),
            partial: Some("x".to_owned()),
            ..ImageMap::default()
        }];
        let json = to_json(&maps);
        assert!(String::from_utf8_lossy(&json).contains("[0,65536,327680]"));
        assert_eq!(from_slice(&json).ok(), Some(maps));
        assert!(from_slice(b"[{\"extents\":[[1,2]]}]").is_err());
    }
}

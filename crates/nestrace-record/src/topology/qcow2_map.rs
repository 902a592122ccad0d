//! Where a qcow2 image keeps the guest's data: its L1 and L2 tables, read in the order of the guest's
//! offsets.
//!
//! Pure, for hostile input: bytes come through a closure, every length is bounded by the format's own
//! limits, and what cannot be read makes a map partial instead of wrong.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::io;

use nestrace_trace::image_map::{CompressedCluster, Extent, ImageMap, MAX_EXTENTS, TableRange};

/// Bytes of the header that are looked at.
const HEADER: usize = 104;
/// QEMU's own limit of an L1 table (`QCOW_MAX_L1_SIZE`).
const MAX_L1_BYTES: u64 = 32 << 20;
/// QEMU's own limit of a table of reference counts (`QCOW_MAX_REFTABLE_SIZE`).
const MAX_REFERENCE_TABLE_BYTES: u64 = 8 << 20;
/// QEMU's own limits of the table of snapshots (`QCOW_MAX_SNAPSHOTS`, and bytes of one entry at most).
const MAX_SNAPSHOTS: u64 = 65_536;
const MAX_SNAPSHOT_BYTES: u64 = 1 << 10;
/// Tables are read up to this: enough for 2 TiB at the default cluster size.
const MAX_TABLE_BYTES: u64 = 256 << 20;
/// Entries of the L1 table that are read at once.
const L1_CHUNK: usize = 8 << 10;

const INCOMPATIBLE_DATA_FILE: u64 = 1 << 2;
const INCOMPATIBLE_EXTENDED_L2: u64 = 1 << 4;
/// Bits 9 to 55 of an L1 or L2 entry.
const OFFSET_MASK: u64 = 0x00ff_ffff_ffff_fe00;
const COMPRESSED: u64 = 1 << 62;
const COPIED: u64 = 1 << 63;

/// Why there is no map.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The header could not be read.
    #[error("read the qcow2 header")]
    Read(#[source] io::Error),
    /// It is not qcow2, or of a version before 2.
    #[error("find a qcow2 header of version 2 or 3")]
    NotQcow2,
    /// A field is impossible.
    #[error("use {field} of the qcow2 header: {value}")]
    Invalid {
        /// Which field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
}

/// What of the header the tables need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Geometry {
    cluster_bits: u32,
    virtual_size: u64,
    l1_entries: u64,
    l1_offset: u64,
    /// Offset and bytes of the table of reference counts.
    reference_table: (u64, u64),
    /// Offset and number of snapshots.
    snapshots: (u64, u64),
    extended: bool,
    data_file: bool,
}

impl Geometry {
    fn of(header: &[u8; HEADER]) -> Result<Self, MapError> {
        let be32 = |at: usize| {
            header
                .get(at..)
                .and_then(<[u8]>::first_chunk)
                .map_or(0, |b| u32::from_be_bytes(*b))
        };
        let be64 = |at: usize| {
            header
                .get(at..)
                .and_then(<[u8]>::first_chunk)
                .map_or(0, |b| u64::from_be_bytes(*b))
        };
        let version = be32(4);
        if !header.starts_with(b"QFI\xfb") || !(2..=3).contains(&version) {
            return Err(MapError::NotQcow2);
        }
        let incompatible = if version >= 3 { be64(72) } else { 0 };
        let mut geometry = Self {
            cluster_bits: be32(20),
            virtual_size: be64(24),
            l1_entries: u64::from(be32(36)),
            l1_offset: be64(40),
            reference_table: (be64(48), u64::from(be32(56))),
            snapshots: (be64(64), u64::from(be32(60))),
            extended: incompatible & INCOMPATIBLE_EXTENDED_L2 != 0,
            data_file: incompatible & INCOMPATIBLE_DATA_FILE != 0,
        };
        let invalid = |field, value| Err(MapError::Invalid { field, value });
        if !(9..=21).contains(&geometry.cluster_bits) {
            return invalid("cluster size", geometry.cluster_bits.into());
        }
        if geometry.l1_entries * 8 > MAX_L1_BYTES {
            return invalid("l1 size", geometry.l1_entries);
        }
        if geometry.virtual_size > i64::MAX as u64 {
            return invalid("size", geometry.virtual_size);
        }
        // The header has it in clusters.
        let (_, clusters) = &mut geometry.reference_table;
        *clusters = (*clusters << geometry.cluster_bits).min(MAX_REFERENCE_TABLE_BYTES);
        Ok(geometry)
    }

    const fn cluster_bytes(self) -> u64 {
        1 << self.cluster_bits
    }

    const fn entry_bytes(self) -> usize {
        if self.extended { 16 } else { 8 }
    }

    /// Entries of one L2 table, which fills a cluster.
    const fn l2_entries(self) -> u64 {
        self.cluster_bytes() / self.entry_bytes() as u64
    }

    /// Offset and stored length of a compressed cluster.
    fn compressed(self, entry: u64) -> (u64, u64) {
        let shift = 62 - (self.cluster_bits - 8);
        let offset = entry & ((1 << shift) - 1);
        let more_sectors = (entry & (COMPRESSED - 1)) >> shift;
        (offset, (more_sectors + 1) * 512 - (offset & 511))
    }
}

/// Reads the map of an image. `read_at(offset, buffer)` fills the buffer or fails; a failure past the
/// header (a deadline, say) ends the map and is its [`ImageMap::partial`]. Guest, disk, image and time
/// are left for the caller; [`Mapped::data_file`] says that the extents lie in the external data file.
/// With more than `max_extents` ([`MAX_EXTENTS`] at most) it is partial too.
///
/// # Errors
/// [`MapError`] where the header is not understood.
pub fn read(
    mut read_at: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
    max_extents: usize,
) -> Result<Mapped, MapError> {
    let mut header = [0; HEADER];
    // A version 2 header ends at 72 and what follows is extensions or the rest of the cluster.
    read_at(0, &mut header).map_err(MapError::Read)?;
    let geometry = Geometry::of(&header)?;
    let mut walk = Walk {
        geometry,
        read_at,
        max_extents: max_extents.min(MAX_EXTENTS),
        table_bytes: 0,
        tables: Vec::new(),
        map: ImageMap {
            cluster_bytes: geometry.cluster_bytes(),
            virtual_size: geometry.virtual_size,
            ..ImageMap::default()
        },
    };
    walk.fixed_tables();
    if let Err(reason) = walk.l1().and_then(|()| walk.reference_blocks()) {
        walk.map.partial = Some(reason);
    }
    // With an external data file the map is of that, which has no tables.
    let tables = if geometry.data_file {
        &[]
    } else {
        walk.tables.as_slice()
    };
    walk.map.tables = Some(TableRange::joined(tables));
    Ok(Mapped {
        map: walk.map,
        data_file: geometry.data_file,
    })
}

/// A map that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapped {
    /// The map.
    pub map: ImageMap,
    /// The image has an external data file, and extents are offsets in that.
    pub data_file: bool,
}

struct Walk<F> {
    geometry: Geometry,
    read_at: F,
    max_extents: usize,
    table_bytes: u64,
    tables: Vec<TableRange>,
    map: ImageMap,
}

impl<F: FnMut(u64, &mut [u8]) -> io::Result<()>> Walk<F> {
    fn l1(&mut self) -> Result<(), String> {
        let Geometry {
            l1_entries,
            l1_offset,
            ..
        } = self.geometry;
        let mut chunk = vec![0; L1_CHUNK * 8];
        let mut table = vec![0; usize::try_from(self.geometry.cluster_bytes()).unwrap_or(0)];
        let mut first = 0;
        while first < l1_entries {
            let n = (l1_entries - first).min(L1_CHUNK as u64);
            let bytes = usize::try_from(n * 8).unwrap_or(0);
            let at = l1_offset
                .checked_add(first * 8)
                .ok_or("the L1 table lies beyond any file")?;
            let entries = chunk.get_mut(..bytes).unwrap_or_default();
            self.table(at, entries)?;
            for (entry, index) in entries.as_chunks::<8>().0.iter().zip(first..) {
                self.l2(u64::from_be_bytes(*entry) & OFFSET_MASK, index, &mut table)?;
            }
            first += n;
        }
        Ok(())
    }

    /// A part of the file, in whole clusters, is the image's own.
    fn is_table(&mut self, at: u64, bytes: u64) {
        let cluster = self.geometry.cluster_bytes();
        if at.is_multiple_of(cluster) && bytes > 0 {
            self.tables.push(TableRange {
                file_offset: at,
                bytes: bytes.next_multiple_of(cluster),
            });
        }
    }

    /// The tables that the header names.
    fn fixed_tables(&mut self) {
        let Geometry {
            l1_entries,
            l1_offset,
            reference_table: (references, reference_bytes),
            snapshots: (snapshots, n_snapshots),
            ..
        } = self.geometry;
        self.is_table(0, 1);
        self.is_table(l1_offset, l1_entries * 8);
        self.is_table(references, reference_bytes);
        if snapshots != 0 {
            let n_snapshots = n_snapshots.min(MAX_SNAPSHOTS);
            self.is_table(snapshots, n_snapshots * MAX_SNAPSHOT_BYTES);
        }
    }

    /// The blocks of reference counts, each a cluster.
    fn reference_blocks(&mut self) -> Result<(), String> {
        let (at, bytes) = self.geometry.reference_table;
        let mut chunk = vec![0; L1_CHUNK * 8];
        let mut done = 0;
        while done < bytes {
            let n = (bytes - done).min(chunk.len() as u64);
            let at = at
                .checked_add(done)
                .ok_or("the table of reference counts lies beyond any file")?;
            let entries = chunk
                .get_mut(..usize::try_from(n).unwrap_or(0))
                .unwrap_or_default();
            self.table(at, entries)?;
            for entry in entries.as_chunks::<8>().0 {
                let block = u64::from_be_bytes(*entry) & OFFSET_MASK;
                if block != 0 {
                    self.is_table(block, 1);
                }
            }
            done += n;
        }
        Ok(())
    }

    fn table(&mut self, at: u64, into: &mut [u8]) -> Result<(), String> {
        self.table_bytes += into.len() as u64;
        if self.table_bytes > MAX_TABLE_BYTES {
            return Err(format!(
                "its tables are larger than {} MiB",
                MAX_TABLE_BYTES >> 20
            ));
        }
        (self.read_at)(at, into)
            .map_err(|error| format!("the table at {at} cannot be read: {error}"))
    }

    fn l2(&mut self, at: u64, l1_index: u64, table: &mut [u8]) -> Result<(), String> {
        let cluster = self.geometry.cluster_bytes();
        // Below 2^63: the L1 table has at most 2^22 entries of at most 2^18 clusters of 2^21 bytes.
        let base = l1_index * self.geometry.l2_entries() * cluster;
        if at != 0 {
            self.is_table(at, 1);
        }
        // What lies behind the disk's end is the state of a stopped machine.
        if at == 0 || base >= self.geometry.virtual_size {
            return Ok(());
        }
        self.table(at, table)?;
        for (entry, index) in table.chunks_exact(self.geometry.entry_bytes()).zip(0u64..) {
            let guest_offset = base + index * cluster;
            if guest_offset >= self.geometry.virtual_size {
                break;
            }
            let entry = entry.first_chunk().map_or(0, |b| u64::from_be_bytes(*b));
            self.entry(guest_offset, entry)?;
        }
        Ok(())
    }

    fn entry(&mut self, guest_offset: u64, entry: u64) -> Result<(), String> {
        let max = self.max_extents;
        let full = || Err(format!("it has more than {max} extents"));
        if entry & COMPRESSED != 0 {
            if self.map.compressed.len() >= max {
                return full();
            }
            let (file_offset, file_bytes) = self.geometry.compressed(entry);
            self.map.compressed.push(CompressedCluster {
                guest_offset,
                file_offset,
                file_bytes,
            });
            return Ok(());
        }
        let file_offset = entry & OFFSET_MASK;
        // Only an external data file can hold data at its very beginning.
        let at_zero = self.geometry.data_file && entry & COPIED != 0;
        if file_offset == 0 && !at_zero {
            return Ok(());
        }
        let cluster = self.geometry.cluster_bytes();
        let bytes = cluster.min(self.geometry.virtual_size - guest_offset);
        if let Some(last) = self.map.extents.last_mut()
            && last.guest_offset + last.bytes == guest_offset
            && last.file_offset + last.bytes == file_offset
        {
            last.bytes += bytes;
            return Ok(());
        }
        if self.map.extents.len() >= max {
            return full();
        }
        self.map.extents.push(Extent {
            guest_offset,
            bytes,
            file_offset,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;

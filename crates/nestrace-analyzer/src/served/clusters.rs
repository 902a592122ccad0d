//! Where an image keeps which part of the guest's disk.
//!
//! Of a raw image every byte lies where the guest has it. A qcow2 image is described by maps that
//! were read before and after the recording; a cluster that was allocated and freed in between is in
//! neither, and what QEMU had not written back is missing from them. So data that is known by its
//! buffer teaches where its cluster lies.

use std::collections::BTreeMap;

use nestrace_trace::image_map::{CompressedCluster, Extent, ImageMap, TableRange};

use crate::image::Images;

/// O_DIRECT asks for whole blocks of the file system: QEMU pads what is smaller.
const BLOCK: u64 = 4096;
/// qemu-img's own choice of a cluster's size.
const USUAL_CLUSTER: u64 = 1 << 16;
/// Learnt places kept for one image.
const MAX_LEARNT: usize = 1 << 18;

/// A range of the guest's disk that a file I/O reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct GuestRange {
    pub start: u64,
    pub end: u64,
    /// File I/O may be rounded to this around what the guest asked for.
    pub grain: u64,
    /// The bytes are not the guest's as they are (compressed): buffers differ.
    pub bounced: bool,
}

/// Layout of one image file.
#[derive(Debug)]
enum Layout {
    /// The guest's offset is the file's.
    Raw {
        /// File I/O may be rounded to this.
        grain: u64,
    },
    Mapped(Box<Mapped>),
}

#[derive(Debug, Default)]
struct Mapped {
    cluster_bytes: u64,
    /// Extents of each map, ascending by the file's offset.
    maps: Vec<Vec<Extent>>,
    compressed: Vec<CompressedCluster>,
    /// Where the tables lie, ascending; `None` where a map does not say.
    tables: Option<Vec<TableRange>>,
    /// Something is missing from one of them besides what was new when it was read.
    is_partial: bool,
    /// By the file's offset.
    learnt: BTreeMap<u64, Extent>,
}

/// Layouts by the numbers of `Images::images`.
#[derive(Debug, Default)]
pub(super) struct Clusters {
    layouts: Vec<Layout>,
}

impl Clusters {
    pub(super) fn new(images: &Images, maps: &[ImageMap]) -> Self {
        let layout = |number: u32| {
            if images.format(number) == "raw" {
                return Layout::Raw {
                    grain: raw_grain(number, images, maps),
                };
            }
            let mut mapped = Mapped {
                tables: Some(Vec::new()),
                ..Mapped::default()
            };
            for map in maps.iter().filter(|map| images.is_of_map(number, map)) {
                mapped.add(map);
            }
            Layout::Mapped(Box::new(mapped))
        };
        Self {
            layouts: (0u32..).take(images.images.len()).map(layout).collect(),
        }
    }

    pub(super) fn is_raw(&self, image: u32) -> bool {
        matches!(self.layouts.get(image as usize), Some(Layout::Raw { .. }))
    }

    /// Whether a range of the file holds data of the guest's disk, not the image's own tables; `None` where
    /// the image's layout is not known there.
    pub(super) fn holds_data(&self, image: u32, offset: u64, bytes: u64) -> Option<bool> {
        match self.layouts.get(image as usize)? {
            Layout::Raw { .. } => Some(true),
            Layout::Mapped(mapped) if mapped.maps.is_empty() => None,
            Layout::Mapped(mapped) if !mapped.guest_ranges(offset, bytes).is_empty() => Some(true),
            Layout::Mapped(mapped) if mapped.is_partial => None,
            // What a job writes, the rest of a cluster that is copied up, the state of a stopped machine: nobody knows.
            Layout::Mapped(mapped) => mapped.is_table(offset, bytes).then_some(false),
        }
    }

    /// The ranges of the guest's disk that a range of the file may hold or have held.
    pub(super) fn guest_ranges(&self, image: u32, offset: u64, bytes: u64) -> Vec<GuestRange> {
        match self.layouts.get(image as usize) {
            Some(Layout::Raw { grain }) => vec![GuestRange {
                start: offset,
                end: offset.saturating_add(bytes),
                grain: *grain,
                bounced: false,
            }],
            Some(Layout::Mapped(mapped)) => mapped.guest_ranges(offset, bytes),
            None => Vec::new(),
        }
    }

    /// A file I/O's buffer told that it is the data at `guest_offset`.
    pub(super) fn learn(&mut self, image: u32, guest_offset: u64, file_offset: u64, bytes: u64) {
        if let Some(Layout::Mapped(mapped)) = self.layouts.get_mut(image as usize) {
            mapped.learn(Extent {
                guest_offset,
                bytes,
                file_offset,
            });
        }
    }
}

/// A backing file is copied in clusters of the image above it.
fn raw_grain(image: u32, images: &Images, maps: &[ImageMap]) -> u64 {
    if images.depth(image) == 0 {
        return BLOCK;
    }
    let above = |other: &u32| {
        images.disk_of(*other) == images.disk_of(image)
            && images.depth(*other) < images.depth(image)
            && images.format(*other) != "raw"
    };
    let cluster_bytes = |other: u32| {
        let maps = maps.iter().filter(|map| images.is_of_map(other, map));
        maps.map(|map| map.cluster_bytes)
            .max()
            .unwrap_or(USUAL_CLUSTER)
    };
    let others = (0u32..).take(images.images.len()).filter(above);
    others.map(cluster_bytes).max().unwrap_or(BLOCK)
}

impl Mapped {
    fn add(&mut self, map: &ImageMap) {
        self.cluster_bytes = self.cluster_bytes.max(map.cluster_bytes);
        self.is_partial |= map.partial.is_some();
        match (&mut self.tables, &map.tables) {
            (Some(known), Some(more)) => *known = TableRange::joined(known.iter().chain(more)),
            _ => self.tables = None,
        }
        let mut extents = map.extents.clone();
        extents.sort_by_key(|extent| extent.file_offset);
        self.maps.push(extents);
        self.compressed.extend(&map.compressed);
        self.compressed.sort_by_key(|cluster| cluster.file_offset);
        self.compressed.dedup();
    }

    /// Whether a range of the file is one of the image's tables; of maps that do not say where these are, whatever is not
    /// data.
    fn is_table(&self, offset: u64, bytes: u64) -> bool {
        let Some(tables) = &self.tables else {
            return true;
        };
        let end = offset.saturating_add(bytes);
        let before = tables.partition_point(|table| table.file_offset < end);
        // They do not overlap.
        let last = before.checked_sub(1).and_then(|last| tables.get(last));
        last.is_some_and(|table| table.file_offset.saturating_add(table.bytes) > offset)
    }

    fn grain(&self) -> u64 {
        if self.cluster_bytes == 0 {
            USUAL_CLUSTER
        } else {
            self.cluster_bytes
        }
    }

    fn guest_ranges(&self, offset: u64, bytes: u64) -> Vec<GuestRange> {
        let mut ranges: Vec<GuestRange> = Vec::new();
        let learnt = self.learnt.range(..=offset).next_back();
        let mapped = self.maps.iter().filter_map(|extents| {
            let after = extents.partition_point(|extent| extent.file_offset <= offset);
            extents.get(after.checked_sub(1)?)
        });
        for extent in learnt.map(|(_, extent)| extent).into_iter().chain(mapped) {
            let into = offset - extent.file_offset;
            if into >= extent.bytes {
                continue;
            }
            let start = extent.guest_offset.saturating_add(into);
            let range = GuestRange {
                start,
                end: start.saturating_add(bytes),
                grain: self.grain(),
                bounced: false,
            };
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        ranges.extend(self.compressed_ranges(offset, bytes));
        ranges
    }

    /// Compressed clusters lie packed: QEMU reads the sectors of the one that it wants.
    fn compressed_ranges(&self, offset: u64, bytes: u64) -> impl Iterator<Item = GuestRange> {
        let end = offset.saturating_add(bytes);
        let first = self.compressed.partition_point(|cluster| {
            cluster.file_offset.saturating_add(cluster.file_bytes) <= offset
        });
        let grain = self.grain();
        self.compressed
            .get(first..)
            .unwrap_or_default()
            .iter()
            .take_while(move |cluster| cluster.file_offset < end)
            .map(move |cluster| GuestRange {
                start: cluster.guest_offset,
                end: cluster.guest_offset.saturating_add(grain),
                grain,
                bounced: true,
            })
    }

    fn learn(&mut self, new: Extent) {
        if self.learnt.len() >= MAX_LEARNT {
            self.learnt.clear();
        }
        let new_end = new.file_offset.saturating_add(new.bytes);
        let overlapping: Vec<u64> = self
            .learnt
            .range(..new_end)
            .rev()
            .take_while(|(_, extent)| {
                extent.file_offset.saturating_add(extent.bytes) > new.file_offset
            })
            .map(|(at, _)| *at)
            .collect();
        for at in overlapping {
            self.learnt.remove(&at);
        }
        self.learnt.insert(new.file_offset, new);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(maps: &[ImageMap]) -> Clusters {
        let mut mapped = Mapped {
            tables: Some(Vec::new()),
            ..Mapped::default()
        };
        for map in maps {
            mapped.add(map);
        }
        Clusters {
            layouts: vec![Layout::Mapped(Box::new(mapped))],
        }
    }

    fn map(tables: Option<&[(u64, u64)]>) -> ImageMap {
        let tables = tables.map(|tables| tables.iter().copied().map(TableRange::from).collect());
        ImageMap {
            extents: vec![Extent::from((0, 65_536, 327_680))],
            tables,
            ..ImageMap::default()
        }
    }

    #[test]
    fn what_is_neither_data_nor_a_table_is_unknown() {
        let clusters = mapped(&[
            map(Some(&[(0, 65_536), (131_072, 65_536)])),
            // At the end there is one more.
            map(Some(&[(0, 65_536), (131_072, 131_072)])),
        ]);
        let at = |offset| clusters.holds_data(0, offset, 4096);
        assert_eq!(at(327_680), Some(true), "data");
        assert_eq!(at(0), Some(false), "the header");
        assert_eq!(at(196_608), Some(false), "a table that came later");
        assert_eq!(at(65_536), None, "between two tables");
        assert_eq!(at(1 << 30), None, "the state of a machine, or a job's data");
    }

    #[test]
    fn older_maps_take_all_else_for_tables() {
        for maps in [[map(None), map(None)], [map(Some(&[(0, 1)])), map(None)]] {
            assert_eq!(mapped(&maps).holds_data(0, 1 << 30, 4096), Some(false));
        }
    }
}

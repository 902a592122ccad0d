//! Where an image keeps which part of the guest's disk.
//!
//! Of a raw image every byte lies where the guest has it. A qcow2 image is described by maps that
//! were read before and after the recording; a cluster that was allocated and freed in between is in
//! neither, and what QEMU had not written back is missing from them. So data that is known by its
//! buffer teaches where its cluster lies.

use std::collections::BTreeMap;

use nestrace_trace::image_map::{CompressedCluster, Extent, ImageMap, TableRange};

use crate::follow::image::Images;

/// O_DIRECT asks for whole blocks of the file system: QEMU pads what is smaller.
const BLOCK: u64 = 4096;
/// qemu-img's own choice of a cluster's size.
const USUAL_CLUSTER: u64 = 1 << 16;
/// Maps of one image that are looked into: a recording has two.
const MAX_MAPS: usize = 16;
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
    /// The guest's data, as it is.
    Raw {
        /// File I/O may be rounded to this.
        grain: u64,
        /// The guest's offset less the file's.
        shift: i64,
    },
    /// Nothing but tables: other files hold the data.
    Tables,
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
        let n_images = images.images.len();
        let mut maps_of: Vec<Vec<&ImageMap>> = vec![Vec::new(); n_images];
        for map in maps {
            if let Some(of_image) = images
                .of_map(map)
                .and_then(|it| maps_of.get_mut(it as usize))
            {
                of_image.push(map);
            }
        }
        // In what a backing file of each image is copied: the largest cluster of it and of those above.
        let mut copied_in: Vec<u64> = Vec::with_capacity(n_images);
        let mut layouts = Vec::with_capacity(n_images);
        for (number, maps) in (0u32..).zip(&maps_of) {
            let above = images.above(number);
            let above = above.and_then(|above| copied_in.get(above as usize));
            let above = above.copied().unwrap_or(BLOCK);
            let is_raw = images.format(number) == "raw";
            let own = match is_raw {
                true => BLOCK,
                false => cluster_of(maps),
            };
            copied_in.push(own.max(above));
            layouts.push(if images.is_without_data(number) {
                Layout::Tables
            } else if is_raw && !images.is_data_file(number) {
                let grain = if images.is_backing(number) {
                    above
                } else {
                    BLOCK
                };
                let shift = images.shift(number);
                Layout::Raw { grain, shift }
            } else {
                Layout::Mapped(Box::new(Mapped::of(number, images, maps)))
            });
        }
        Self { layouts }
    }

    pub(super) fn is_raw(&self, image: u32) -> bool {
        matches!(self.layouts.get(image as usize), Some(Layout::Raw { .. }))
    }

    /// Whether a range of the file holds data of the guest's disk, not the image's own tables; `None` where
    /// the image's layout is not known there.
    pub(super) fn holds_data(&self, image: u32, offset: u64, bytes: u64) -> Option<bool> {
        match self.layouts.get(image as usize)? {
            Layout::Raw { .. } => Some(true),
            Layout::Tables => Some(false),
            Layout::Mapped(mapped) if mapped.maps.is_empty() => None,
            Layout::Mapped(mapped) if !mapped.guest_ranges(offset, bytes).is_empty() => Some(true),
            Layout::Mapped(mapped) if mapped.is_partial => None,
            // What a job writes, the rest of a cluster that is copied up, the state of a stopped machine: the class is not known.
            Layout::Mapped(mapped) => mapped.is_table(offset, bytes).then_some(false),
        }
    }

    /// The ranges of the guest's disk that a range of the file may hold or have held.
    pub(super) fn guest_ranges(&self, image: u32, offset: u64, bytes: u64) -> Vec<GuestRange> {
        match self.layouts.get(image as usize) {
            Some(Layout::Raw { grain, shift }) => {
                let at = |offset: u64| offset.checked_add_signed(*shift);
                let range = at(offset).zip(at(offset.saturating_add(bytes)));
                let range = range.map(|(start, end)| GuestRange {
                    start,
                    end,
                    grain: *grain,
                    bounced: false,
                });
                range.into_iter().collect()
            }
            Some(Layout::Tables) => Vec::new(),
            Some(Layout::Mapped(mapped)) => mapped.guest_ranges(offset, bytes),
            None => Vec::new(),
        }
    }

    /// A file I/O's buffer shows that it is the data at `guest_offset`.
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

/// Bytes of a cluster, by the maps of an image.
fn cluster_of(maps: &[&ImageMap]) -> u64 {
    let known = maps.iter().map(|map| map.cluster_bytes).max();
    known.unwrap_or(USUAL_CLUSTER)
}

impl Mapped {
    fn of(image: u32, images: &Images, maps: &[&ImageMap]) -> Self {
        let mut mapped = Self {
            tables: Some(Vec::new()),
            ..Self::default()
        };
        for map in maps.iter().take(MAX_MAPS) {
            mapped.add(map, images.disk_offset(image));
        }
        mapped.is_partial |= maps.len() > MAX_MAPS;
        if images.is_data_file(image) {
            mapped.tables = Some(Vec::new());
        }
        mapped
    }

    /// Adds a map whose image begins at `disk_offset` of the guest's disk.
    fn add(&mut self, map: &ImageMap, disk_offset: i64) {
        self.cluster_bytes = self.cluster_bytes.max(map.cluster_bytes);
        self.is_partial |= map.partial.is_some();
        match (&mut self.tables, &map.tables) {
            (Some(known), Some(more)) => *known = TableRange::joined(known.iter().chain(more)),
            _ => self.tables = None,
        }
        let shown = |offset: u64| offset.checked_add_signed(disk_offset);
        let extents = map.extents.iter().filter_map(|extent| {
            Some(Extent {
                guest_offset: shown(extent.guest_offset)?,
                ..*extent
            })
        });
        let mut extents: Vec<Extent> = extents.collect();
        extents.sort_by_key(|extent| extent.file_offset);
        self.maps.push(extents);
        let compressed = map.compressed.iter().filter_map(|cluster| {
            Some(CompressedCluster {
                guest_offset: shown(cluster.guest_offset)?,
                ..*cluster
            })
        });
        self.compressed.extend(compressed);
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
    use nestrace_trace::manifest::{Disk, Guest, Image, Relation, Topology};

    use super::*;

    fn mapped(maps: &[ImageMap]) -> Clusters {
        let mut mapped = Mapped {
            tables: Some(Vec::new()),
            ..Mapped::default()
        };
        for map in maps {
            mapped.add(map, 0);
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

    fn of_one_disk(images: Vec<Image>) -> Images {
        let disk = Disk {
            images,
            ..Disk::default()
        };
        let guest = Guest {
            disks: vec![disk],
            ..Guest::default()
        };
        Images::new(&Topology {
            guests: vec![guest],
            ..Topology::default()
        })
    }

    #[test]
    fn files_of_a_disk_hold_what_the_block_graph_says() {
        let image = |format: &str, relation, start, disk_offset| Image {
            format: format.to_owned(),
            relation,
            start,
            disk_offset,
            ..Image::default()
        };
        let images = of_one_disk(vec![
            image("qcow2", None, 0, 0),
            image("raw", Some(Relation::DataFileOf(0)), 0, 0),
            image("raw", Some(Relation::BackingOf(0)), 1 << 20, 0),
            image("vmdk", Some(Relation::BackingOf(2)), 0, 0),
            image("raw", Some(Relation::ExtentOf(3)), 512, 4096),
            // It would lead to itself.
            image("raw", Some(Relation::BackingOf(5)), 0, 0),
        ]);
        let depths: Vec<u32> = (0..6).map(|image| images.depth(image)).collect();
        assert_eq!(depths, [0, 0, 1, 2, 2, 3]);
        let map = ImageMap {
            image: 1,
            cluster_bytes: 1 << 16,
            extents: vec![Extent {
                guest_offset: 1 << 16,
                bytes: 1 << 16,
                file_offset: 0,
            }],
            ..ImageMap::default()
        };
        let clusters = Clusters::new(&images, &[map]);
        let start = |image, offset| {
            let ranges = clusters.guest_ranges(image, offset, 4096);
            ranges.first().map(|range| range.start)
        };
        // A qcow2 with a data file is nothing but tables, and the data file has none.
        assert_eq!(start(0, 0), None);
        assert_eq!(clusters.holds_data(0, 0, 4096), Some(false));
        assert_eq!(start(1, 4096), Some((1 << 16) + 4096));
        assert_eq!(clusters.holds_data(1, 1 << 30, 4096), None);
        // Raw bytes from a byte of the file on, and an extent that begins at a byte of the disk.
        assert_eq!(start(2, 1 << 20), Some(0));
        assert_eq!(start(2, 0), None);
        assert_eq!(start(3, 0), None);
        assert_eq!(start(4, 512 + 8192), Some(4096 + 8192));
    }

    #[test]
    fn maps_without_end_are_not_looked_into() {
        let image = Image {
            format: "qcow2".to_owned(),
            ..Image::default()
        };
        let table = |at: u64| ImageMap {
            tables: Some(vec![TableRange {
                file_offset: at << 16,
                bytes: 1 << 16,
            }]),
            ..ImageMap::default()
        };
        let maps: Vec<ImageMap> = (0..100_000).map(table).collect();
        let images = of_one_disk(vec![image]);
        let holds = |maps: &[ImageMap]| Clusters::new(&images, maps).holds_data(0, 1 << 16, 512);
        assert_eq!(holds(&maps[..2]), Some(false));
        // Something may be in a map that was not looked into.
        assert_eq!(holds(&maps), None);
    }
}

//! What a disk's images are to each other, as QEMU's block graph says: depth says nothing.

use nestrace_trace::image_map::ImageMap;
use nestrace_trace::manifest::{Disk, Relation};

use super::{ImageState, Images};
use crate::model::ids::{GuestDiskId, GuestId};

/// Where an image is among those of its disk.
#[derive(Clone, Copy, Debug)]
pub(super) struct InGraph {
    /// Index into [`Images::disks`].
    pub disk: u32,
    /// Index into the disk's images.
    pub index: u32,
    /// What it is to another image of the disk; `None` of the disk's own.
    pub relation: Option<Relation>,
    /// How many images are above it, each the backing file of the one before.
    pub depth: u32,
}

impl InGraph {
    /// The places of a disk's images, in their order.
    pub(super) fn all(disk: u32, about: &Disk) -> Vec<Self> {
        let mut places: Vec<Self> = Vec::new();
        for relation in about.relations() {
            // A relation leads to an image before this one.
            let of = relation.and_then(|relation| places.get(relation.of() as usize));
            let is_backing = matches!(relation, Some(Relation::BackingOf(_)));
            places.push(Self {
                disk,
                index: places.len() as u32,
                relation,
                depth: of.map_or(0, |of| of.depth) + u32::from(is_backing),
            });
        }
        places
    }
}

impl Images {
    /// How many images are above it, each the backing file of the one before: 0 for a disk's own image and
    /// its data file, 1 for its backing file.
    pub(crate) fn depth(&self, image: u32) -> u32 {
        self.images
            .get(image as usize)
            .map_or(0, |image| image.place.depth)
    }

    /// Whether the image is the backing file of another one, or belongs to one that is.
    pub(crate) fn is_backing(&self, image: u32) -> bool {
        self.depth(image) > 0
    }

    /// Whether the image is qcow2's external data file: raw bytes that lie where the qcow2 says.
    pub(crate) fn is_data_file(&self, image: u32) -> bool {
        let state = self.images.get(image as usize);
        state.is_some_and(|state| matches!(state.place.relation, Some(Relation::DataFileOf(_))))
    }

    /// Whether other files hold all of the image's data: a data file, or extents.
    pub(crate) fn is_without_data(&self, image: u32) -> bool {
        let state = self.images.get(image as usize);
        state.is_some_and(|state| state.is_without_data)
    }

    /// The image that this one belongs to, or whose backing file it is: one before it.
    pub(crate) fn above(&self, image: u32) -> Option<u32> {
        let place = self.images.get(image as usize)?.place;
        Some(image - place.index + place.relation?.of())
    }

    /// Where on the guest's disk the file's first byte would be, in bytes; of an image that lies in the file as it is.
    pub(crate) fn shift(&self, image: u32) -> i64 {
        let state = self.images.get(image as usize);
        state.map_or(0, |state| {
            let start = i64::try_from(state.about.start).unwrap_or(i64::MAX);
            state.about.disk_offset.saturating_sub(start)
        })
    }

    /// Where on the guest's disk the image's own first byte is, in bytes.
    pub(crate) fn disk_offset(&self, image: u32) -> i64 {
        let state = self.images.get(image as usize);
        state.map_or(0, |state| state.about.disk_offset)
    }

    /// The number in [`Self::disks`] of a guest's disk.
    pub(crate) fn disk_number(&self, guest: GuestId, disk: GuestDiskId) -> Option<u32> {
        let first = self.first_of_guest.get(guest.0 as usize)?;
        let number = first.checked_add(disk.0)?;
        let known = self.disks.get(number as usize)?;
        (known.guest == guest.0).then_some(number)
    }

    /// The images of a disk, each with its number.
    pub(crate) fn of_disk(&self, disk: u32) -> impl Iterator<Item = (u32, &ImageState)> {
        let first = |disk: u32| self.first_of_disk.get(disk as usize).copied();
        let all = self.images.len() as u32;
        let start = first(disk).unwrap_or(all);
        let end = first(disk.saturating_add(1)).unwrap_or(all);
        (start..end).filter_map(|number| Some((number, self.images.get(number as usize)?)))
    }

    /// The image that a map describes.
    pub(crate) fn of_map(&self, map: &ImageMap) -> Option<u32> {
        let disk = self.disk_number(GuestId(map.guest), GuestDiskId(map.disk))?;
        let first = self.first_of_disk.get(disk as usize)?;
        let number = first.checked_add(map.image)?;
        let image = self.images.get(number as usize)?;
        (image.place.disk == disk).then_some(number)
    }
}

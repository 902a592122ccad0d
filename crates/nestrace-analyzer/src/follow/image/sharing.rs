//! Files that several disks have: a backing file of many clones, or one image that two guests use.
//!
//! What QEMU does with such a file is its guest's, and so is a bio that is queued for that. The rest, such as what
//! write-back writes, may be anybody's: where that is more than a little, nothing that is counted on the file is told
//! of one disk.

use super::{ImageState, Images};
use crate::result::verdict::FOLLOWED;

/// What was done to a file that several disks have: calls and bios.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Use {
    /// Known to be one disk's.
    divided: u64,
    /// May be any disk's.
    undivided: u64,
}

impl Use {
    fn is_divided(self) -> bool {
        let all = (self.divided + self.undivided) as f64;
        self.divided as f64 >= all * FOLLOWED
    }
}

impl Images {
    /// Whether two images are one file.
    pub(crate) fn same_file(&self, a: u32, b: u32) -> bool {
        let key = |image: u32| {
            let image = self.images.get(image as usize)?;
            Some((image.about.inode, image.about.dev))
        };
        a == b || key(a).is_some() && key(a) == key(b)
    }

    /// All images that are one file with this one.
    pub(super) fn of_same_file(&self, image: u32) -> impl Iterator<Item = (u32, &ImageState)> {
        let all = (0u32..).zip(&self.images);
        all.filter(move |(other, _)| self.same_file(*other, image))
    }

    /// One number for all images that are one file.
    pub(crate) fn file_number(&self, image: u32) -> u32 {
        let same = self.is_shared(image).then(|| self.of_same_file(image));
        let first = same.and_then(|mut same| same.next());
        first.map_or(image, |(first, _)| first)
    }

    fn is_shared(&self, image: u32) -> bool {
        let state = self.images.get(image as usize);
        state.is_some_and(|state| state.shared)
    }

    /// A file of the disk that others use too, and with which things were done that may be theirs.
    pub(crate) fn shared_file(&self, disk: u32) -> Option<&str> {
        let mut of_disk = self.of_disk(disk).map(|(_, state)| state);
        let found = of_disk.find(|state| state.shared && !state.usage.is_divided());
        found.map(|state| state.about.path.as_str())
    }

    /// Changes all images that are one file with this one.
    pub(crate) fn each_of_file(&mut self, image: u32, change: impl Fn(&mut ImageState)) {
        let same: Vec<u32> = self.of_same_file(image).map(|(other, _)| other).collect();
        for other in same {
            if let Some(state) = self.images.get_mut(other as usize) {
                change(state);
            }
        }
    }

    /// Something was done to a file of several disks: known to be one's, or not.
    fn note_use(&mut self, image: u32, is_known: bool) {
        self.each_of_file(image, |state| {
            state.usage.divided += u64::from(is_known);
            state.usage.undivided += u64::from(!is_known);
        });
    }

    /// A guest does I/O on a file: if several disks have it, it is one disk's where the guest has one with it.
    pub(crate) fn used_by(&mut self, image: u32, guest: u32) {
        if self.is_shared(image) {
            let is_known = self.disks_of(image, guest).len() == 1;
            self.note_use(image, is_known);
        }
    }

    /// Whose a bio on a file of several disks is: that of the file I/O that it is queued for, if it is known.
    pub(crate) fn charged(&mut self, image: u32, carrier: impl Fn() -> Option<u32>) -> u32 {
        if !self.is_shared(image) {
            return image;
        }
        let carrier = carrier().filter(|carrier| self.same_file(*carrier, image));
        self.note_use(image, carrier.is_some());
        carrier.unwrap_or(image)
    }

    /// Tells every disk of a guest that uses the file of an image.
    pub(crate) fn each_disk_with(&self, image: u32, guest: u32, mut tell: impl FnMut(u32)) {
        let Some(state) = self.images.get(image as usize) else {
            return;
        };
        if !state.shared {
            return tell(state.disk());
        }
        self.disks_of(image, guest).into_iter().for_each(tell);
    }

    /// The disks of a guest that use the file of an image.
    pub(crate) fn disks_of(&self, image: u32, guest: u32) -> Vec<u32> {
        let same = self.of_same_file(image);
        let mut disks: Vec<u32> = same
            .filter(|(other, _)| self.guest_of(*other) == Some(guest))
            .map(|(_, image)| image.disk())
            .collect();
        disks.dedup();
        disks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_little_that_nobody_knows_does_not_matter() {
        for (divided, undivided, expected) in
            [(0, 0, true), (98, 2, true), (97, 3, false), (0, 1, false)]
        {
            assert_eq!(Use { divided, undivided }.is_divided(), expected);
        }
    }
}

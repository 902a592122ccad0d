//! Image files: which inode is which disk's, on which devices it lies, and what was read and
//! written on it.

use std::collections::HashSet;

use nestrace_abi::{end_io, flags};
use nestrace_trace::Event;
use nestrace_trace::image_map::ImageMap;
use nestrace_trace::manifest::{self, Topology};

use crate::analysis::{self, ReadWrite};
use crate::device::Operation;
use crate::file_io::FileMeter;
use crate::pointer::PointerMap;

/// Linux' inode number of btrfs' own metadata (`BTRFS_BTREE_INODE_OBJECTID`).
const BTRFS_METADATA_INODE: u64 = 1;

/// Whose data a bio carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// An image file: index into [`Images::images`].
    Image(u32),
    /// Metadata or journal of a file system: everybody's.
    FileSystem,
    /// The file beneath the loop device with this number.
    Loop(u32),
    /// Whoever the thread is.
    Thread(u32),
}

/// Drivers that hand bios on to devices beneath.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stacking {
    /// Device mapper.
    Dm,
    /// Software RAID.
    Md,
}

/// A disk of a guest.
#[derive(Debug)]
pub(crate) struct DiskRef {
    /// Index into the topology's guests.
    pub guest: u32,
    /// Index into the guest's disks.
    pub disk: u32,
    /// The guest's name.
    pub guest_name: String,
    /// The disk's name.
    pub name: String,
}

/// An image file and what happened to it.
#[derive(Debug)]
pub(crate) struct ImageState {
    /// Index into [`Images::disks`].
    pub disk: u32,
    depth: u32,
    about: manifest::Image,
    /// Whole disks right under the file system; empty where the topology does not tell.
    first_devices: Vec<u32>,
    host_bytes: ReadWrite,
    buffered_fallback: u64,
    buffered_fallback_bytes: u64,
    shared: bool,
    /// QEMU's file I/O.
    pub file: FileMeter,
}

impl ImageState {
    fn is_used(&self) -> bool {
        self.file.any() || self.host_bytes != ReadWrite::default()
    }

    /// A block device opened with O_DIRECT.
    pub(crate) fn always_direct(&self) -> bool {
        self.about.is_block_device && self.about.direct == Some(true)
    }
}

/// Every image of every guest.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// The disks, guest by guest.
    pub disks: Vec<DiskRef>,
    /// The images, disk by disk, top first.
    pub images: Vec<ImageState>,
    by_owner: PointerMap<(u64, u32), Vec<u32>>,
    /// Raw block devices, by the inode of the device.
    by_device_inode: PointerMap<u64, u32>,
    loops: PointerMap<(u64, u32), u32>,
    super_blocks: HashSet<u32>,
    /// dm and md devices.
    stacked: Vec<(u32, Stacking)>,
    /// Whole disk and the disks (of guests) with an image right on it.
    on_device: Vec<(u32, Vec<u32>)>,
}

impl Images {
    pub(crate) fn new(topology: &Topology) -> Self {
        let mut this = Self::default();
        for (guest_index, guest) in (0u32..).zip(&topology.guests) {
            for (disk_index, disk) in (0u32..).zip(&guest.disks) {
                let number = this.disks.len() as u32;
                this.disks.push(DiskRef {
                    guest: guest_index,
                    disk: disk_index,
                    guest_name: guest.name.clone(),
                    name: disk.name.clone(),
                });
                for (depth, image) in (0u32..).zip(&disk.images) {
                    this.add(topology, number, depth, image);
                }
            }
        }
        for device in &topology.devices {
            match device.kind.as_str() {
                "dm" => this.stacked.push((device.dev, Stacking::Dm)),
                "md" => this.stacked.push((device.dev, Stacking::Md)),
                _ => {}
            }
            if let Some(file) = &device.loop_file {
                this.loops.insert((file.inode, file.dev), device.dev);
                this.super_blocks.insert(file.dev);
            }
        }
        this
    }

    fn add(&mut self, topology: &Topology, disk: u32, depth: u32, image: &manifest::Image) {
        let number = self.images.len() as u32;
        let mut first_devices: Vec<u32> = image
            .devices
            .iter()
            .filter_map(|name| whole_disk(topology, name))
            .collect();
        if image.is_block_device {
            let inode = if image.inode == 0 {
                u64::from(image.dev)
            } else {
                image.inode
            };
            self.by_device_inode.entry(inode).or_insert(number);
            if first_devices.is_empty() {
                first_devices.push(image.dev);
            }
        } else {
            self.super_blocks.insert(image.dev);
        }
        let same = self.by_owner.entry((image.inode, image.dev)).or_default();
        same.push(number);
        let shared = same.len() > 1;
        for other in same.clone() {
            if let Some(other) = self.images.get_mut(other as usize) {
                other.shared = true;
            }
        }
        for device in &first_devices {
            match self.on_device.iter_mut().find(|(dev, _)| dev == device) {
                Some((_, disks)) if disks.contains(&disk) => {}
                Some((_, disks)) => disks.push(disk),
                None => self.on_device.push((*device, vec![disk])),
            }
        }
        self.images.push(ImageState {
            disk,
            depth,
            about: image.clone(),
            first_devices,
            host_bytes: ReadWrite::default(),
            buffered_fallback: 0,
            buffered_fallback_bytes: 0,
            shared,
            file: FileMeter::default(),
        });
    }

    /// The image that a file event of guest `guest` is about.
    pub(crate) fn of_file(&self, event: &Event, guest: u32) -> Option<u32> {
        let owned = self.by_owner.get(&(event.inode, event.owner_dev));
        owned
            .and_then(|images| {
                let of_guest = images
                    .iter()
                    .find(|image| self.guest_of(**image) == Some(guest));
                of_guest.or(images.first()).copied()
            })
            .or_else(|| self.raw_device(event))
    }

    /// The image with this inode, whoever's guest.
    pub(crate) fn of_inode(&self, event: &Event) -> Option<u32> {
        self.by_owner
            .get(&(event.inode, event.owner_dev))?
            .first()
            .copied()
    }

    fn guest_of(&self, image: u32) -> Option<u32> {
        let image = self.images.get(image as usize)?;
        self.disks.get(image.disk as usize).map(|disk| disk.guest)
    }

    /// Inodes of block devices live in a super block of their own, with an anonymous device number
    /// (major 0), and are numbered by the device.
    fn raw_device(&self, event: &Event) -> Option<u32> {
        if self.by_device_inode.is_empty() {
            return None;
        }
        let image = *self.by_device_inode.get(&event.inode)?;
        let about = &self.images.get(image as usize)?.about;
        (event.owner_dev >> 20 == 0 || event.owner_dev == about.dev).then_some(image)
    }

    /// Whose data a bio carries at Q.
    pub(crate) fn owner(&self, event: &Event) -> Owner {
        if event.inode != 0 {
            if let Some(images) = self.by_owner.get(&(event.inode, event.owner_dev))
                && let Some(first) = images.first()
            {
                return Owner::Image(*first);
            }
            if let Some(image) = self.raw_device(event) {
                return Owner::Image(image);
            }
            if let Some(device) = self.loops.get(&(event.inode, event.owner_dev)) {
                return Owner::Loop(*device);
            }
            if event.inode == BTRFS_METADATA_INODE && self.super_blocks.contains(&event.owner_dev) {
                return Owner::FileSystem;
            }
        }
        // Inodes of block devices are numbered by the device: pages of the one beneath a file system
        // are its metadata (super blocks of btrfs, ext4's and jbd2's blocks).
        if event.sub == flags::OWNER_PAGES && event.inode == u64::from(event.dev) {
            return Owner::FileSystem;
        }
        match event.end_io {
            end_io::BUFFER_HEAD | end_io::XFS_LOG | end_io::XFS_BUF => Owner::FileSystem,
            _ => Owner::Thread(event.tid),
        }
    }

    /// Counts a data bio of an image at Q. Says whether the device is the first one under the
    /// file system (a bio of dm or md carries the same pages again on the devices beneath).
    pub(crate) fn queued(&mut self, image: u32, event: &Event) -> bool {
        let Some(state) = self.images.get_mut(image as usize) else {
            return false;
        };
        if state.first_devices.is_empty() {
            state.first_devices.push(event.dev);
        }
        if !state.first_devices.contains(&event.dev) {
            return false;
        }
        match event.op() {
            flags::OP_READ => state.host_bytes.read += event.bytes,
            flags::OP_WRITE | flags::OP_WRITE_ZEROES => state.host_bytes.write += event.bytes,
            _ => {}
        }
        if state.about.direct == Some(true) && event.sub == flags::OWNER_PAGES {
            state.buffered_fallback += 1;
            state.buffered_fallback_bytes += event.bytes;
        }
        true
    }

    /// Takes back what [`Self::queued`] counted: the bio was refused at once.
    pub(crate) fn refused(&mut self, image: u32, operation: Operation, bytes: u64, paged: bool) {
        let Some(state) = self.images.get_mut(image as usize) else {
            return;
        };
        let total = match operation {
            Operation::Read => &mut state.host_bytes.read,
            Operation::Write => &mut state.host_bytes.write,
            _ => return,
        };
        *total = total.saturating_sub(bytes);
        if state.about.direct == Some(true) && paged {
            state.buffered_fallback = state.buffered_fallback.saturating_sub(1);
            state.buffered_fallback_bytes = state.buffered_fallback_bytes.saturating_sub(bytes);
        }
    }

    /// The number in [`Self::disks`] of a guest's disk.
    pub(crate) fn disk_number(&self, guest: u32, disk: u32) -> Option<u32> {
        let found = self
            .disks
            .iter()
            .position(|known| known.guest == guest && known.disk == disk);
        found.and_then(|number| u32::try_from(number).ok())
    }

    /// `raw`, `qcow2`, …
    pub(crate) fn format(&self, image: u32) -> &str {
        self.images
            .get(image as usize)
            .map_or("", |image| image.about.format.as_str())
    }

    /// Whether the map describes this image.
    pub(crate) fn is_of_map(&self, image: u32, map: &ImageMap) -> bool {
        self.images.get(image as usize).is_some_and(|image| {
            image.depth == map.image && self.disk_number(map.guest, map.disk) == Some(image.disk)
        })
    }

    /// 0 for a disk's own image, 1 for its backing file, and so on.
    pub(crate) fn depth(&self, image: u32) -> u32 {
        self.images
            .get(image as usize)
            .map_or(0, |image| image.depth)
    }

    /// The disk of an image: index into [`Self::disks`].
    pub(crate) fn disk_of(&self, image: u32) -> Option<u32> {
        self.images.get(image as usize).map(|image| image.disk)
    }

    /// Whether two images are one file.
    pub(crate) fn same_file(&self, a: u32, b: u32) -> bool {
        let key = |image: u32| {
            let image = self.images.get(image as usize)?;
            Some((image.about.inode, image.about.dev))
        };
        a == b || key(a).is_some() && key(a) == key(b)
    }

    /// A file of the disk that others use too and that something was read from or written to: its bytes are
    /// counted for one of them.
    pub(crate) fn shared_file(&self, disk: u32) -> Option<&str> {
        let all = || (0u32..).zip(&self.images);
        let is_shared = |image: u32| {
            let mut same = all().filter(|(other, _)| self.same_file(*other, image));
            let of_others = same.clone().any(|(_, other)| other.disk != disk);
            of_others && same.any(|(_, other)| other.is_used())
        };
        let mut of_disk = all().filter(|(_, state)| state.disk == disk && state.shared);
        let found = of_disk.find(|(image, _)| is_shared(*image));
        found.map(|(_, state)| state.about.path.as_str())
    }

    /// Tells every disk that uses the file of an image, of whichever guest.
    pub(crate) fn each_disk_with(&self, image: u32, mut tell: impl FnMut(u32)) {
        let Some(state) = self.images.get(image as usize) else {
            return;
        };
        if !state.shared {
            return tell(state.disk);
        }
        let all = (0u32..).zip(&self.images);
        all.filter(|(other, _)| self.same_file(*other, image))
            .for_each(|(_, other)| tell(other.disk));
    }

    /// The disks of a guest that use the file of an image.
    pub(crate) fn disks_of(&self, image: u32, guest: u32) -> Vec<u32> {
        let mut disks: Vec<u32> = (0u32..)
            .zip(&self.images)
            .filter(|(other, _)| {
                self.same_file(*other, image) && self.guest_of(*other) == Some(guest)
            })
            .map(|(_, image)| image.disk)
            .collect();
        disks.dedup();
        disks
    }

    /// Whether the file was opened with O_DIRECT.
    pub(crate) fn is_direct(&self, image: u32) -> bool {
        self.images
            .get(image as usize)
            .is_some_and(|image| image.about.direct == Some(true))
    }

    /// Whether an image on this device lies on btrfs.
    pub(crate) fn is_btrfs(&self, dev: u32) -> bool {
        self.images.iter().any(|image| {
            image.first_devices.contains(&dev)
                && image
                    .about
                    .mount
                    .as_ref()
                    .is_some_and(|mount| mount.fs_type == "btrfs")
        })
    }

    /// Whether a block device is known beneath the image.
    pub(crate) fn has_device(&self, image: u32) -> bool {
        let state = self.images.get(image as usize);
        state.is_some_and(|state| !state.first_devices.is_empty())
    }

    /// The file system that the image lies on.
    pub(crate) fn fs_type(&self, image: u32) -> Option<&str> {
        let mount = self.images.get(image as usize)?.about.mount.as_ref()?;
        Some(mount.fs_type.as_str())
    }

    /// Whether the device is one of those right under the image.
    pub(crate) fn lies_on(&self, image: u32, dev: u32) -> bool {
        self.images
            .get(image as usize)
            .is_some_and(|image| image.first_devices.contains(&dev))
    }

    /// Whether a device hands bios on to others beneath it (dm, md) and has no requests of its own.
    pub(crate) fn is_stacked(&self, dev: u32) -> bool {
        self.stacking(dev).is_some()
    }

    /// Which driver does so.
    pub(crate) fn stacking(&self, dev: u32) -> Option<Stacking> {
        let known = self.stacked.iter().find(|(stacked, _)| *stacked == dev);
        known.map(|(_, stacking)| *stacking)
    }

    /// The disks with an image right on this device.
    pub(crate) fn disks_on(&self, dev: u32) -> &[u32] {
        self.on_device
            .iter()
            .find(|(device, _)| *device == dev)
            .map_or(&[], |(_, disks)| disks)
    }

    /// `images[]`.
    pub(crate) fn finish(&self, bios_recorded: bool, files_recorded: bool) -> Vec<analysis::Image> {
        let entry = |state: &ImageState| {
            let disk = self.disks.get(state.disk as usize);
            let mut file_io = state.file.finish();
            file_io.buffered_fallback = state.buffered_fallback;
            file_io.buffered_fallback_bytes = state.buffered_fallback_bytes;
            analysis::Image {
                guest: disk.map(|disk| disk.guest_name.clone()).unwrap_or_default(),
                disk: disk.map(|disk| disk.name.clone()).unwrap_or_default(),
                path: state.about.path.clone(),
                inode: state.about.inode,
                depth: state.depth,
                format: state.about.format.clone(),
                fs_type: state
                    .about
                    .mount
                    .as_ref()
                    .map(|mount| mount.fs_type.clone()),
                file_io: files_recorded.then_some(file_io),
                host_bytes: (bios_recorded && !state.first_devices.is_empty())
                    .then_some(state.host_bytes),
                shared: state.shared,
            }
        };
        self.images.iter().map(entry).collect()
    }
}

/// The whole disk with (or around) the device of this name.
fn whole_disk(topology: &Topology, name: &str) -> Option<u32> {
    let device = topology.devices.iter().find(|device| device.name == name)?;
    if device.kind != "partition" {
        return Some(device.dev);
    }
    let disk = device.beneath.first()?;
    topology
        .devices
        .iter()
        .find(|device| device.name == *disk)
        .map(|disk| disk.dev)
}

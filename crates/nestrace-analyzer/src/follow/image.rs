//! Image files: which inode is which disk's, on which devices it lies, and what was read and
//! written on it.

mod graph;
mod server;
mod sharing;
mod stacks;
mod volume;

use std::collections::HashSet;

use nestrace_abi::flags;
use nestrace_trace::Event;
use nestrace_trace::manifest::{self, Relation, Topology};

use crate::measure::file_meter::FileMeter;
use crate::model::file_io_span::FileIoSpan;
use crate::model::ids::{DevNo, DiskId, ImageId};
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::pointer::PointerMap;
use crate::model::span::{Below, BioSpan};
use crate::model::stacking::Stacking;
use crate::result::analysis::{self, ReadWrite};
use graph::InGraph;
pub(crate) use server::RecordedRpcs;
use sharing::{Qemus, Use};
pub(crate) use stacks::{Stacks, has_parity, is_stacked};
use volume::{Extent, Volume, Volumes};
pub(crate) use volume::{device_named, disk_of};

/// Linux' inode number of btrfs' own metadata (`BTRFS_BTREE_INODE_OBJECTID`).
const BTRFS_METADATA_INODE: u64 = 1;

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
    place: InGraph,
    /// Other files hold all of its data.
    is_without_data: bool,
    about: manifest::Image,
    servers: Vec<analysis::Server>,
    /// What is right under the file system; empty where the topology does not tell.
    first_devices: Vec<Extent>,
    host_bytes: ReadWrite,
    /// Bios with pages of the file although QEMU has it open with O_DIRECT, and their bytes.
    paged: u64,
    paged_bytes: ReadWrite,
    /// Several disks have the file.
    shared: bool,
    /// What was done to it, if so.
    usage: Use,
    /// QEMU's file I/O.
    pub file: FileMeter,
}

impl ImageState {
    /// Bios and bytes of QEMU's O_DIRECT that fell back to the page cache: no more than what its calls moved and no direct
    /// bio did. The rest are pages that others have in the cache, an image that was just copied, say: the kernel writes
    /// them back before direct I/O at the same place.
    fn fell_back(&self) -> (u64, u64) {
        let asked = self.file.bytes();
        let (host, paged) = (self.host_bytes, self.paged_bytes);
        let least = |asked: u64, host: u64, paged: u64| {
            paged.min(asked.saturating_sub(host.saturating_sub(paged)))
        };
        let bytes =
            least(asked.read, host.read, paged.read) + least(asked.write, host.write, paged.write);
        let all = paged.read + paged.write;
        let bios = u128::from(self.paged) * u128::from(bytes) / u128::from(all.max(1));
        (bios as u64, bytes)
    }

    /// Index into [`Images::disks`].
    pub(crate) const fn disk(&self) -> u32 {
        self.place.disk
    }

    /// A block device opened with O_DIRECT.
    pub(crate) fn always_direct(&self) -> bool {
        self.about.is_block_device && self.about.direct == Some(true)
    }
}

/// Every image of every guest.
#[derive(Debug, Default)]
pub(crate) struct Images {
    /// Clients of servers whose calls were recorded.
    pub rpcs_recorded: RecordedRpcs,
    /// The disks, guest by guest.
    pub disks: Vec<DiskRef>,
    /// The images, disk by disk, top first.
    pub images: Vec<ImageState>,
    /// The first disk of each guest.
    first_of_guest: Vec<u32>,
    /// The first image of each disk.
    first_of_disk: Vec<u32>,
    by_owner: PointerMap<(u64, u32), Vec<u32>>,
    /// Raw block devices, by the inode of the device.
    by_device_inode: PointerMap<u64, u32>,
    loops: PointerMap<(u64, u32), u32>,
    /// Loop devices over a block device, by the inode of that.
    loops_over_devices: PointerMap<u64, u32>,
    super_blocks: HashSet<u32>,
    /// dm and md devices.
    stacked: Vec<(u32, Stacking)>,
    pub stacks: Stacks,
    volumes: Volumes,
    qemus: Qemus,
    /// Number of each partition and of its disk.
    partitions: HashSet<(u64, u32)>,
}

impl Images {
    pub(crate) fn new(topology: &Topology) -> Self {
        let mut this = Self {
            qemus: Qemus::of(topology),
            stacks: Stacks::new(topology),
            ..Self::default()
        };
        for (guest_index, guest) in (0u32..).zip(&topology.guests) {
            this.first_of_guest.push(this.disks.len() as u32);
            for (disk_index, disk) in (0u32..).zip(&guest.disks) {
                let number = this.disks.len() as u32;
                this.first_of_disk.push(this.images.len() as u32);
                this.disks.push(DiskRef {
                    guest: guest_index,
                    disk: disk_index,
                    guest_name: guest.name.clone(),
                    name: disk.name.clone(),
                });
                for (image, place) in disk.images.iter().zip(InGraph::all(number, disk)) {
                    this.add(topology, place, image);
                }
            }
        }
        for device in &topology.devices {
            let stacking = Stacking::of(&device.kind);
            this.stacked.extend(stacking.map(|it| (device.dev, it)));
            if device.kind == "partition" {
                let disk = Extent::named(topology, &device.name);
                let both = disk.map(|disk| (u64::from(device.dev), disk.dev));
                this.partitions.extend(both);
            }
            if let Some(file) = &device.loop_file {
                if file.is_block_device {
                    let inode = u64::from(file.dev);
                    this.loops_over_devices.insert(inode, device.dev);
                }
                this.loops.insert((file.inode, file.dev), device.dev);
                this.super_blocks.insert(file.dev);
            }
        }
        this
    }

    fn add(&mut self, topology: &Topology, place: InGraph, image: &manifest::Image) {
        let number = self.images.len() as u32;
        let mut first_devices: Vec<Extent> = image
            .devices
            .iter()
            .filter_map(|name| Extent::named(topology, name))
            .collect();
        if image.is_block_device {
            let inode = Some(image.inode).filter(|inode| *inode != 0);
            let inode = inode.unwrap_or(image.dev.into());
            self.by_device_inode.entry(inode).or_insert(number);
            if first_devices.is_empty() {
                first_devices.push(Extent::whole(image.dev));
            }
        } else {
            self.super_blocks.insert(image.dev);
        }
        if let Some(opened) = image.opened {
            self.by_owner.entry(opened).or_default().push(number);
        }
        let same = self.by_owner.entry((image.inode, image.dev)).or_default();
        let shared = !same.is_empty();
        if let [first] = same.as_slice()
            && let Some(first) = self.images.get_mut(*first as usize)
        {
            first.shared = true;
        }
        same.push(number);
        for extent in &first_devices {
            self.volumes
                .add(*extent, !image.is_block_device, place.disk);
        }
        if let Some(Relation::DataFileOf(of) | Relation::ExtentOf(of)) = place.relation
            && let Some(above) = self.images.get_mut((number - place.index + of) as usize)
        {
            above.is_without_data = true;
        }
        self.images.push(ImageState {
            place,
            is_without_data: false,
            about: image.clone(),
            servers: topology.servers_of(image).iter().map(Into::into).collect(),
            first_devices,
            host_bytes: ReadWrite::default(),
            paged: 0,
            paged_bytes: ReadWrite::default(),
            shared,
            usage: Use::default(),
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
        self.disks.get(image.disk() as usize).map(|disk| disk.guest)
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

    /// The loop device over the file, or over the block device, that an event names.
    pub(crate) fn loop_device(&self, event: &Event) -> Option<u32> {
        let over_file = self.loops.get(&(event.inode, event.owner_dev));
        let over_device = || {
            let device = self.loops_over_devices.get(&event.inode);
            device.filter(|_| event.owner_dev >> 20 == 0)
        };
        over_file.or_else(over_device).copied()
    }

    /// The owner of a bio's data at Q.
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
            if let Some(device) = self.loop_device(event) {
                return Owner::Loop(device);
            }
            if event.inode == BTRFS_METADATA_INODE && self.super_blocks.contains(&event.owner_dev) {
                return Owner::FileSystem;
            }
        }
        // A file system's metadata, as in `by_pages`, on another device than the one that its inode is numbered by.
        let of_device = || {
            self.partitions.contains(&(event.inode, event.dev))
                // Clones of a logical volume's.
                || self.stacked.iter().any(|(dev, _)| event.inode == u64::from(*dev))
        };
        if event.sub == flags::OWNER_PAGES && of_device() {
            return Owner::FileSystem;
        }
        Owner::by_pages(event)
    }

    /// Counts a data bio of an image at Q. Says whether the device is the first one under the
    /// file system (a bio of dm or md carries the same pages again on the devices below).
    pub(crate) fn queued(&mut self, image: u32, event: &Event) -> bool {
        let Some(state) = self.images.get_mut(image as usize) else {
            return false;
        };
        if state.first_devices.is_empty() {
            state.first_devices.push(Extent::whole(event.dev));
        }
        let place = Some(event.offset);
        let mut extents = state.first_devices.iter();
        if !extents.any(|extent| extent.holds(event.dev, place)) {
            return false;
        }
        match event.op() {
            flags::OP_READ => state.host_bytes.read += event.bytes,
            flags::OP_WRITE | flags::OP_WRITE_ZEROES => state.host_bytes.write += event.bytes,
            _ => {}
        }
        if state.about.direct == Some(true) && event.sub == flags::OWNER_PAGES {
            state.paged += 1;
            match event.op() {
                flags::OP_READ => state.paged_bytes.read += event.bytes,
                _ => state.paged_bytes.write += event.bytes,
            }
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
            state.paged = state.paged.saturating_sub(1);
            let paged = match operation {
                Operation::Read => &mut state.paged_bytes.read,
                _ => &mut state.paged_bytes.write,
            };
            *paged = paged.saturating_sub(bytes);
        }
    }

    /// `raw`, `qcow2`, …
    pub(crate) fn format(&self, image: u32) -> &str {
        self.images
            .get(image as usize)
            .map_or("", |image| image.about.format.as_str())
    }

    /// The disk of an image: index into [`Self::disks`].
    pub(crate) fn disk_of(&self, image: u32) -> Option<u32> {
        self.images.get(image as usize).map(|image| image.disk())
    }

    /// The names of the guest and of the disk that the image belongs to.
    pub(crate) fn names_of(&self, image: u32) -> Option<(String, String)> {
        let disk = self.disks.get(self.disk_of(image)? as usize)?;
        Some((disk.guest_name.clone(), disk.name.clone()))
    }

    /// What the work of a file I/O goes on to.
    pub(crate) fn under(&self, file: &FileIoSpan) -> Below {
        let image = self.images.get(file.image as usize);
        image.map_or(Below::Nothing, |image| {
            image.below(file, self.rpcs_recorded)
        })
    }

    /// Whether calls that carry an image's data to and from its server were recorded.
    pub(crate) fn any_has_rpcs(&self) -> bool {
        let mut images = self.images.iter();
        images.any(|image| image.has_rpcs(self.rpcs_recorded))
    }

    /// Whether the file was opened with O_DIRECT.
    pub(crate) fn is_direct(&self, image: u32) -> bool {
        self.images
            .get(image as usize)
            .is_some_and(|image| image.about.direct == Some(true))
    }

    /// Whether a bio is on a btrfs that an image lies on.
    pub(crate) fn is_on_btrfs(&self, bio: &BioSpan) -> bool {
        (0u32..)
            .zip(&self.images)
            .any(|(image, _)| self.fs_type(image) == Some("btrfs") && self.is_under(image, bio))
    }

    /// Whether a block device is known below the image.
    pub(crate) fn has_device(&self, image: u32) -> bool {
        let state = self.images.get(image as usize);
        state.is_some_and(|state| !state.first_devices.is_empty())
    }

    /// The file system that the image lies on.
    pub(crate) fn fs_type(&self, image: u32) -> Option<&str> {
        let mount = self.images.get(image as usize)?.about.mount.as_ref()?;
        Some(mount.fs_type.as_str())
    }

    /// Whether the device, or a partition of it, is one of those right under the image.
    pub(crate) fn lies_on(&self, image: ImageId, dev: DevNo) -> bool {
        self.is_over(image, dev, None)
    }

    /// Whether the image, or the file system that holds it, lies where this is; `None` for what has no place.
    pub(crate) fn is_over(&self, image: ImageId, dev: DevNo, offset: Option<u64>) -> bool {
        let state = self.images.get(image.0 as usize);
        state.is_some_and(|state| {
            let mut extents = state.first_devices.iter();
            extents.any(|extent| extent.holds(dev.0, offset))
        })
    }

    /// Whether a bio is right under an image: on the image, or on the file system that holds it.
    pub(crate) fn is_under(&self, image: u32, bio: &BioSpan) -> bool {
        self.is_over(ImageId(image), DevNo(bio.dev), bio.place())
    }

    /// Whether files of images, or of loop devices, lie on the file system with this device number.
    pub(crate) fn is_super_block(&self, dev: u32) -> bool {
        self.super_blocks.contains(&dev)
    }

    /// The driver that hands bios of a device on to others below it and has no requests of its own.
    pub(crate) fn stacking(&self, dev: u32) -> Option<Stacking> {
        let known = self.stacked.iter().find(|(stacked, _)| *stacked == dev);
        known.map(|(_, stacking)| *stacking)
    }

    /// The file system with images at a place of a device; `None` for what has no place.
    pub(crate) fn file_system_at(&self, dev: u32, offset: Option<u64>) -> Option<u32> {
        let mut found = self.volumes.at(dev, offset);
        found
            .find(|(_, volume)| volume.is_file_system)
            .map(|(number, _)| number)
    }

    /// The disks with an image on a file system, by its number of [`Self::file_system_at`].
    pub(crate) fn disks_of_file_system(&self, number: u32) -> &[u32] {
        let volume = self.volumes.get(number);
        volume.map_or(&[], |volume| volume.disks.as_slice())
    }

    /// What images lie on at a place of a device: file systems, and block devices that are images.
    pub(crate) fn volumes_at(
        &self,
        dev: u32,
        offset: Option<u64>,
    ) -> impl Iterator<Item = &Volume> {
        self.volumes.at(dev, offset).map(|(_, volume)| volume)
    }

    /// Whether a guest's disk has an image right on this device or on a partition of it.
    pub(crate) fn is_beneath(&self, dev: DevNo, disk: DiskId) -> bool {
        let mut volumes = self.volumes_at(dev.0, None);
        volumes.any(|volume| volume.disks.contains(&disk.0))
    }

    /// `images[]`.
    pub(crate) fn finish(&self, bios_recorded: bool, files_recorded: bool) -> Vec<analysis::Image> {
        let entry = |state: &ImageState| {
            let disk = self.disks.get(state.disk() as usize);
            let mut file_io = state.file.finish();
            (file_io.buffered_fallback, file_io.buffered_fallback_bytes) = state.fell_back();
            analysis::Image {
                guest: disk.map(|disk| disk.guest_name.clone()).unwrap_or_default(),
                disk: disk.map(|disk| disk.name.clone()).unwrap_or_default(),
                path: state.about.path.clone(),
                inode: state.about.inode,
                depth: state.place.depth,
                relation: state.place.relation.into(),
                format: state.about.format.clone(),
                fs_type: state
                    .about
                    .mount
                    .as_ref()
                    .map(|mount| mount.fs_type.clone()),
                servers: state.servers.clone(),
                file_io: files_recorded.then_some(file_io),
                rpcs: state
                    .has_rpcs(self.rpcs_recorded)
                    .then(|| state.file.rpcs()),
                host_bytes: (bios_recorded && !state.first_devices.is_empty())
                    .then_some(state.host_bytes),
                shared: state.shared,
            }
        };
        self.images.iter().map(entry).collect()
    }
}

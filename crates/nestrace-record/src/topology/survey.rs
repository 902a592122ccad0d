//! Collects devices and file systems while image after image is looked at; each is read once.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::Duration;

use nestrace_output::nocow;
use nestrace_probes::block_device::{self, LoopBacking};
use nestrace_probes::loop_status;
use nestrace_probes::mountinfo::{self, MountEntry};
use nestrace_trace::manifest::{Device, Image, Mount};

use super::image_file::{self, ImageFile, Viewer};
use super::{Diagnostic, ext_features, overlay};
use crate::side_by_side::side_by_side;

/// How deep loop devices may lie in files on loop devices: the kernel itself has no limit.
const MAX_DEPTH: usize = 32;
/// How long a look at a loop device's file may take.
const MAX_LOOP_LOOK: Duration = Duration::from_millis(300);

/// The state of one look at the machine.
#[derive(Debug, Default)]
pub struct Survey {
    devices: BTreeMap<u32, Device>,
    order: Vec<u32>,
    mounts: BTreeMap<u32, Vec<MountEntry>>,
    /// What could not be found out.
    pub diagnostics: Vec<Diagnostic>,
    /// The guest that is being looked at, for diagnostics.
    pub guest: Option<String>,
    depth: usize,
}

impl Survey {
    /// Notes what could not be found out; the same thing once.
    pub fn note(&mut self, subject: &str, message: String) {
        let note = Diagnostic {
            guest: self.guest.clone(),
            subject: subject.to_owned(),
            message,
        };
        if !self.diagnostics.contains(&note) {
            self.diagnostics.push(note);
        }
    }

    /// Adds what another look met: devices that are not known yet, and what it could not find out.
    pub fn absorb(&mut self, other: Self) {
        for dev in other.order {
            if let Some(device) = other.devices.get(&dev)
                && !self.devices.contains_key(&dev)
            {
                self.devices.insert(dev, device.clone());
                self.order.push(dev);
            }
        }
        for note in other.diagnostics {
            if !self.diagnostics.contains(&note) {
                self.diagnostics.push(note);
            }
        }
    }

    /// Every device that was met, upper ones first.
    #[must_use]
    pub fn into_devices(mut self) -> (Vec<Device>, Vec<Diagnostic>) {
        let devices = self
            .order
            .iter()
            .filter_map(|dev| self.devices.remove(dev))
            .collect();
        (devices, self.diagnostics)
    }

    /// Describes a file or block device, and adds the devices below it.
    pub fn image(
        &mut self,
        viewer: Viewer<'_>,
        path: &str,
        format: &str,
        file: &ImageFile,
    ) -> Image {
        let mut image = Image {
            path: path.to_owned(),
            format: format.to_owned(),
            is_block_device: file.is_block_device(),
            direct: file.direct,
            ..Image::default()
        };
        if image.is_block_device {
            image.dev = block_device::from_stat(file.about.rdev());
            // `bdev_add()` numbers the inode by the device (5.11 and later).
            image.inode = u64::from(image.dev);
            image.devices.extend(self.device(image.dev));
            image.size = self.devices.get(&image.dev).map_or(0, |d| d.size);
            image.allocated = image.size;
            return image;
        }
        image.inode = file.about.ino();
        image.size = file.about.size();
        image.allocated = file.about.blocks().saturating_mul(512);
        match self.mount_of(viewer.pid, file) {
            Some(entry)
                if entry.fs_type == "overlay" && self.in_layer(&entry, file, &mut image) => {}
            Some(entry) => {
                image.dev = entry.dev;
                image.devices = self.under(&entry, path);
                if entry.fs_type == "btrfs" {
                    let opened = file.open_for_reading();
                    image.nocow = opened.and_then(|file| nocow::is_marked(&file)).ok();
                }
                image.mount = Some(self.mount(&entry));
            }
            None => {
                image.dev = block_device::from_stat(file.about.dev());
                image.devices.extend(self.device(image.dev));
                self.note(
                    path,
                    "its mount is in none of the mount tables that can be read".to_owned(),
                );
            }
        }
        image
    }

    /// Describes a file of an overlay by the layer that holds it; `false` where that is not found.
    fn in_layer(&mut self, entry: &MountEntry, file: &ImageFile, image: &mut Image) -> bool {
        let viewer = own_view();
        let Some(path) = file.real_path() else {
            return false;
        };
        let found = overlay::candidates(entry, &path)
            .into_iter()
            .find_map(|candidate| {
                let candidate = candidate.to_string_lossy().into_owned();
                image_file::find(viewer, &candidate)
                    .ok()
                    .map(|file| (candidate, file))
            });
        let Some((layer, held)) = found else {
            return false;
        };
        // overlayfs shows size and time of the file that holds the data; the guest may have written
        // between the two looks.
        let same = held.about.size() >= file.about.size()
            && held.about.mtime().abs_diff(file.about.mtime()) <= 2;
        if !same || held.mount_id == file.mount_id || self.depth >= MAX_DEPTH {
            return false;
        }
        self.depth += 1;
        let below = self.image(viewer, &layer, &image.format, &held);
        self.depth -= 1;
        self.note(
            &image.path,
            format!("is on overlayfs; its data is in {layer}"),
        );
        *image = Image {
            path: image.path.clone(),
            direct: image.direct,
            opened: Some((file.about.ino(), entry.dev)),
            ..below
        };
        true
    }

    /// The mount that a file was opened through: in the process' own table, else in ours (a file may
    /// be handed over from another namespace), else any mount of the same super block.
    fn mount_of(&mut self, pid: u32, file: &ImageFile) -> Option<MountEntry> {
        let dev = block_device::from_stat(file.about.dev());
        let tables = [pid, 0, 1];
        let by_id = |entry: &&MountEntry| file.mount_id == Some(entry.id);
        let by_dev = |entry: &&MountEntry| entry.dev == dev;
        for pid in tables {
            if let Some(entry) = self.table(pid).iter().find(by_id) {
                return Some(entry.clone());
            }
        }
        for pid in tables {
            if let Some(entry) = self.table(pid).iter().find(by_dev) {
                return Some(entry.clone());
            }
        }
        None
    }

    fn table(&mut self, pid: u32) -> &[MountEntry] {
        self.mounts
            .entry(pid)
            .or_insert_with(|| mountinfo::read(pid).unwrap_or_default())
    }

    /// A mount for the manifest, with ext2 and ext3 distinguished from ext4 by the super block.
    fn mount(&mut self, entry: &MountEntry) -> Mount {
        let mut mount = entry.to_mount();
        if mount.fs_type == "ext4"
            && let Some(generation) = self.devices.get(&entry.dev).and_then(ext_generation)
        {
            generation.clone_into(&mut mount.fs_type);
        }
        mount
    }

    /// Devices right under a file system, by name.
    fn under(&mut self, entry: &MountEntry, path: &str) -> Vec<String> {
        let members = match entry.fs_type.as_str() {
            "btrfs" => block_device::btrfs_members(&entry.source),
            _ if entry.dev >> 20 != 0 => vec![entry.dev],
            _ => Vec::new(),
        };
        if members.is_empty() {
            let is_on_server = entry.to_mount().server().is_some();
            let message = match entry.fs_type.as_str() {
                "tmpfs" | "ramfs" | "hugetlbfs" => "is in memory: it has no block device",
                _ if is_on_server => {
                    "is on another machine: the host's block layer does not see its I/O"
                }
                "overlay" => {
                    "is on overlayfs: the layer that holds the data cannot be seen from here"
                }
                "zfs" => "is on zfs, which does not say which devices it uses",
                _ => "is on a file system that does not say which devices it uses",
            };
            self.note(
                path,
                format!("{message} ({} on {})", entry.fs_type, entry.mount_point),
            );
        }
        members
            .into_iter()
            .filter_map(|dev| self.device(dev))
            .collect()
    }

    /// Adds a device and everything below it; its name. Each device is entered before what lies
    /// below is followed, so a loop device on a file on itself ends.
    pub fn device(&mut self, dev: u32) -> Option<String> {
        if let Some(known) = self.devices.get(&dev) {
            return Some(known.name.clone());
        }
        let found = match block_device::read(dev) {
            Ok(found) => found,
            Err(error) => {
                self.note(
                    &format!("device {}:{}", dev >> 20, dev & 0xf_ffff),
                    format!("is not in sysfs: {error}"),
                );
                return None;
            }
        };
        let name = found.device.name.clone();
        self.devices.insert(dev, found.device);
        self.order.push(dev);
        if self.depth >= MAX_DEPTH {
            self.note(
                &name,
                format!("layers below {MAX_DEPTH} levels are not followed"),
            );
            return Some(name);
        }
        self.depth += 1;
        for beneath in found.beneath {
            self.device(beneath);
        }
        if let Some(backing) = found.loop_backing {
            let mut image = self.loop_file(&name, &backing);
            image.start = backing.start;
            if let Some(device) = self.devices.get_mut(&dev) {
                device.beneath.extend(image.devices.iter().cloned());
                device.loop_file = Some(image);
            }
        }
        self.depth -= 1;
        Some(name)
    }

    /// The file of a loop device and what it lies on.
    fn loop_file(&mut self, name: &str, backing: &LoopBacking) -> Image {
        let unknown = Image {
            path: backing.path.clone(),
            direct: backing.direct,
            ..Image::default()
        };
        let asked = vec![(name.to_owned(), backing.clone())];
        let looks = side_by_side(asked, 1, MAX_LOOP_LOOK, |(name, backing)| {
            let found = if backing.deleted {
                Err(io::Error::new(io::ErrorKind::NotFound, "it was deleted"))
            } else {
                image_file::find(own_view(), &backing.path)
            };
            (loop_status::backing_identity(name), found)
        });
        let Some((identity, found)) = looks.into_iter().flatten().next() else {
            self.note(
                &backing.path,
                format!(
                    "the file of {name} cannot be examined: its file system gives no answer within {} ms",
                    MAX_LOOP_LOOK.as_millis()
                ),
            );
            return Image {
                direct: backing.direct,
                ..self.image_by_path(0, &backing.path)
            };
        };
        let reason = match found {
            Ok(file) => match identity {
                Some(identity) if !file.is_block_device() && identity != file.identity() => {
                    "another file has that path here now".to_owned()
                }
                _ => {
                    let mut image = self.image(own_view(), &backing.path, "raw", &file);
                    image.direct = backing.direct;
                    return image;
                }
            },
            Err(error) => error.to_string(),
        };
        self.note(
            &backing.path,
            format!("the file of {name} cannot be examined: {reason}"),
        );
        self.loop_file_by_identity(backing, identity, unknown)
    }

    /// Describes a file by its path in the mount namespace of the process `pid` (0: the caller's own), without looking at it:
    /// its mount and the devices below.
    pub fn image_by_path(&mut self, pid: u32, path: &str) -> Image {
        let mut image = Image {
            path: path.to_owned(),
            ..Image::default()
        };
        // Nodes in /dev are answered by the kernel.
        let node = path.starts_with("/dev/").then(|| fs::metadata(path));
        if let Some(Ok(about)) = node
            && about.mode() & libc::S_IFMT == libc::S_IFBLK
        {
            image.is_block_device = true;
            image.dev = block_device::from_stat(about.rdev());
            image.devices.extend(self.device(image.dev));
            return image;
        }
        if let Some(entry) = mountinfo::above(self.table(pid), path).cloned() {
            image.dev = entry.dev;
            image.devices = self.under(&entry, path);
            image.mount = Some(entry.to_mount());
        }
        image
    }

    /// A file without a usable path: the kernel still says inode and device, which is enough to find
    /// the file system wherever `st_dev` is the super block's number.
    fn loop_file_by_identity(
        &mut self,
        backing: &LoopBacking,
        identity: Option<(u64, u64)>,
        mut image: Image,
    ) -> Image {
        let Some((dev, inode)) = identity else {
            return image;
        };
        image.inode = inode;
        image.dev = block_device::from_stat(dev);
        let entry = self.table(0).iter().find(|e| e.dev == image.dev).cloned();
        match entry {
            Some(entry) => {
                image.devices = self.under(&entry, &backing.path);
                image.mount = Some(self.mount(&entry));
            }
            None if image.dev >> 20 != 0 => image.devices.extend(self.device(image.dev)),
            None => {}
        }
        image
    }
}

/// What this process sees.
fn own_view() -> Viewer<'static> {
    Viewer {
        pid: std::process::id(),
        open: None,
    }
}

/// Reads the ext super block of a device.
fn ext_generation(device: &Device) -> Option<&'static str> {
    let (at, len) = ext_features::SUPERBLOCK;
    let mut block = vec![0; len];
    File::open(block_device::node(device)?)
        .ok()?
        .read_exact_at(&mut block, at)
        .ok()?;
    ext_features::generation(&block)
}

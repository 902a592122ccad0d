//! Where the files lie that may be named.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nestrace_probes::block_device;
use nestrace_trace::manifest::GuestMount;

use super::btrfs;
use super::noted::FileId;

/// What the guest's first process sees as `/`.
pub const GUEST_ROOT: &str = "/proc/1/root";
/// How a removed file's path ends in `/proc`.
const DELETED: &[u8] = b" (deleted)";

/// A mount with files that an inode number distinguishes.
#[derive(Clone, Debug)]
pub struct Place {
    /// The super block's device number, as the kernel records it.
    pub dev: u32,
    /// What `stat` says for its files: on btrfs another number.
    pub st_dev: u64,
    pub fs_type: String,
    pub mount_point: String,
}

/// The chosen mounts.
#[derive(Clone, Debug, Default)]
pub struct Places {
    root: PathBuf,
    /// The mount namespace that the root is of.
    namespace: Option<OsString>,
    places: Vec<Place>,
}

impl Places {
    /// Of a guest whose root is this folder, as this process sees it.
    pub fn below(root: &str, process: u32) -> Self {
        Self {
            root: PathBuf::from(root),
            namespace: mount_namespace(process),
            places: Vec::new(),
        }
    }

    /// The mounts that there are now.
    pub fn set(&mut self, mounts: &[GuestMount]) {
        let places = mounts.iter().filter_map(|mount| self.place(mount));
        self.places = places.collect();
    }

    fn place(&self, mount: &GuestMount) -> Option<Place> {
        let path = self.at(mount.mount_point.as_bytes());
        let st_dev = fs::metadata(&path).ok()?.dev();
        let is_there = match mount.fs_type.as_str() {
            "btrfs" => btrfs::has_one_tree(&open_folder(&path)?),
            _ => block_device::from_stat(st_dev) == mount.dev,
        };
        is_there.then(|| Place {
            dev: mount.dev,
            st_dev,
            fs_type: mount.fs_type.clone(),
            mount_point: mount.mount_point.clone(),
        })
    }

    /// Those of a super block.
    pub fn of(&self, dev: u32) -> impl Iterator<Item = &Place> {
        self.places.iter().filter(move |place| place.dev == dev)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Place> {
        self.places.iter()
    }

    /// Whether a user can have made this file: the first inodes are the file system's own.
    pub fn may_name(&self, (dev, inode): FileId) -> bool {
        self.of(dev).next().is_some_and(|place| {
            inode
                >= match place.fs_type.as_str() {
                    "btrfs" => 256,
                    "ext2" | "ext3" | "ext4" => 11,
                    "f2fs" => 4,
                    _ => 1,
                }
        })
    }

    /// The folder of a mount.
    pub fn open(&self, place: &Place) -> Option<File> {
        let folder = open_folder(&self.at(place.mount_point.as_bytes()))?;
        let about = folder.metadata().ok()?;
        (about.dev() == place.st_dev).then_some(folder)
    }

    /// Whether a process sees the guest's own mounts, and not a container's.
    pub fn are_those_of(&self, process: u32) -> bool {
        self.namespace.is_some() && mount_namespace(process) == self.namespace
    }

    /// The guest's path as this process reaches it.
    fn at(&self, path: &[u8]) -> PathBuf {
        let mut whole = self.root.as_os_str().to_owned();
        whole.push(OsStr::from_bytes(path));
        whole.into()
    }

    /// Whether the guest's path leads to this file.
    pub fn is_at(&self, path: &[u8], (dev, inode): FileId) -> bool {
        let about = fs::symlink_metadata(self.at(path)).ok();
        about.is_some_and(|about| {
            let is_here = |place: &Place| place.st_dev == about.dev();
            about.ino() == inode && about.is_file() && self.of(dev).any(is_here)
        })
    }

    /// The name of a file that `/proc` shows with this path. `is_guests`: the path is one of the guest's own mounts, not of a
    /// container's, so that a removed file's was right.
    pub fn name(&self, path: &[u8], file: FileId, is_guests: bool) -> Option<String> {
        let text = |path| String::from_utf8_lossy(path).into_owned();
        if self.is_at(path, file) {
            return Some(text(path));
        }
        let path = path.strip_suffix(DELETED).filter(|_| is_guests)?;
        let path_of = Path::new(OsStr::from_bytes(path));
        let is_below = |place: &Place| path_of.starts_with(&place.mount_point);
        self.of(file.0).any(is_below).then(|| text(path))
    }
}

fn mount_namespace(process: u32) -> Option<OsString> {
    let link = fs::read_link(format!("/proc/{process}/ns/mnt")).ok()?;
    Some(link.into_os_string())
}

fn open_folder(path: &Path) -> Option<File> {
    let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags).open(path).ok()
}

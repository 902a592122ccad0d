//! Names of files that are in no open descriptor: in the folders of the mounts.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ffi::OsStr;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::dir::{Dir, Type};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

use super::Limit;
use super::noted::FileId;
use super::places::{Place, Places};

/// Entries of folders that are looked at in all.
const MAX_ENTRIES: usize = 200_000;
/// Entries between two looks at the clock.
const STEP: usize = 64;

/// The names that were found.
pub fn find(wanted: BTreeSet<FileId>, places: &Places, limit: &Limit) -> Vec<(FileId, String)> {
    let mut walk = Walk {
        wanted,
        places,
        limit,
        left: MAX_ENTRIES,
        found: BTreeMap::new(),
    };
    for place in places.iter() {
        if walk.wants_any_of(place.dev)
            && let Some(folder) = places.open(place)
        {
            walk.mount(place, &folder);
        }
    }
    walk.found.into_iter().collect()
}

struct Walk<'w> {
    wanted: BTreeSet<FileId>,
    places: &'w Places,
    limit: &'w Limit,
    left: usize,
    found: BTreeMap<FileId, String>,
}

impl Walk<'_> {
    fn wants_any_of(&self, dev: u32) -> bool {
        self.wanted
            .range((dev, 0)..=(dev, u64::MAX))
            .next()
            .is_some()
    }

    /// Folder by folder, those near to the root first.
    fn mount(&mut self, place: &Place, root: &File) {
        let mut folders = VecDeque::from([PathBuf::from(".")]);
        while let Some(folder) = folders.pop_front() {
            if self.limit.is_over() || !self.wants_any_of(place.dev) {
                return;
            }
            let Some(opened) = open(root, &folder) else {
                continue;
            };
            let Ok(mut entries) = Dir::from_fd(opened) else {
                continue;
            };
            for entry in entries.iter().flatten() {
                let name = entry.file_name().to_bytes();
                if matches!(name, b"." | b"..") {
                    continue;
                }
                self.left = self.left.saturating_sub(1);
                if self.left == 0 || (self.left.is_multiple_of(STEP) && self.limit.is_over()) {
                    return;
                }
                let path = || folder.join(OsStr::from_bytes(name));
                match entry.file_type() {
                    Some(Type::Directory) => folders.push_back(path()),
                    Some(Type::File) | None => self.look(place, entry.ino(), &path()),
                    Some(_) => {}
                }
            }
        }
    }

    fn look(&mut self, place: &Place, inode: u64, path: &Path) {
        let file = (place.dev, inode);
        if !self.wanted.contains(&file) {
            return;
        }
        let path = Path::new(&place.mount_point).join(path.strip_prefix(".").unwrap_or(path));
        if self.places.is_at(path.as_os_str().as_bytes(), file) {
            self.wanted.remove(&file);
            self.found.insert(file, path.to_string_lossy().into_owned());
        }
    }
}

/// Opens a folder of this mount, over no link and no other mount. The time of its last use stays, where this process may
/// ask for that (`CAP_FOWNER`, of folders that are not root's).
fn open(root: &File, folder: &Path) -> Option<OwnedFd> {
    let resolve = ResolveFlag::RESOLVE_BENEATH
        | ResolveFlag::RESOLVE_NO_SYMLINKS
        | ResolveFlag::RESOLVE_NO_XDEV;
    let with = |more: OFlag| {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC | more;
        openat2(root, folder, OpenHow::new().flags(flags).resolve(resolve))
    };
    match with(OFlag::O_NOATIME) {
        Err(Errno::EPERM) => with(OFlag::empty()).ok(),
        opened => opened.ok(),
    }
}

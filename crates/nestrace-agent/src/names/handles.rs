//! Names of ext4's files through handles: of those that are in the kernel's memory.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;

use nix::errno::Errno;

use super::Limit;
use super::noted::FileId;
use super::places::Places;

/// `struct file_handle` with inode and generation (`FILEID_INO32_GEN`). ext4 takes the generation 0 for any.
#[repr(C)]
struct Handle {
    n_bytes: u32,
    kind: i32,
    inode: u32,
    generation: u32,
}

/// The names that were found, and the files that there are no more.
pub fn find(
    wanted: &BTreeSet<FileId>,
    places: &Places,
    limit: &Limit,
) -> (Vec<(FileId, String)>, BTreeSet<FileId>) {
    let (mut found, mut gone) = (Vec::new(), BTreeSet::new());
    for place in places.iter() {
        if !matches!(place.fs_type.as_str(), "ext2" | "ext3" | "ext4") {
            continue;
        }
        let Some(mount) = places.open(place) else {
            continue;
        };
        for file in wanted.iter().filter(|(dev, _)| *dev == place.dev) {
            if limit.is_over() {
                return (found, gone);
            }
            match open(&mount, file.1) {
                Ok(opened) => found.extend(name(&opened, *file, places).map(|name| (*file, name))),
                Err(Errno::ESTALE) => {
                    gone.insert(*file);
                }
                Err(_) => {}
            }
        }
    }
    (found, gone)
}

fn open(mount: &File, inode: u64) -> nix::Result<OwnedFd> {
    let handle = Handle {
        n_bytes: 8,
        kind: 1,
        inode: u32::try_from(inode).map_err(|_| Errno::EOVERFLOW)?,
        generation: 0,
    };
    let flags = libc::O_PATH | libc::O_CLOEXEC;
    // SAFETY: the kernel reads the handle during the call, as many bytes as it says.
    let fd = unsafe {
        libc::syscall(
            libc::SYS_open_by_handle_at,
            mount.as_raw_fd(),
            &raw const handle,
            flags,
        )
    };
    let fd = Errno::result(fd)?;
    let fd = RawFd::try_from(fd).map_err(|_| Errno::EBADF)?;
    // SAFETY: the call has just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn name(opened: &OwnedFd, file: FileId, places: &Places) -> Option<String> {
    let link = format!("/proc/self/fd/{}", opened.as_raw_fd());
    let path = fs::read_link(link).ok()?;
    // The mount was opened at the guest's root.
    places.name(path.as_os_str().as_bytes(), file, true)
}

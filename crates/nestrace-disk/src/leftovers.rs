//! What the program makes in its folder, and how it goes: the mount, loop devices over the file, the socket.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use nix::mount::{MntFlags, umount2};

use crate::file_system::FILE;

/// Where the file system is mounted.
pub fn mount_point(folder: &Path) -> PathBuf {
    folder.join("mnt")
}

/// The socket that takes commands.
pub fn socket(folder: &Path) -> PathBuf {
    folder.join("control")
}

/// Takes everything down that is still there. A loop device in use is detached when its last user closes it.
pub fn remove(folder: &Path) {
    let mount_point = mount_point(folder);
    detach_loop_devices(&mount_point.join(FILE));
    let _ = umount2(&mount_point, MntFlags::MNT_DETACH);
    let _ = std::fs::remove_file(socket(folder));
    let _ = std::fs::remove_dir(&mount_point);
    let _ = std::fs::remove_dir(folder);
}

fn detach_loop_devices(file: &Path) {
    let Some(file) = file.canonicalize().ok().or_else(|| Some(file.to_owned())) else {
        return;
    };
    for entry in std::fs::read_dir("/sys/block")
        .into_iter()
        .flatten()
        .flatten()
    {
        let backing = std::fs::read_to_string(entry.path().join("loop/backing_file"));
        if backing.is_ok_and(|path| Path::new(path.trim_end_matches('\n')) == file) {
            detach(&Path::new("/dev").join(entry.file_name()));
        }
    }
}

fn detach(device: &Path) {
    /// `LOOP_CLR_FD` of linux/loop.h.
    const LOOP_CLR_FD: libc::c_ulong = 0x4C01;
    if let Ok(device) = File::open(device) {
        // SAFETY: this ioctl has no argument.
        unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CLR_FD) };
    }
}

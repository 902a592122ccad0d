//! Finding the file that QEMU has open for an image's path, and looking at it without touching it.

use std::ffi::CStr;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{OFlag, PosixFadviseAdvice, posix_fadvise};

use super::image_header::{self, HeaderError, ImageHeader, MAX_HEADER};
use super::namespace;
use super::open_files::{OpenFile, OpenFiles};

/// The process that a path is looked up for.
#[derive(Clone, Copy, Debug)]
pub struct Viewer<'a> {
    /// Process id; the caller's own for loop devices' files.
    pub pid: u32,
    /// Its open files, where they could be read.
    pub open: Option<&'a OpenFiles>,
}

/// A file that was found.
#[derive(Debug)]
pub struct ImageFile {
    /// What `stat` says.
    pub about: Metadata,
    /// Open with O_DIRECT by the process; `None` if it is not open there, or with both.
    pub direct: Option<bool>,
    /// The mount it was reached through.
    pub mount_id: Option<u64>,
    /// The path leads to a file that the process does not have open.
    pub not_open: bool,
    /// A way to open it that no rename or mount can divert.
    handle: PathBuf,
    /// Keeps `handle` alive.
    _file: Option<File>,
}

impl ImageFile {
    /// A block device.
    #[must_use]
    pub fn is_block_device(&self) -> bool {
        self.about.mode() & libc::S_IFMT == libc::S_IFBLK
    }

    /// Equal for the same file only.
    #[must_use]
    pub fn identity(&self) -> FileIdentity {
        identity(&self.about)
    }

    /// The path as the kernel has it, symbolic links resolved; `None` for a file without a name.
    #[must_use]
    pub fn real_path(&self) -> Option<PathBuf> {
        (self.about.nlink() > 0)
            .then(|| fs::read_link(&self.handle).ok())
            .flatten()
    }

    /// Reads the format's header, which begins at byte `start`.
    ///
    /// # Errors
    ///
    /// Where the file cannot be read. A header that is not understood is the inner error.
    pub fn header(&self, start: u64) -> io::Result<Result<ImageHeader, HeaderError>> {
        let file = self.open_for_reading()?;
        // No read-ahead on QEMU's image for the sake of one block.
        let _ = posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_RANDOM);
        let mut wanted = 4096;
        loop {
            let bytes = read_from(&file, start, wanted)?;
            if let Some(more) = image_header::at_least(&bytes).filter(|more| *more > wanted) {
                wanted = more;
                continue;
            }
            match image_header::parse(&bytes) {
                Err(HeaderError::NeedsMore { needed, .. })
                    if needed > wanted && needed <= MAX_HEADER && bytes.len() == wanted =>
                {
                    wanted = needed;
                }
                result => return Ok(result),
            }
        }
    }

    /// Read-only, and without a new access time where this user may ask for that.
    ///
    /// # Errors
    ///
    /// What the system says, and for what is neither a regular file nor a block device.
    pub fn open_for_reading(&self) -> io::Result<File> {
        let open = |extra| {
            OpenOptions::new()
                .read(true)
                .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | extra)
                .open(&self.handle)
        };
        if !self.about.is_file() && !self.is_block_device() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "neither a regular file nor a block device",
            ));
        }
        open(libc::O_NOATIME).or_else(|_| open(0))
    }
}

/// `st_dev` and inode; of a block device 0 and its number.
pub type FileIdentity = (u64, u64);

/// Of a file that was looked at.
#[must_use]
pub fn identity(about: &Metadata) -> FileIdentity {
    if about.mode() & libc::S_IFMT == libc::S_IFBLK {
        (0, about.rdev())
    } else {
        (about.dev(), about.ino())
    }
}

/// Of the file of this name in an open folder, if it is a regular file or a block device. Nothing but its kind is asked for, and no server:
/// for the times of a file on NFS the kernel first writes back all of it (`nfs_getattr`, 6.12).
#[must_use]
pub fn identity_in(folder: BorrowedFd<'_>, name: &CStr) -> Option<FileIdentity> {
    let mask = libc::STATX_TYPE | libc::STATX_INO;
    let mut about = MaybeUninit::<libc::statx>::zeroed();
    // SAFETY: the path ends with a NUL, and there is room for the answer.
    let done = unsafe {
        libc::statx(
            folder.as_raw_fd(),
            name.as_ptr(),
            libc::AT_STATX_DONT_SYNC,
            mask,
            about.as_mut_ptr(),
        )
    };
    if done != 0 {
        return None;
    }
    // SAFETY: integers, all zero before the kernel wrote them.
    let about = unsafe { about.assume_init() };
    match u32::from(about.stx_mode) & libc::S_IFMT {
        libc::S_IFBLK => {
            let dev = libc::makedev(about.stx_rdev_major, about.stx_rdev_minor);
            Some((0, dev))
        }
        libc::S_IFREG => {
            let dev = libc::makedev(about.stx_dev_major, about.stx_dev_minor);
            Some((dev, about.stx_ino))
        }
        _ => None,
    }
}

/// Up to `len` bytes from the start.
fn read_from(file: &File, start: u64, len: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|r| !r.is_empty()) {
        match file.read_at(rest, start.saturating_add(filled as u64)) {
            Ok(0) => break,
            Ok(n) => filled += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    bytes.truncate(filled);
    Ok(bytes)
}

/// Finds the file that `path` means to `viewer`. What it has open counts more than what the path
/// leads to by now: an image that was deleted, renamed or replaced is still the one it uses.
///
/// # Errors
///
/// Where the path leads nowhere and no open file has it.
pub fn find(viewer: Viewer<'_>, path: &str) -> io::Result<ImageFile> {
    if let Some(fd) = path.strip_prefix("/proc/self/fd/") {
        let open = viewer
            .open
            .and_then(|o| o.files.iter().find(|f| f.fd.to_string() == fd));
        return open.map_or_else(
            || Err(io::ErrorKind::NotFound.into()),
            |f| from_open(viewer, f),
        );
    }
    if path.starts_with("/dev/fdset/") {
        return Err(io::Error::other(
            "only QMP says which descriptor of QEMU that is",
        ));
    }
    let at_path = by_path(viewer.pid, path);
    let Some(open) = viewer.open else {
        return at_path;
    };
    if let Ok(file) = &at_path
        && let Some(open) = open.files.iter().find(|f| f.identity == file.identity())
    {
        return from_open(viewer, open);
    }
    let real = real_path(viewer.pid, path);
    if let Some(deleted) = open
        .files
        .iter()
        .find(|f| f.deleted && (f.path == path || Some(&f.path) == real.as_ref()))
    {
        return from_open(viewer, deleted);
    }
    at_path.map(|file| ImageFile {
        not_open: true,
        ..file
    })
}

/// By a descriptor of the process.
fn from_open(viewer: Viewer<'_>, open: &OpenFile) -> io::Result<ImageFile> {
    let handle = PathBuf::from(format!("/proc/{}/fd/{}", viewer.pid, open.fd));
    let about = fs::metadata(&handle)?;
    let same: Vec<bool> = viewer
        .open
        .into_iter()
        .flat_map(|o| &o.files)
        .filter(|f| f.identity == open.identity)
        .map(|f| f.direct)
        .collect();
    let direct = same
        .iter()
        .all(|d| *d == open.direct)
        .then_some(open.direct);
    Ok(ImageFile {
        about,
        direct,
        mount_id: open.mount_id,
        not_open: false,
        handle,
        _file: None,
    })
}

/// By the path, below the process' root; for a process that may not be looked into, below our own.
fn by_path(pid: u32, path: &str) -> io::Result<ImageFile> {
    let file = match namespace::open_in_root(pid, Path::new(path), OFlag::O_PATH) {
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_PATH | libc::O_CLOEXEC)
            .open(path)?,
        result => result?,
    };
    let handle = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let info =
        fs::read_to_string(format!("/proc/self/fdinfo/{}", file.as_raw_fd())).unwrap_or_default();
    let mount_id = info
        .lines()
        .find_map(|l| l.strip_prefix("mnt_id:"))
        .and_then(|v| v.trim().parse().ok());
    Ok(ImageFile {
        about: file.metadata()?,
        direct: None,
        mount_id,
        not_open: false,
        handle,
        _file: Some(file),
    })
}

/// The path with the symbolic links of its directory resolved, as `/proc/PID/fd` shows it.
fn real_path(pid: u32, path: &str) -> Option<String> {
    let (parent, name) = path.rsplit_once('/')?;
    let parent = if parent.is_empty() { "/" } else { parent };
    let directory =
        namespace::open_in_root(pid, Path::new(parent), OFlag::O_PATH | OFlag::O_DIRECTORY).ok()?;
    let real = fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).ok()?;
    Some(real.join(name).to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::unix::ffi::OsStrExt;

    use nix::fcntl::AT_FDCWD;

    use super::*;

    fn identity_at(path: &Path) -> Option<FileIdentity> {
        let path = CString::new(path.as_os_str().as_bytes()).ok()?;
        identity_in(AT_FDCWD, &path)
    }

    #[test]
    fn a_look_without_times_finds_the_same_file() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let known = identity(&file.as_file().metadata().unwrap());
        let descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
        for path in [file.path(), Path::new(&descriptor)] {
            assert_eq!(identity_at(path), Some(known));
        }
        for other in ["/dev/null", "/proc/self", "/nowhere", "/\0"] {
            assert_eq!(identity_at(Path::new(other)), None, "{other:?}");
        }
        let nodes = fs::read_dir("/dev").unwrap().flatten();
        let nodes = nodes.filter_map(|node| Some((node.path(), fs::metadata(node.path()).ok()?)));
        for (path, about) in nodes.filter(|(_, about)| about.mode() & libc::S_IFMT == libc::S_IFBLK)
        {
            assert_eq!(identity_at(&path), Some(identity(&about)));
        }
    }
}

//! A directory that is held open: what is made in it lies there, whatever its name has come to mean.
//!
//! A recorder that runs as root makes its bundle in a folder that is often somebody else's, and under sudo
//! gives the bundle away while it still writes into it. So no path is followed twice, no file is made
//! where something is already, and the last part of a name is never a symbolic link.

use std::{
    ffi::OsString,
    fs::{self, File},
    io,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd},
        unix::fs::MetadataExt,
    },
    path::Path,
};

use crate::sudo_user;
use nix::{
    NixPath,
    errno::Errno,
    fcntl::{AtFlags, OFlag, open, openat, renameat},
    sys::stat::{Mode, mkdirat},
    unistd::{Gid, Uid, UnlinkatFlags, fchown, fchownat, unlinkat},
};

/// A bundle says which programs and files there are and who uses them: it is its owner's alone, as `perf.data` is.
const FOLDER: Mode = Mode::S_IRWXU;
const FILE: Mode = Mode::S_IRUSR.union(Mode::S_IWUSR);

/// An open directory. Names are of what is directly in it.
#[derive(Debug)]
pub struct HeldDir(File);

impl From<File> for HeldDir {
    /// A directory that was opened for reading.
    fn from(dir: File) -> Self {
        Self(dir)
    }
}

impl HeldDir {
    /// The folder in which `path` is or is to be.
    ///
    /// # Errors
    /// Where there is no such folder, or it may not be looked into.
    pub fn around(path: &Path) -> io::Result<Self> {
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(open(folder, flags, Mode::empty())?.into()))
    }

    /// A folder that is there. Here a symbolic link is followed, once.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        Ok(Self(open(path, flags, Mode::empty())?.into()))
    }

    /// The same directory through another descriptor.
    ///
    /// # Errors
    /// Where the process has too many.
    pub fn try_clone(&self) -> io::Result<Self> {
        Ok(Self(self.0.try_clone()?))
    }

    /// Whether there is anything of that name.
    #[must_use]
    pub fn has(&self, name: impl AsRef<Path>) -> bool {
        self.open_as(name.as_ref(), OFlag::O_PATH).is_ok()
    }

    /// A directory in it.
    ///
    /// # Errors
    /// What the system says; `ENOTDIR` for a symbolic link too.
    pub fn open_dir(&self, name: impl AsRef<Path>) -> io::Result<Self> {
        let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY;
        Ok(Self(self.open_as(name.as_ref(), flags)?))
    }

    /// Makes a directory in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn make_dir(&self, name: impl AsRef<Path>) -> io::Result<Self> {
        mkdirat(&self.0, name.as_ref(), FOLDER)?;
        self.open_dir(name)
    }

    /// Makes a file in it, which must not be there yet. Under sudo it belongs to the user who typed the command.
    ///
    /// # Errors
    /// What the system says.
    pub fn new_file(&self, name: impl AsRef<Path>) -> io::Result<File> {
        let flags = OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL | OFlag::O_CLOEXEC;
        let file = File::from(openat(&self.0, name.as_ref(), flags, FILE)?);
        give_to_user(&file);
        Ok(file)
    }

    /// Under sudo the directory belongs to the user who typed the command from now on.
    pub fn give_to_user(&self) {
        give_to_user(&self.0);
    }

    /// Whether both are one directory.
    #[must_use]
    pub fn is_same_as(&self, other: &Self) -> bool {
        let place = |dir: &Self| dir.0.metadata().map(|data| (data.dev(), data.ino()));
        matches!((place(self), place(other)), (Ok(one), Ok(two)) if one == two)
    }

    /// Under sudo the directory and what lies directly in it belong to the user who typed the command from now on.
    /// What cannot be given stays root's: it can be read.
    pub fn give_all_to_user(&self) {
        if let Some((uid, gid)) = sudo_user() {
            self.give_all(uid, gid);
        }
    }

    /// The directory and what lies directly in it belong to this user (and group) from now on, who goes on writing it.
    ///
    /// # Errors
    /// Where a file cannot be given away, as on a file system without owners.
    pub fn lend_to(&self, (uid, gid): (u32, u32)) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
        for name in self.names()? {
            let file = self.open_as(Path::new(&name), OFlag::O_PATH)?;
            fchownat(&file, "", Some(uid), Some(gid), AtFlags::AT_EMPTY_PATH)?;
        }
        Ok(fchown(&self.0, Some(uid), Some(gid))?)
    }

    /// The directory and what this user made in it belong to the caller from now on.
    ///
    /// # Errors
    /// What the system says.
    pub fn take_back(&self, from: u32) -> io::Result<()> {
        let (uid, gid) = (Uid::effective(), Gid::effective());
        // First, so that nothing is put into it meanwhile.
        fchown(&self.0, Some(uid), Some(gid))?;
        for name in self.names()? {
            let file = self.open_as(Path::new(&name), OFlag::O_PATH)?;
            let meta = file.metadata()?;
            if meta.is_file() && meta.nlink() == 1 && meta.uid() == from {
                fchownat(&file, "", Some(uid), Some(gid), AtFlags::AT_EMPTY_PATH)?;
            }
        }
        Ok(())
    }

    /// Links, special files and files that have another name too stay whose they are: others may have put them there.
    fn give_all(&self, uid: Uid, gid: Gid) {
        for name in self.names().unwrap_or_default() {
            let Ok(file) = self.open_as(Path::new(&name), OFlag::O_PATH) else {
                continue;
            };
            let is_plain =
                |meta: &fs::Metadata| meta.is_dir() || meta.is_file() && meta.nlink() == 1;
            if file.metadata().is_ok_and(|meta| is_plain(&meta)) {
                let _ = fchownat(&file, "", Some(uid), Some(gid), AtFlags::AT_EMPTY_PATH);
            }
        }
        let _ = fchown(&self.0, Some(uid), Some(gid));
    }

    /// Whether it has a plain file of that name, with no other name, that its own owner or this user made.
    #[must_use]
    pub fn has_own(&self, name: impl AsRef<Path>) -> bool {
        let file = self.open_as(name.as_ref(), OFlag::O_PATH);
        let of_file = file.and_then(|file| file.metadata());
        let (Ok(file), Ok(dir)) = (of_file, self.0.metadata()) else {
            return false;
        };
        let owners = [dir.uid(), Uid::effective().as_raw()];
        file.is_file() && file.nlink() == 1 && owners.contains(&file.uid())
    }

    /// Bytes that the files in it take.
    #[must_use]
    pub fn allocated_bytes(&self) -> u64 {
        let of = |name: OsString| {
            let file = self.open_as(Path::new(&name), OFlag::O_PATH).ok()?;
            Some(file.metadata().ok()?.blocks().saturating_mul(512))
        };
        let names = self.names().unwrap_or_default().into_iter();
        names.filter_map(of).fold(0, u64::saturating_add)
    }

    /// What is in it.
    ///
    /// # Errors
    /// What the system says.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        // This link leads to the open directory itself.
        let entries = fs::read_dir(format!("/proc/self/fd/{}", self.0.as_raw_fd()))?;
        entries.map(|entry| Ok(entry?.file_name())).collect()
    }

    /// Puts the files in it on the disk.
    ///
    /// # Errors
    /// What the system says.
    pub fn sync(&self) -> io::Result<()> {
        for name in self.names()? {
            let file = self.open_as(Path::new(&name), OFlag::O_RDONLY | OFlag::O_NONBLOCK)?;
            file.sync_all()?;
        }
        Ok(())
    }

    /// Gives something in it another name, which must be free.
    ///
    /// # Errors
    /// What the system says.
    pub fn rename_new(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        match self.rename_with(from.as_ref(), to.as_ref(), libc::RENAME_NOREPLACE) {
            // A file system without that flag: a directory replaces an empty one at most.
            Err(Errno::EINVAL | Errno::ENOSYS) => self.rename(from, to),
            renamed => Ok(renamed?),
        }
    }

    /// Gives something in it another name; what had that before is gone.
    ///
    /// # Errors
    /// What the system says.
    pub fn rename(&self, from: impl AsRef<Path>, to: impl AsRef<Path>) -> io::Result<()> {
        Ok(renameat(&self.0, from.as_ref(), &self.0, to.as_ref())?)
    }

    /// Lets two names in it change places.
    ///
    /// # Errors
    /// What the system says; some file systems cannot.
    pub fn exchange(&self, one: impl AsRef<Path>, other: impl AsRef<Path>) -> io::Result<()> {
        Ok(self.rename_with(one.as_ref(), other.as_ref(), libc::RENAME_EXCHANGE)?)
    }

    /// nix and musl have no `renameat2` for each other.
    fn rename_with(&self, from: &Path, to: &Path, flags: libc::c_uint) -> nix::Result<()> {
        let dir = self.0.as_raw_fd();
        let result = from.with_nix_path(|from| {
            to.with_nix_path(|to| {
                // SAFETY: both paths end with a NUL and outlive the call, which only reads them.
                unsafe {
                    libc::syscall(
                        libc::SYS_renameat2,
                        dir,
                        from.as_ptr(),
                        dir,
                        to.as_ptr(),
                        flags,
                    )
                }
            })
        })??;
        Errno::result(result).map(drop)
    }

    /// Removes a file. One that is not there is no error.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove_file(&self, name: impl AsRef<Path>) -> io::Result<()> {
        match unlinkat(&self.0, name.as_ref(), UnlinkatFlags::NoRemoveDir) {
            Err(Errno::ENOENT) => Ok(()),
            removed => Ok(removed?),
        }
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// What the system says.
    pub fn remove_dir(&self, name: impl AsRef<Path>) -> io::Result<()> {
        Ok(unlinkat(&self.0, name.as_ref(), UnlinkatFlags::RemoveDir)?)
    }

    /// What is there already, but no symbolic link.
    fn open_as(&self, name: &Path, flags: OFlag) -> io::Result<File> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        Ok(openat(&self.0, name, flags, Mode::empty())?.into())
    }
}

impl AsFd for HeldDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Where that fails the file stays root's: it can be read.
fn give_to_user(file: &File) {
    if let Some((uid, gid)) = sudo_user() {
        let _ = fchown(file, Some(uid), Some(gid));
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_link_is_neither_followed_nor_written_through() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        fs::create_dir(path("elsewhere")).unwrap();
        fs::write(path("precious"), "x").unwrap();
        symlink("elsewhere", path("dir")).unwrap();
        symlink("precious", path("file")).unwrap();
        symlink("nothing", path("dangling")).unwrap();
        let dir = HeldDir::around(&path("a")).unwrap();
        assert!(dir.has("dir") && dir.has("dangling") && !dir.has("nothing"));
        let refused = dir.open_dir("dir").unwrap_err().raw_os_error();
        assert_eq!(refused, Some(libc::ENOTDIR));
        for name in ["file", "dangling", "elsewhere"] {
            let refused = dir.new_file(name).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::AlreadyExists, "{name}");
        }
        assert!(dir.make_dir("dir").is_err() && dir.remove_dir("dir").is_err());
        dir.remove_file("file").unwrap();
        assert_eq!(fs::read(path("precious")).unwrap(), b"x");
        assert!(!path("nothing").exists());
    }

    #[test]
    fn what_lies_in_it_is_given_and_nothing_that_a_link_leads_to() {
        if !Uid::effective().is_root() {
            eprintln!("skipped: only root gives files away");
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        for dir in ["results", "results/cell.nest", "elsewhere"] {
            fs::create_dir(path(dir)).unwrap();
        }
        for file in [
            "precious",
            "results/report.json",
            "results/cell.nest/host.arrows",
        ] {
            fs::write(path(file), "x").unwrap();
        }
        symlink(path("precious"), path("results/link")).unwrap();
        symlink(path("elsewhere"), path("results/dir")).unwrap();
        fs::hard_link(path("precious"), path("results/also")).unwrap();
        let dir = HeldDir::open(&path("results")).unwrap();
        dir.give_all(Uid::from_raw(1234), Gid::from_raw(1235));
        let owner = |name: &str| {
            let meta = fs::symlink_metadata(path(name)).unwrap();
            (meta.uid(), meta.gid())
        };
        for given in ["results", "results/cell.nest", "results/report.json"] {
            assert_eq!(owner(given), (1234, 1235), "{given}");
        }
        for kept in [
            "precious",
            "elsewhere",
            "results/link",
            "results/cell.nest/host.arrows",
        ] {
            assert_eq!(owner(kept).0, 0, "{kept}");
        }
    }

    #[test]
    fn what_is_made_in_it_lies_there_when_it_is_called_otherwise() {
        let root = tempfile::tempdir().unwrap();
        let (first, second) = (root.path().join("first"), root.path().join("second"));
        let dir = HeldDir::around(&first).unwrap().make_dir("first").unwrap();
        fs::rename(&first, &second).unwrap();
        fs::create_dir(&first).unwrap();
        dir.new_file("a").unwrap();
        dir.new_file("b").unwrap();
        let taken = dir.rename_new("a", "b").unwrap_err();
        assert_eq!(taken.kind(), io::ErrorKind::AlreadyExists);
        dir.rename("a", "b").unwrap();
        dir.sync().unwrap();
        assert_eq!(dir.names().unwrap(), ["b"]);
        assert!(second.join("b").exists() && !first.join("b").exists());
    }
}

//! The folder of devices and images. Root opens files in it by path, and the folder of results around it may belong to
//! another user. So it belongs to root, no other user can create files in it, and a symbolic link in its place is
//! refused.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::{Mode, mkdirat};
use nix::unistd::geteuid;

/// Its name in the folder of results.
pub(super) const WORK: &str = "work";

/// Who gets into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reader {
    /// The lab and what it starts.
    Lab,
    /// The user of a QEMU that libvirt started, too: it has to reach the images.
    OtherQemu,
}

/// Makes it, or takes the one that is there if it is this user's.
///
/// # Errors
/// A link or somebody else's folder has its name (`PermissionDenied`), or what the system says.
pub(super) fn make(results: &Path, reader: Reader) -> io::Result<PathBuf> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let held = File::options()
        .read(true)
        .custom_flags(flags.bits())
        .open(results)?;
    match mkdirat(&held, WORK, Mode::S_IRWXU) {
        Ok(()) | Err(Errno::EEXIST) => {}
        Err(errno) => return Err(errno.into()),
    }
    let work = match openat(&held, WORK, flags | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(work) => File::from(work),
        Err(Errno::ENOTDIR | Errno::ELOOP) => return Err(io::ErrorKind::PermissionDenied.into()),
        Err(errno) => return Err(errno.into()),
    };
    if work.metadata()?.uid() != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    // Of one that was there, too.
    work.set_permissions(Permissions::from_mode(match reader {
        Reader::Lab => 0o700,
        Reader::OtherQemu => 0o711,
    }))?;
    Ok(results.join(WORK))
}

/// Whether it is still there as it was made. Who owns the folder of results may have put something else in its place
/// while the lab worked.
///
/// # Errors
/// Something else is there (`PermissionDenied`), or nothing.
pub(super) fn check(work: &Path) -> io::Result<()> {
    let about = work.symlink_metadata()?;
    let is_own = about.is_dir() && about.uid() == geteuid().as_raw();
    if is_own {
        Ok(())
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn it_is_the_labs_own() {
        let results = tempfile::tempdir().unwrap();
        let work = make(results.path(), Reader::Lab).unwrap();
        assert_eq!(mode(&work), 0o700);
        check(&work).unwrap();
        // A later start of a plan with a guest of the user's.
        assert_eq!(make(results.path(), Reader::OtherQemu).unwrap(), work);
        assert_eq!(mode(&work), 0o711);
    }

    #[test]
    fn a_link_in_its_place_is_refused() {
        let results = tempfile::tempdir().unwrap();
        let precious = tempfile::tempdir().unwrap();
        let before = mode(precious.path());
        let work = results.path().join(WORK);
        std::os::unix::fs::symlink(precious.path(), &work).unwrap();
        for error in [
            make(results.path(), Reader::OtherQemu).unwrap_err(),
            check(&work).unwrap_err(),
        ] {
            assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        }
        assert_eq!(mode(precious.path()), before);
        std::fs::remove_file(&work).unwrap();
        std::fs::write(&work, "x").unwrap();
        assert!(make(results.path(), Reader::Lab).is_err() && check(&work).is_err());
    }

    #[test]
    fn somebody_elses_is_refused() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root gives folders away");
            return;
        }
        let results = tempfile::tempdir().unwrap();
        let work = make(results.path(), Reader::Lab).unwrap();
        std::os::unix::fs::chown(&work, Some(1234), Some(1235)).unwrap();
        assert!(make(results.path(), Reader::Lab).is_err());
        assert!(check(&work).is_err());
    }
}

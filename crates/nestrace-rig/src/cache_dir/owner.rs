//! The owner of the cache: what root makes in a user's folder belongs to that user, who can remove it.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, fchown, lchown};
use std::path::{Path, PathBuf};

use nix::unistd::geteuid;

/// Makes a folder with those above it, each for the owner of the one that it lies in.
///
/// # Errors
/// One of them cannot be made, or not be given away.
pub(super) fn make_folder(folder: &Path) -> io::Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    let above = folder
        .parent()
        .filter(|above| !above.as_os_str().is_empty());
    if let Some(above) = above {
        make_folder(above)?;
    }
    match std::fs::create_dir(folder) {
        // Another run was first.
        Err(_) if folder.is_dir() => return Ok(()),
        made => made?,
    }
    match above.map(heir).transpose()?.flatten() {
        Some((user, group)) => lchown(folder, Some(user), Some(group)),
        None => Ok(()),
    }
}

/// Gives a folder with all that is in it to the owner of `root`. The folder itself goes last: until then only root
/// can put anything into it, so that no path in it leads elsewhere.
///
/// # Errors
/// An owner cannot be set.
pub(super) fn give(folder: &File, root: &Path) -> io::Result<()> {
    let Some((user, group)) = heir(root)? else {
        return Ok(());
    };
    let place = PathBuf::from(format!("/proc/self/fd/{}", folder.as_raw_fd()));
    give_content(&place, user, group)?;
    fchown(folder, Some(user), Some(group))
}

fn give_content(folder: &Path, user: u32, group: u32) -> io::Result<()> {
    for entry in folder.read_dir()? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            give_content(&entry.path(), user, group)?;
        }
        lchown(entry.path(), Some(user), Some(group))?;
    }
    Ok(())
}

/// User and group of what root makes in a folder; `None` where it stays its maker's.
fn heir(folder: &Path) -> io::Result<Option<(u32, u32)>> {
    let about = folder.metadata()?;
    let is_given = geteuid().is_root() && about.uid() != 0;
    Ok(is_given.then(|| (about.uid(), about.gid())))
}

#[cfg(test)]
mod tests {
    use super::super::{CacheError, entry};
    use super::*;

    #[test]
    fn what_root_makes_in_a_users_folder_is_the_users() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root gives files away");
            return;
        }
        let home = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(home.path(), Some(1234), Some(1235)).unwrap();
        let cache = home.path().join(".cache/nestrace");
        make_folder(&cache).unwrap();
        let precious = tempfile::NamedTempFile::new().unwrap();
        let made = entry(&cache, "a", |folder| -> Result<(), CacheError> {
            let inner = folder.join("inner");
            std::fs::create_dir(&inner).unwrap();
            std::fs::write(inner.join("file"), "x").unwrap();
            std::os::unix::fs::symlink(precious.path(), inner.join("link")).unwrap();
            Ok(())
        });
        let made = made.unwrap();
        let inner = made.join("inner");
        for path in [
            home.path().join(".cache"),
            cache,
            made,
            inner.join("file"),
            inner.join("link"),
            inner,
        ] {
            let about = path.symlink_metadata().unwrap();
            assert_eq!((about.uid(), about.gid()), (1234, 1235), "{path:?}");
        }
        // What a link leads to is somebody else's.
        assert_eq!(precious.path().metadata().unwrap().uid(), 0);
    }
}

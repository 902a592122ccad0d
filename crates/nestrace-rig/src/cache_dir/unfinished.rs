//! An entry of the cache that is being made: a locked folder under a temporary name.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::geteuid;
use tempfile::TempDir;

use super::owner;

const PREFIX: &str = ".unfinished-";
/// A younger folder may be one that its owner did not lock yet.
const YOUNG: Duration = Duration::from_secs(60);

/// Dropping it removes the folder.
#[derive(Debug)]
pub(super) struct Unfinished {
    folder: TempDir,
    /// As long as it is made: who finds it without this lock may remove it.
    lock: Flock<File>,
}

impl Unfinished {
    pub(super) fn new(root: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(root)?;
        let lock = locked(folder.path())?;
        Ok(Self { folder, lock })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Gives it its name, once all of it is on the disk: a name that a crash leaves is that of a whole entry.
    ///
    /// # Errors
    /// It cannot be written back, or somebody else has finished the same entry.
    pub(super) fn finish(self, place: &Path) -> io::Result<()> {
        nix::unistd::syncfs(&*self.lock)?;
        owner::give(&self.lock, place.parent().unwrap_or(place))?;
        std::fs::rename(self.folder.path(), place)?;
        // Nothing has its temporary name any more.
        let _ = self.folder.keep();
        Ok(())
    }
}

/// Of a folder that this user made, and of no link in its place.
fn locked(folder: &Path) -> io::Result<Flock<File>> {
    let flags = OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW;
    let file = File::options()
        .read(true)
        .custom_flags(flags.bits())
        .open(folder)?;
    if file.metadata()?.uid() != geteuid().as_raw() {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Flock::lock(file, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| errno.into())
}

/// Removes what runs that were killed left half made; what others make now stays.
pub(super) fn remove_abandoned(root: &Path) {
    let entries = root.read_dir().into_iter().flatten().flatten();
    for entry in entries {
        let is_unfinished = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let modified = entry.metadata().and_then(|about| about.modified());
        let age = modified.map(|time| time.elapsed().unwrap_or_default());
        if is_unfinished
            && age.is_ok_and(|age| age > YOUNG)
            && let Ok(_lock) = locked(&entry.path())
        {
            // What cannot be removed takes room and does no other harm.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn what_a_killed_run_left_is_removed_and_what_others_make_stays() {
        let root = tempfile::tempdir().unwrap();
        let old = |folder: &Path| {
            let file = File::open(folder).unwrap();
            file.set_modified(SystemTime::now() - 2 * YOUNG).unwrap();
        };
        let abandoned = root.path().join(".unfinished-killed");
        std::fs::create_dir(&abandoned).unwrap();
        std::fs::write(abandoned.join("database.raw"), "half").unwrap();
        old(&abandoned);
        let young = root.path().join(".unfinished-young");
        let whole = root.path().join("tree-10-0");
        for folder in [&young, &whole] {
            std::fs::create_dir(folder).unwrap();
        }
        old(&whole);
        let made = Unfinished::new(root.path()).unwrap();
        std::fs::write(made.path().join("file"), "x").unwrap();
        old(made.path());
        remove_abandoned(root.path());
        assert!(!abandoned.exists());
        assert!(young.exists() && whole.exists() && made.path().join("file").exists());

        let place = root.path().join("tree-20-0");
        made.finish(&place).unwrap();
        assert_eq!(std::fs::read(place.join("file")).unwrap(), b"x");
        // Another lab was first: its entry stays, and nothing else.
        let late = Unfinished::new(root.path()).unwrap();
        assert!(late.finish(&place).is_err());
        assert_eq!(root.path().read_dir().unwrap().count(), 3);
        assert_eq!(std::fs::read(place.join("file")).unwrap(), b"x");
    }
}

//! The folder of a guest's sockets, console and initramfs. A run that SIGKILL ends leaves its folders: the next guest
//! that anybody of this user boots removes them.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::geteuid;
use tempfile::TempDir;

/// What the folders' names begin with.
pub const PREFIX: &str = "nestrace-guest-";
/// The file that the owner has locked. A folder without it is not ours to judge: it is another program's, or its owner is
/// about to make it.
const OWNER: &str = "owner";

/// Dropping it removes the folder.
#[derive(Debug)]
pub(crate) struct GuestFolder {
    folder: TempDir,
    /// Released by the kernel when the owner is gone, however it ended; no child has it.
    _lock: Flock<File>,
}

impl GuestFolder {
    /// Makes one among the temporary files, and removes those that killed runs left there.
    ///
    /// # Errors
    /// What the system says.
    pub(crate) fn new() -> io::Result<Self> {
        let place = std::env::temp_dir();
        remove_abandoned(&place);
        Self::new_in(&place)
    }

    fn new_in(place: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new().prefix(PREFIX).tempdir_in(place)?;
        // The file gets its name only once it is locked, so it is never seen unlocked while its owner lives.
        let unfinished = folder.path().join(".owner");
        let file = File::options()
            .write(true)
            .create_new(true)
            .open(&unfinished)?;
        let lock = Flock::lock(file, FlockArg::LockExclusiveNonblock)
            .map_err(|(_, errno)| io::Error::from(errno))?;
        std::fs::rename(&unfinished, folder.path().join(OWNER))?;
        Ok(Self {
            folder,
            _lock: lock,
        })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// Removes the folders of guests whose owner is gone, and with it, by their parent-death signal, their QEMU.
pub fn remove_abandoned(place: &Path) {
    for entry in place.read_dir().into_iter().flatten().flatten() {
        if is_abandoned(&entry.path()) {
            // What cannot be removed takes room and does no other harm.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether it is a guest's folder of this user's without an owner. Among temporary files anybody may make one of that
/// name, so neither it nor its owner's file may be a link or somebody else's.
#[must_use]
pub fn is_abandoned(folder: &Path) -> bool {
    let name = folder.file_name().unwrap_or_default();
    if !name.to_string_lossy().starts_with(PREFIX) {
        return false;
    }
    let is_own = |about: &std::fs::Metadata| about.uid() == geteuid().as_raw();
    let about = folder.symlink_metadata();
    if !about.is_ok_and(|about| about.is_dir() && is_own(&about)) {
        return false;
    }
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let owner = File::options()
        .write(true)
        .custom_flags(flags.bits())
        .open(folder.join(OWNER));
    let Ok(owner) = owner else {
        return false;
    };
    let is_file = owner.metadata().is_ok_and(|about| about.is_file());
    is_file && Flock::lock(owner, FlockArg::LockExclusiveNonblock).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_living_stay_and_those_of_the_dead_go() {
        let place = tempfile::tempdir().unwrap();
        let living = GuestFolder::new_in(place.path()).unwrap();
        let make = |name: &str, has_owner: bool| {
            let folder = place.path().join(name);
            std::fs::create_dir(&folder).unwrap();
            std::fs::write(folder.join("console"), "boot").unwrap();
            if has_owner {
                std::fs::write(folder.join(OWNER), "").unwrap();
            }
            folder
        };
        let dead = make("nestrace-guest-dead", true);
        let no_owner = make("nestrace-guest-other", false);
        let other_name = make("mine", true);
        let link = place.path().join("nestrace-guest-link");
        std::os::unix::fs::symlink(&other_name, &link).unwrap();
        assert!(is_abandoned(&dead) && !is_abandoned(living.path()));
        remove_abandoned(place.path());
        assert!(!dead.exists());
        for stays in [living.path(), &no_owner, &other_name, &link] {
            assert!(stays.exists(), "{stays:?}");
        }
        assert!(other_name.join("console").exists());
        let path = living.path().to_owned();
        drop(living);
        assert!(!path.exists());
    }
}

//! Whether another lab runs on this machine: both measure times, and each disturbs the other's.

use std::fs::File;
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{Flock, FlockArg, OFlag};

/// Locked by every lab that runs, whatever its folder of results or its user's home.
pub const PLACE: &str = "/run/nestrace-lab.lock";

/// As long as it is there, other labs learn that this one runs.
#[derive(Debug)]
pub struct Announced {
    /// Whether no other was there.
    pub is_alone: bool,
    _lock: Flock<File>,
}

/// Announces a lab at `place`; the kernel takes it back when the process ends.
///
/// # Errors
/// The file cannot be made or locked. A lab can do without.
pub fn announce(place: &Path) -> io::Result<Announced> {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let mut file = File::options()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(flags.bits())
        .open(place)?;
    let mut is_alone = true;
    // The whole of it is had by the first one alone; all share it.
    file = match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => lock.unlock().map_err(|(_, errno)| errno)?,
        Err((file, _)) => {
            is_alone = false;
            file
        }
    };
    let lock = Flock::lock(file, FlockArg::LockShared).map_err(|(_, errno)| errno)?;
    Ok(Announced {
        is_alone,
        _lock: lock,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_learns_of_the_first_and_the_next_after_them_is_alone() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("lock");
        let first = announce(&place).unwrap();
        let second = announce(&place).unwrap();
        assert!(first.is_alone && !second.is_alone);
        drop(first);
        assert!(!announce(&place).unwrap().is_alone);
        drop(second);
        assert!(announce(&place).unwrap().is_alone);
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(&place, &link).unwrap();
        assert!(announce(&link).is_err());
    }
}

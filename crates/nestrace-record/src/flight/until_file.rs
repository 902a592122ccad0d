//! A file that makes a flight recorder write when it appears.
//!
//! Its folder is watched from the time before the recorder gives up its rights: afterwards it may not even be able to look
//! into it. A file that another machine makes on a network file system is not noticed.

use std::ffi::OsString;
use std::io;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

/// Notices a file.
pub struct UntilFile {
    inotify: Inotify,
    name: OsString,
}

impl UntilFile {
    /// Begins to watch for it.
    ///
    /// # Errors
    /// Where there is no such folder, or it cannot be watched.
    pub fn watch(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let folder = match path.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        let flags = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
        inotify.add_watch(folder, flags | AddWatchFlags::IN_ONLYDIR)?;
        Ok(Self {
            inotify,
            name: name.to_owned(),
        })
    }

    /// Whether it has appeared since the last call.
    pub fn has_appeared(&self) -> bool {
        let mut found = false;
        loop {
            match self.inotify.read_events() {
                Ok(events) => {
                    let named = |name: &Option<OsString>| name.as_ref() == Some(&self.name);
                    found |= events.iter().any(|event| named(&event.name));
                }
                Err(Errno::EINTR) => {}
                Err(_) => return found,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn only_that_file_counts_and_each_time_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("now");
        let until = UntilFile::watch(&path).unwrap();
        assert!(!until.has_appeared());
        fs::write(folder.path().join("other"), "").unwrap();
        assert!(!until.has_appeared());
        fs::write(&path, "").unwrap();
        assert!(until.has_appeared() && !until.has_appeared());
        fs::write(&path, "more").unwrap();
        assert!(!until.has_appeared());
        fs::remove_file(&path).unwrap();
        fs::rename(folder.path().join("other"), &path).unwrap();
        assert!(until.has_appeared());
        assert!(UntilFile::watch(&folder.path().join("none/now")).is_err());
    }
}

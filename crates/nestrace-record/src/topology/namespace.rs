//! Opening files where another process sees them.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use nix::fcntl::{OFlag, OpenHow, ResolveFlag, openat2};

/// Opens `path` as the process `pid` would: below its root, in its mount namespace, with absolute
/// symbolic links counted from its root too. Only for reading, or `O_PATH`.
///
/// # Errors
///
/// What the system says; permission is needed to look into the other process.
pub fn open_in_root(pid: u32, path: &Path, flags: OFlag) -> io::Result<File> {
    let root = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_PATH | libc::O_DIRECTORY)
        .open(format!("/proc/{pid}/root"))?;
    // openat2 refuses flags that O_PATH ignores.
    let wait = if flags.contains(OFlag::O_PATH) {
        OFlag::empty()
    } else {
        OFlag::O_NONBLOCK
    };
    let how = OpenHow::new()
        .flags(flags | OFlag::O_CLOEXEC | wait)
        .resolve(ResolveFlag::RESOLVE_IN_ROOT);
    Ok(File::from(openat2(&root, path, how)?))
}

/// Opens a regular file for reading, as the process `pid` would find it.
///
/// # Errors
///
/// What the system says, and for what is no regular file.
pub fn open_regular(pid: u32, path: &Path) -> io::Result<File> {
    read_regular(&open_in_root(pid, path, OFlag::O_PATH)?)
}

/// Opens for reading what was opened with `O_PATH`, if it is a regular file. A process may have put anything else in its
/// place: opening a FIFO waits for somebody who writes, and opening a watchdog starts it.
///
/// # Errors
///
/// What the system says, and for what is no regular file.
pub fn read_regular(place: &File) -> io::Result<File> {
    if !place.metadata()?.is_file() {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            "not a regular file",
        ));
    }
    File::open(format!("/proc/self/fd/{}", place.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::sync::mpsc;
    use std::time::Duration;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    #[test]
    fn regular_files_alone_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        fs::write(path("file"), "x").unwrap();
        symlink("file", path("to-file")).unwrap();
        mkfifo(&path("fifo"), Mode::S_IRWXU).unwrap();
        symlink("fifo", path("to-fifo")).unwrap();
        let paths = [
            (path("file"), true),
            (path("to-file"), true),
            (path("fifo"), false),
            (path("to-fifo"), false),
            (path("missing"), false),
            ("/dev/zero".into(), false),
            ("/tmp".into(), false),
        ];
        let (opened, all) = mpsc::channel();
        // Opening a FIFO has no end.
        std::thread::spawn(move || {
            for (path, expected) in paths {
                let is_open = open_regular(std::process::id(), &path).is_ok();
                opened.send((path, is_open, expected)).unwrap();
            }
        });
        for _ in 0..7 {
            let (path, is_open, expected) = all.recv_timeout(Duration::from_secs(10)).unwrap();
            assert_eq!(is_open, expected, "{}", path.display());
        }
    }
}

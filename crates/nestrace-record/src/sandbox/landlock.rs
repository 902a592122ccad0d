//! Landlock (5.13, 17ae69aba89d): of all files a thread may open only those below chosen folders.
//!
//! A thread in a Landlock domain may look at no process outside of it either (`/proc/PID/exe`, `root`, `cwd`, `fd`, `mem`).
//! So it is for processes that look at none.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

/// `struct landlock_ruleset_attr`, its first member: later ones are of later kernels.
#[repr(C)]
struct RulesetAttr {
    handled_access_fs: u64,
}

/// `struct landlock_path_beneath_attr`, which is packed.
#[repr(C, packed)]
struct PathBeneathAttr {
    allowed_access: u64,
    parent_fd: i32,
}

const CREATE_RULESET_VERSION: libc::c_long = 1;
const RULE_PATH_BENEATH: libc::c_long = 1;

const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
const REMOVE_FILE: u64 = 1 << 5;
const MAKE_REG: u64 = 1 << 8;
const TRUNCATE: u64 = 1 << 14;

/// What each version of the interface handles: with the second `REFER` came, with the third `TRUNCATE`, with the fifth
/// `IOCTL_DEV`.
const fn handled(version: libc::c_long) -> u64 {
    match version {
        1 => (1 << 13) - 1,
        2 => (1 << 14) - 1,
        3 | 4 => (1 << 15) - 1,
        _ => (1 << 16) - 1,
    }
}

/// Rules that are ready to be put on a thread.
#[derive(Debug)]
pub(super) struct Ruleset(OwnedFd);

impl Ruleset {
    /// Files in this folder may be made, written, read and removed, and the files `readable` read. `None` where the
    /// kernel has no Landlock.
    pub(super) fn of_folders(
        folders: &[BorrowedFd<'_>],
        readable: &[&str],
    ) -> io::Result<Option<Self>> {
        let Some(version) = version() else {
            return Ok(None);
        };
        let handled = handled(version);
        let attr = RulesetAttr {
            handled_access_fs: handled,
        };
        // SAFETY: the kernel reads as many bytes of `attr` as are said.
        let rules = unsafe {
            libc::syscall(
                libc::SYS_landlock_create_ruleset,
                std::ptr::from_ref(&attr),
                size_of::<RulesetAttr>(),
                0,
            )
        };
        let rules = Self(descriptor(rules)?);
        let in_folder = WRITE_FILE | READ_FILE | READ_DIR | REMOVE_FILE | MAKE_REG | TRUNCATE;
        for folder in folders {
            rules.allow(*folder, in_folder & handled)?;
        }
        for path in readable {
            // What is not there cannot be read either.
            if let Ok(file) = File::open(path) {
                rules.allow(file.as_fd(), READ_FILE)?;
            }
        }
        Ok(Some(rules))
    }

    fn allow(&self, place: BorrowedFd<'_>, allowed_access: u64) -> io::Result<()> {
        let attr = PathBeneathAttr {
            allowed_access,
            parent_fd: place.as_raw_fd(),
        };
        // SAFETY: the kernel reads `attr`, whose layout is that of the kind of rule.
        let added = unsafe {
            libc::syscall(
                libc::SYS_landlock_add_rule,
                self.0.as_raw_fd(),
                RULE_PATH_BENEATH,
                std::ptr::from_ref(&attr),
                0,
            )
        };
        if added == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }

    /// Puts the calling thread under these rules. It must have forbidden itself new privileges.
    pub(super) fn restrict_this_thread(&self) -> io::Result<()> {
        // SAFETY: the call takes numbers alone.
        let done =
            unsafe { libc::syscall(libc::SYS_landlock_restrict_self, self.0.as_raw_fd(), 0) };
        if done == 0 {
            Ok(())
        } else {
            Err(io::Error::last_os_error())
        }
    }
}

/// The version of the kernel's Landlock; `None` where it has none or it is switched off.
pub(super) fn version() -> Option<libc::c_long> {
    let nothing: *const RulesetAttr = std::ptr::null();
    // SAFETY: with this flag the kernel reads no attributes.
    let version = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            nothing,
            0,
            CREATE_RULESET_VERSION,
        )
    };
    (version > 0).then_some(version)
}

fn descriptor(result: libc::c_long) -> io::Result<OwnedFd> {
    match RawFd::try_from(result) {
        // SAFETY: the call returned a new descriptor that has no other owner.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

//! As whom a thread goes on, and with which capabilities.

use std::io;

use caps::{CapSet, Capability, CapsHashSet};
use nestrace_output::sudo_user;

use super::SandboxError;

/// A user and its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Whether it is a user of the system, and not an id that is this process' alone.
    pub is_real: bool,
}

/// The first of 2²⁷ ids that no list of users, container or service manager gives to anybody (systemd's `UIDS-GIDS.md`:
/// 1879048192 to 2147483646 is unused).
const FIRST_OWN_ID: u32 = 0x7000_0000;

impl User {
    /// The user who typed the command, where this is root by way of sudo.
    #[must_use]
    pub fn of_sudo() -> Option<Self> {
        let (uid, gid) = sudo_user()?;
        (!uid.is_root()).then_some(Self {
            uid: uid.as_raw(),
            gid: gid.as_raw(),
            is_real: true,
        })
    }

    /// The user of its own with this id.
    #[must_use]
    pub const fn of_id(id: u32) -> Self {
        Self {
            uid: id,
            gid: id,
            is_real: false,
        }
    }

    /// An id that no account has: files of `nobody` are open to each process of `nobody`.
    ///
    /// # Errors
    /// Where the system has no random bytes.
    pub fn of_its_own() -> io::Result<Self> {
        let mut bytes = [0; 4];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        let id = FIRST_OWN_ID + u32::from_le_bytes(bytes) % (1 << 27);
        Ok(Self::of_id(id))
    }
}

/// No program that this thread starts gets more than it has, as set-uid programs do.
pub(super) fn forbid_new_privileges() {
    // SAFETY: the call takes numbers alone.
    // It cannot fail on Linux 3.5 and later with these arguments; without it no filter can be installed, which is an error.
    let _ = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
}

/// The calling thread is this user's, has no other groups, and of capabilities only those of `kept` that it had.
pub(super) fn become_user(user: Option<User>, kept: &[Capability]) -> Result<(), SandboxError> {
    let kept: CapsHashSet = kept.iter().copied().collect();
    let had = caps::read(None, CapSet::Permitted).map_err(SandboxError::Capabilities)?;
    let left: CapsHashSet = had.intersection(&kept).copied().collect();
    // What execve would give back. Only who has this capability may do so.
    if had.contains(&Capability::CAP_SETPCAP) {
        for capability in had.difference(&kept) {
            caps::drop(None, CapSet::Bounding, *capability).map_err(SandboxError::Capabilities)?;
        }
    }
    if let Some(user) = user {
        // SAFETY: the call takes numbers alone.
        let _ = unsafe { libc::prctl(libc::PR_SET_KEEPCAPS, 1, 0, 0, 0) };
        set_ids(user).map_err(|source| SandboxError::User {
            user: user.uid,
            source,
        })?;
    }
    caps::clear(None, CapSet::Inheritable).map_err(SandboxError::Capabilities)?;
    caps::set(None, CapSet::Effective, &left).map_err(SandboxError::Capabilities)?;
    caps::set(None, CapSet::Permitted, &left).map_err(SandboxError::Capabilities)
}

/// libc's functions would change all threads, and end the program where one of them may not any more.
fn set_ids(user: User) -> io::Result<()> {
    let (uid, gid) = (libc::c_long::from(user.uid), libc::c_long::from(user.gid));
    let none: *const libc::gid_t = std::ptr::null();
    // SAFETY: no groups are read where there are 0.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, none) })?;
    // SAFETY: the call takes numbers alone.
    check(unsafe { libc::syscall(libc::SYS_setresgid, gid, gid, gid) })?;
    // SAFETY: the call takes numbers alone.
    check(unsafe { libc::syscall(libc::SYS_setresuid, uid, uid, uid) })
}

fn check(result: libc::c_long) -> io::Result<()> {
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

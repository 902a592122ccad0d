//! Capabilities and the user that a process runs as.

use std::collections::HashSet;
use std::io;

use caps::{CapSet, Capability};
use nix::unistd::{Gid, Uid, setgroups, setresgid, setresuid};

use super::ConfineError;

/// Keeps these capabilities of the calling thread, as far as it has them, and none other in any of its sets.
///
/// # Errors
/// [`ConfineError::Capabilities`].
pub fn keep_capabilities(kept: &[Capability]) -> Result<(), ConfineError> {
    let kept: HashSet<Capability> = kept.iter().copied().collect();
    let had = caps::read(None, CapSet::Permitted).map_err(ConfineError::Capabilities)?;
    let left: HashSet<Capability> = had.intersection(&kept).copied().collect();
    // What execve would give back. Without CAP_SETPCAP there is nothing to take out, and `no_new_privs` holds.
    if had.contains(&Capability::CAP_SETPCAP) {
        for capability in caps::all().difference(&left) {
            if caps::has_cap(None, CapSet::Bounding, *capability).unwrap_or(false) {
                caps::drop(None, CapSet::Bounding, *capability)
                    .map_err(ConfineError::Capabilities)?;
            }
        }
    }
    caps::clear(None, CapSet::Ambient).map_err(ConfineError::Capabilities)?;
    caps::clear(None, CapSet::Inheritable).map_err(ConfineError::Capabilities)?;
    caps::set(None, CapSet::Effective, &left).map_err(ConfineError::Capabilities)?;
    caps::set(None, CapSet::Permitted, &left).map_err(ConfineError::Capabilities)
}

/// Becomes this user for good, in all of the thread's ids and without further groups. Capabilities that are permitted
/// stay permitted; [`keep_capabilities`] says which, afterwards.
///
/// Ids belong to a thread: call it before there are others, or in each.
///
/// # Errors
/// [`ConfineError::User`].
pub fn become_user(uid: Uid, gid: Gid) -> Result<(), ConfineError> {
    let failed = |error: nix::Error| ConfineError::User {
        uid: uid.as_raw(),
        error: io::Error::from(error),
    };
    nix::sys::prctl::set_keepcaps(true).map_err(failed)?;
    setgroups(&[]).map_err(failed)?;
    setresgid(gid, gid, gid).map_err(failed)?;
    setresuid(uid, uid, uid).map_err(failed)?;
    nix::sys::prctl::set_keepcaps(false).map_err(failed)
}

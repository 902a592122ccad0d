//! The owner of the files that root makes.

use nix::unistd::{Gid, Uid};

/// The user who typed the command, where this is root by way of sudo.
#[must_use]
pub fn sudo_user() -> Option<(Uid, Gid)> {
    let id = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    let user = (
        Uid::from_raw(id("SUDO_UID")?),
        Gid::from_raw(id("SUDO_GID")?),
    );
    Uid::effective().is_root().then_some(user)
}

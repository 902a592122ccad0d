//! Whether we are root.

/// Loop devices, mounts and probes need root: exit code 4.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("make loop devices and load probes: this needs root; run it under sudo")]
pub struct NeedsRoot;

/// Fails for an ordinary user.
///
/// # Errors
/// We are not root.
pub fn require() -> Result<(), NeedsRoot> {
    if nix::unistd::geteuid().is_root() {
        Ok(())
    } else {
        Err(NeedsRoot)
    }
}

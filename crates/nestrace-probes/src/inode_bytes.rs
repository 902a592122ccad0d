//! The key of maps that choose files.

use nestrace_abi::maps::InodeKey;

/// An [`InodeKey`] as a map key.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(super) struct InodeBytes(pub InodeKey);
// SAFETY: integers without implicit padding (asserted in nestrace-abi).
unsafe impl aya::Pod for InodeBytes {}

//! What is kept of one disk of a guest.

use nestrace_trace::manifest::{GuestDisk, GuestSide};

use crate::chains::DiskChains;
use crate::findings::GuestClues;

/// What is counted of one disk of the guest before anything is linked, and what became of its bios.
#[derive(Debug, Default)]
pub(crate) struct DiskCounts {
    /// Q of bios with data and of flushes.
    pub(super) bios: u64,
    /// R of requests with data.
    pub(super) requeues: u64,
    pub chains: DiskChains,
    /// For the findings.
    pub clues: GuestClues,
}

impl DiskCounts {
    /// Nothing yet, of each disk of a guest.
    pub(super) fn all(side: &GuestSide) -> Vec<Self> {
        let counts = |disk: &GuestDisk| {
            let mounts = side.mounts.iter().filter(|mount| mount.disk == disk.name);
            Self {
                clues: GuestClues::new(mounts.map(|mount| mount.dev).collect()),
                ..Self::default()
            }
        };
        side.disks.iter().map(counts).collect()
    }
}

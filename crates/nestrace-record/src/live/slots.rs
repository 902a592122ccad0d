//! Slots of the sums: who has which.

use std::collections::VecDeque;

use nestrace_abi::maps::{SUM_OPS, SUM_PLACES};
use nestrace_probes::sums::Sums;

/// Fewest slots that the probes get: a disk has two, a device one, and the probes keep some in reserve.
const MIN_SLOTS: u32 = 256;
/// Most: 60 MB of the kernel's memory.
const MAX_SLOTS: u32 = 4096;

/// Which are free. What becomes free is used again last: a request that began before may still end in it.
pub(super) struct Slots {
    free: VecDeque<u32>,
}

impl Slots {
    /// All are free.
    pub fn new(n_slots: u32) -> Self {
        Self {
            free: (0..n_slots).collect(),
        }
    }

    /// How many are needed for so many disks and devices and as many again.
    pub fn needed(n_disks: usize, n_devices: usize) -> u32 {
        let wanted = n_disks
            .saturating_mul(2)
            .saturating_add(n_devices)
            .saturating_mul(2);
        let wanted = u32::try_from(wanted).unwrap_or(MAX_SLOTS);
        MIN_SLOTS.saturating_add(wanted).min(MAX_SLOTS)
    }

    /// A free one, set to 0, if need be one that was offered to the probes.
    pub fn take(&mut self, sums: &mut Sums) -> Option<u32> {
        let slot = self.free.pop_front().or_else(|| sums.take_back())?;
        sums.clear(slot);
        Some(slot)
    }

    /// Offers half of what is free to the probes, which give slots to BlockBackends; images and devices get the others.
    pub fn offer(&mut self, sums: &mut Sums) {
        let n = sums.n_offered().saturating_add(self.free.len()) / 2;
        let n = sums.n_wanted(n).min(self.free.len());
        let mut offered: Vec<u32> = self.free.drain(..n).collect();
        for slot in &offered {
            sums.clear(*slot);
        }
        sums.offer(&mut offered);
        self.free.extend(offered);
    }

    /// It is used no more.
    pub fn give_back(&mut self, slot: u32) {
        self.free.push_back(slot);
    }
}

/// The place of an operation in a slot's layer.
pub(super) fn place(slot: u32, layer: usize, operation: usize) -> u32 {
    let within = layer * SUM_OPS + operation;
    slot.saturating_mul(u32::try_from(SUM_PLACES).unwrap_or(1))
        .saturating_add(u32::try_from(within).unwrap_or(0))
}

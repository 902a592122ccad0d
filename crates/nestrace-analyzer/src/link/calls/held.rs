//! Ended bios that calls and commits hold until their links are decided.

use crate::model::pointer::PointerMap;

use super::pending::Bio;

/// How often bios are held, in all.
const MAX_HELD: usize = 1 << 19;

/// Held bios, by their numbers in the session.
#[derive(Debug, Default)]
pub(super) struct HeldBios {
    bios: PointerMap<u64, Bio>,
    /// Sum of their holders.
    held: usize,
}

impl HeldBios {
    /// How many more holders there may be.
    pub(super) const fn room(&self) -> usize {
        MAX_HELD.saturating_sub(self.held)
    }

    /// Holds a bio for the first time, by as many as it says.
    pub(super) fn insert(&mut self, id: u64, bio: Bio) {
        self.held += bio.holders as usize;
        self.bios.insert(id, bio);
    }

    /// One more holds a bio.
    pub(super) fn hold(&mut self, id: u64) {
        if let Some(bio) = self.bios.get_mut(&id) {
            bio.holders += 1;
            self.held += 1;
        }
    }

    /// One that held a bio needs it no more; the bio, if that was the last.
    pub(super) fn release(&mut self, id: u64) -> Option<Bio> {
        let bio = self.bios.get_mut(&id)?;
        bio.holders = bio.holders.saturating_sub(1);
        self.held = self.held.saturating_sub(1);
        match bio.holders {
            0 => self.bios.remove(&id),
            _ => None,
        }
    }

    pub(super) fn contains(&self, id: u64) -> bool {
        self.bios.contains_key(&id)
    }

    pub(super) fn get(&self, id: u64) -> Option<&Bio> {
        self.bios.get(&id)
    }

    pub(super) fn get_mut(&mut self, id: u64) -> Option<&mut Bio> {
        self.bios.get_mut(&id)
    }

    /// Takes out all.
    pub(super) fn drain(&mut self) -> Vec<Bio> {
        self.held = 0;
        self.bios.drain().map(|(_, bio)| bio).collect()
    }
}

//! Bios of a device without requests (dm, md), found by place: its remaps name no bio of it.

use std::collections::BTreeMap;

/// Bios kept at once; more are not in flight.
const MAX_BIOS: usize = 1 << 16;

/// Bios that are on their way, by their first byte.
#[derive(Debug, Default)]
pub(crate) struct RemapSources<T> {
    bios: BTreeMap<u64, (u64, T)>,
    /// The device has requests of its own: nothing remaps its bios.
    closed: bool,
}

impl<T: Copy> RemapSources<T> {
    #[inline]
    pub(crate) fn queued(&mut self, offset: u64, bytes: u64, bio: T) {
        if !self.closed {
            self.insert(offset, bytes, bio);
        }
    }

    fn insert(&mut self, offset: u64, bytes: u64, bio: T) {
        if self.bios.len() >= MAX_BIOS {
            self.bios.pop_first();
        }
        self.bios
            .insert(offset, (offset.saturating_add(bytes), bio));
    }

    /// G or D was seen on the device.
    #[inline]
    pub(crate) fn has_requests(&mut self) {
        if !self.closed {
            self.closed = true;
            self.bios.clear();
        }
    }

    pub(crate) fn ended(&mut self, offset: u64) {
        self.bios.remove(&offset);
    }

    /// The bio that holds this byte.
    pub(crate) fn at(&self, offset: u64) -> Option<T> {
        let (_, (end, bio)) = self.bios.range(..=offset).next_back()?;
        (offset < *end).then_some(*bio)
    }
}

//! What was read ahead of images, and whether QEMU came for it.

use std::collections::BTreeMap;

use crate::model::ids::{DiskId, ImageId};

/// Ranges that may wait for a reader. What finds no room counts neither as used nor as unused.
const MAX_RANGES: usize = 1 << 16;

/// What was read ahead and not asked for yet.
#[derive(Debug, Default)]
pub(super) struct ReadAhead {
    /// By file (the first image that is it) and begin: the end, and the disk that it was read for.
    waiting: BTreeMap<(ImageId, u64), (u64, DiskId)>,
    /// By disk: bytes that were asked for later, or found no room.
    settled: Vec<u64>,
}

impl ReadAhead {
    pub(super) fn new(n_disks: usize) -> Self {
        Self {
            waiting: BTreeMap::new(),
            settled: vec![0; n_disks],
        }
    }

    /// This was read ahead. What waited there was thrown out of the cache before anybody came.
    pub(super) fn read(&mut self, file: ImageId, (start, end): (u64, u64), disk: DiskId) {
        if start >= end {
            return;
        }
        self.take(file, start, end);
        self.wait(file, (start, end), disk);
    }

    /// QEMU has read this.
    pub(super) fn asked(&mut self, file: ImageId, (start, end): (u64, u64)) {
        for (bytes, disk) in self.take(file, start, end) {
            self.settle(disk, bytes);
        }
    }

    /// Of a disk's bytes read ahead, those that may have been of use.
    pub(super) fn settled(&self, disk: DiskId) -> u64 {
        self.settled.get(disk.0 as usize).copied().unwrap_or(0)
    }

    fn wait(&mut self, file: ImageId, (start, end): (u64, u64), disk: DiskId) {
        if self.waiting.len() < MAX_RANGES {
            self.waiting.insert((file, start), (end, disk));
        } else {
            self.settle(disk, end - start);
        }
    }

    fn settle(&mut self, disk: DiskId, bytes: u64) {
        if let Some(settled) = self.settled.get_mut(disk.0 as usize) {
            *settled = settled.saturating_add(bytes);
        }
    }

    /// Takes a range out: bytes and disks of what waited in it.
    fn take(&mut self, file: ImageId, start: u64, end: u64) -> Vec<(u64, DiskId)> {
        if start >= end {
            return Vec::new();
        }
        let earlier = self.waiting.range((file, 0)..(file, end)).rev();
        let touched: Vec<(u64, u64, DiskId)> = earlier
            .take_while(|(_, (to, _))| *to > start)
            .map(|((_, from), (to, disk))| (*from, *to, *disk))
            .collect();
        for (from, to, disk) in &touched {
            self.waiting.remove(&(file, *from));
            if *from < start {
                self.wait(file, (*from, start), *disk);
            }
            if *to > end {
                self.wait(file, (end, *to), *disk);
            }
        }
        let common = |(from, to, disk): (u64, u64, DiskId)| (to.min(end) - from.max(start), disk);
        touched.into_iter().map(common).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_byte_is_used_once() {
        let mut ahead = ReadAhead::new(2);
        ahead.read(ImageId(7), (100, 200), DiskId(0));
        ahead.read(ImageId(7), (200, 300), DiskId(1));
        ahead.read(ImageId(8), (100, 200), DiskId(0));
        ahead.asked(ImageId(7), (150, 250));
        ahead.asked(ImageId(7), (150, 250));
        assert_eq!(
            (ahead.settled(DiskId(0)), ahead.settled(DiskId(1))),
            (50, 50)
        );
        // Read ahead again before anybody came: used once at most.
        ahead.read(ImageId(7), (100, 200), DiskId(0));
        ahead.asked(ImageId(7), (0, 400));
        assert_eq!(
            (ahead.settled(DiskId(0)), ahead.settled(DiskId(1))),
            (150, 100)
        );
    }

    #[test]
    fn what_finds_no_room_is_not_called_unused() {
        let mut ahead = ReadAhead::new(1);
        for n in 0..=MAX_RANGES as u64 {
            ahead.read(ImageId(0), (n * 10, n * 10 + 1), DiskId(0));
        }
        assert_eq!(ahead.settled(DiskId(0)), 1);
    }

    #[test]
    fn what_is_left_of_a_range_has_to_find_room_too() {
        let mut ahead = ReadAhead::new(1);
        ahead.read(ImageId(0), (0, u64::MAX), DiskId(0));
        for n in 1..=2 * MAX_RANGES as u64 {
            ahead.asked(ImageId(0), (n * 10, n * 10 + 1));
        }
        assert_eq!(ahead.waiting.len(), MAX_RANGES);
    }
}

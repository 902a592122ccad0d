//! Which disk of a guest has a device number when, and when that cannot be known.
//!
//! An agent looks for its guest's disks now and then, while its probes select by number at once. So between its last
//! look at a disk and the first at another one under the same number, I/O may be of either: such a stretch of
//! doubt is counted as a device of its own.

use nestrace_trace::manifest::{GuestDisk, GuestSide};

use crate::model::pointer::PointerMap;

/// Recordings before [`GuestDisk::until_mono_ns`] do not say when the agent looked last. It looked once a second, and had
/// other things to do.
const UNKNOWN_LOOK_NS: u64 = 2_000_000_000;

/// Who has a device number from some time on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder {
    since_ns: u64,
    /// Its place in [`super::Session::disks`].
    pub device: u32,
}

/// A device number gets another holder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change {
    pub dev: u32,
    pub from: u32,
    pub to: Holder,
}

/// Which disk of a side has a device number, as time goes by.
#[derive(Debug, Default)]
pub(super) struct DiskNumbers {
    /// By device number, in the order of time.
    holders: PointerMap<u32, Vec<Holder>>,
    /// In the order of time.
    changes: Vec<Change>,
    n_passed: usize,
    n_disks: u32,
    /// For each stretch of doubt, the disk that had the number before.
    doubts: Vec<u32>,
}

impl DiskNumbers {
    pub(super) fn new(side: &GuestSide) -> Self {
        let mut disks: Vec<(u32, &GuestDisk)> = (0u32..).zip(&side.disks).collect();
        let n_disks = u32::try_from(disks.len()).unwrap_or(u32::MAX);
        // Those of one number one behind the other.
        disks.sort_by_key(|(_, disk)| (disk.dev, disk.since_mono_ns));
        let mut numbers = Self {
            n_disks,
            ..Self::default()
        };
        for of_number in disks.chunk_by(|(_, one), (_, next)| one.dev == next.dev) {
            numbers.add(of_number);
        }
        numbers.changes.sort_by_key(|change| change.to.since_ns);
        numbers
    }

    /// Adds all disks that have the same number.
    fn add(&mut self, disks: &[(u32, &GuestDisk)]) {
        let holder = |(device, disk): &(u32, &GuestDisk)| Holder {
            since_ns: disk.since_mono_ns,
            device: *device,
        };
        let mut holders: Vec<Holder> = disks.first().map(holder).into_iter().collect();
        for pair in disks.windows(2) {
            let [(former, before), (_, disk)] = pair else {
                continue;
            };
            let until_ns = match before.until_mono_ns {
                0 => disk.since_mono_ns.saturating_sub(UNKNOWN_LOOK_NS),
                until_ns => until_ns,
            };
            let until_ns = until_ns.clamp(before.since_mono_ns, disk.since_mono_ns);
            if until_ns < disk.since_mono_ns {
                let n_doubts = u32::try_from(self.doubts.len()).unwrap_or(u32::MAX);
                holders.push(Holder {
                    since_ns: until_ns,
                    device: self.n_disks.saturating_add(n_doubts),
                });
                self.doubts.push(*former);
            }
            holders.extend(pair.last().map(holder));
        }
        let Some((_, disk)) = disks.first() else {
            return;
        };
        let changes = holders.windows(2).filter_map(|pair| {
            let [from, to] = pair else {
                return None;
            };
            Some(Change {
                dev: disk.dev,
                from: from.device,
                to: *to,
            })
        });
        self.changes.extend(changes);
        self.holders.insert(disk.dev, holders);
    }

    /// The disk, or the stretch of doubt, that has the number at this time of the guest.
    #[inline]
    pub(super) fn at(&self, dev: u32, ns: u64) -> Option<u32> {
        let holders = self.holders.get(&dev)?;
        let n_begun = holders.partition_point(|holder| holder.since_ns <= ns);
        let holder = holders.get(n_begun.checked_sub(1)?)?;
        Some(holder.device)
    }

    /// Whether a number has this holder before all others.
    pub(super) fn is_first(&self, device: u32) -> bool {
        !self.changes.iter().any(|change| change.to.device == device)
    }

    pub(super) fn n_doubts(&self) -> usize {
        self.doubts.len()
    }

    /// Whether this is no disk, but a stretch of time in which a number may have been of either of two.
    #[inline]
    pub(super) const fn is_doubt(&self, device: u32) -> bool {
        device >= self.n_disks
    }

    /// The disk that had the number before this stretch of doubt.
    fn before_doubt(&self, device: u32) -> Option<u32> {
        let doubt = device.checked_sub(self.n_disks)?;
        self.doubts.get(doubt as usize).copied()
    }

    /// The next change that has come by this time.
    pub(super) fn pass(&mut self, ns: u64) -> Option<Change> {
        let next = self.changes.get(self.n_passed).copied();
        let next = next.filter(|next| next.to.since_ns <= ns)?;
        self.n_passed += 1;
        Some(next)
    }

    /// What the manifest says of one of [`super::Session::disks`]; of a stretch of doubt, what it says of the disk that
    /// had the number before.
    pub(super) fn about<'a>(&self, device: usize, side: &'a GuestSide) -> Option<&'a GuestDisk> {
        let before = u32::try_from(device).ok();
        let before = before.and_then(|device| self.before_doubt(device));
        let disk = before.map_or(device, |before| before as usize);
        side.disks.get(disk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const VDA: u32 = 254 << 20;

    /// Who has vda's number at each of the first tens of nanoseconds, if its disks have it from and until these: a letter
    /// each, doubts are capitals of the disk before.
    fn check(disks: &[(u64, u64)], expected: &str) {
        let disk = |(since_mono_ns, until_mono_ns): &(u64, u64)| GuestDisk {
            dev: VDA,
            since_mono_ns: *since_mono_ns,
            until_mono_ns: *until_mono_ns,
            ..GuestDisk::default()
        };
        let side = GuestSide {
            disks: disks.iter().map(disk).collect(),
            ..GuestSide::default()
        };
        let numbers = DiskNumbers::new(&side);
        let letter = |device: u32| {
            let (first, place) = match numbers.before_doubt(device) {
                Some(before) => (b'A', before),
                None => (b'a', device),
            };
            char::from(first + u8::try_from(place).unwrap())
        };
        let held = (0..8).map(|ten| numbers.at(VDA, ten * 10).map_or('-', letter));
        assert_eq!(held.collect::<String>(), expected, "{disks:?}");
        assert_eq!(numbers.at(VDA + 1, 10), None);
    }

    #[test]
    fn a_number_is_in_doubt_from_the_last_look_at_one_disk_to_the_first_at_the_next() {
        check(&[(0, 0)], "aaaaaaaa");
        // It was unplugged, and no disk took its number.
        check(&[(0, 30)], "aaaaaaaa");
        check(&[(0, 30), (50, 0)], "aaaAAbbb");
        check(&[(0, 20), (40, 50), (70, 0)], "aaAAbBBc");
        // The same whatever comes first in the manifest.
        check(&[(40, 50), (70, 0), (0, 20)], "ccCCaAAb");
        check(&[(0, 50), (50, 0)], "aaaaabbb");
        check(&[(20, 0)], "--aaaaaa");
    }

    #[test]
    fn one_that_was_seen_only_as_it_came_is_never_certain() {
        check(&[(0, 20), (50, 45), (70, 0)], "aaAAABBc");
    }

    #[test]
    fn a_recording_that_does_not_say_so_is_in_doubt_for_two_looks() {
        check(&[(0, 0), (60, 0)], "AAAAAAbb");
        let look_ns = UNKNOWN_LOOK_NS;
        check(&[(0, 0), (look_ns + 50, 0)], "aaaaaAAA");
    }

    #[test]
    fn two_from_the_beginning_on_cannot_be() {
        check(&[(0, 0), (0, 0)], "bbbbbbbb");
    }
}

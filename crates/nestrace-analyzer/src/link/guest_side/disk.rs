//! What is kept of one disk of a guest.

use nestrace_trace::manifest::{GuestDisk, GuestSide};

use super::numbers::DiskNumbers;
use crate::link::chains::DiskChains;
use crate::link::guest_side::metered::Metered;
use crate::measure::clues::GuestClues;
use crate::measure::device::DeviceMeter;

/// What is counted of one disk of the guest before anything is linked, and what became of its bios.
#[derive(Debug, Default)]
pub(crate) struct DiskCounts {
    /// Q of bios with data and of flushes.
    pub(super) bios: u64,
    /// R of requests with data.
    pub(super) requeues: u64,
    /// Of its device number's counts, what came before it; `None` until the number is its own.
    pub(super) before: Option<Metered>,
    /// The same when another disk got the number.
    pub(super) until: Option<Metered>,
    pub chains: DiskChains,
    /// For the findings.
    pub clues: GuestClues,
}

impl DiskCounts {
    /// Nothing yet, of each disk of a guest and of each stretch of doubt about a number. Mounts are those of the end,
    /// so of several disks of one name they are the last one's.
    pub(super) fn all(side: &GuestSide, numbers: &DiskNumbers) -> Vec<Self> {
        let disks = |(place, disk): (u32, &GuestDisk)| {
            let mut later = side.disks.iter().skip(place as usize + 1);
            let is_last = later.all(|other| other.name != disk.name);
            let mounts = side.mounts.iter();
            let mounts = mounts.filter(|mount| is_last && mount.disk == disk.name);
            Self {
                before: (disk.since_mono_ns == 0 && numbers.is_first(place)).then(Metered::default),
                clues: GuestClues::new(mounts.map(|mount| mount.dev).collect()),
                ..Self::default()
            }
        };
        let doubts = std::iter::repeat_with(Self::default).take(numbers.n_doubts());
        let disks = (0u32..).zip(&side.disks).map(disks);
        disks.chain(doubts).collect()
    }

    /// Parts what was counted under the numbers that are another disk's by this time.
    pub(super) fn part(
        disks: &mut [Self],
        ns: u64,
        numbers: &mut DiskNumbers,
        meters: &[DeviceMeter],
    ) {
        while let Some(change) = numbers.pass(ns) {
            let meter = meters.iter().find(|meter| meter.dev == change.dev);
            let metered = Some(meter.map(Metered::of).unwrap_or_default());
            if let Some(disk) = disks.get_mut(change.from as usize) {
                disk.until = metered;
            }
            if let Some(disk) = disks.get_mut(change.to.device as usize) {
                disk.before = metered;
            }
        }
    }

    /// Its own of what `meter` has counted under its number; `None` where the number was not its own yet.
    pub(super) fn metered(&self, meter: &DeviceMeter) -> Option<Metered> {
        let until = self.until.unwrap_or_else(|| Metered::of(meter));
        self.before.map(|before| until.since(before))
    }
}

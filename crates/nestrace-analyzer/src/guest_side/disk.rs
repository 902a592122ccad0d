//! What is kept of one disk of a guest, and which disk has a device number when.

use nestrace_trace::Event;
use nestrace_trace::manifest::{GuestDisk, GuestSide};

use super::Session;
use crate::analysis::ReadWrite;
use crate::chains::DiskChains;
use crate::device::DeviceMeter;
use crate::findings::GuestClues;
use crate::pointer::PointerMap;

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
    /// Nothing yet, of each disk of a guest. Mounts are those of the end, so of several disks of one name they are the
    /// last one's.
    pub(super) fn all(side: &GuestSide) -> Vec<Self> {
        let counts = |(place, disk): (usize, &GuestDisk)| {
            let mut later = side.disks.iter().skip(place + 1);
            let is_last = later.all(|other| other.name != disk.name);
            let mounts = side.mounts.iter();
            let mounts = mounts.filter(|mount| is_last && mount.disk == disk.name);
            Self {
                before: (disk.since_mono_ns == 0).then(Metered::default),
                clues: GuestClues::new(mounts.map(|mount| mount.dev).collect()),
                ..Self::default()
            }
        };
        side.disks.iter().enumerate().map(counts).collect()
    }

    /// Its own of what `meter` has counted under its number; `None` where the number was not its own yet.
    pub(super) fn metered(&self, meter: &DeviceMeter) -> Option<Metered> {
        let until = self.until.unwrap_or_else(|| Metered::of(meter));
        self.before.map(|before| until.since(before))
    }
}

/// Counts of a device number.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Metered {
    /// D of requests with data.
    pub issued: u64,
    /// Flushes that were issued to the device.
    pub flushes: u64,
    /// Bios that were refused at once.
    pub refused: u64,
    /// Bytes that requests have moved.
    pub bytes: ReadWrite,
}

impl Metered {
    pub(super) fn of(meter: &DeviceMeter) -> Self {
        Self {
            issued: meter.issued,
            flushes: meter.device_flushes,
            refused: meter.check.refused,
            bytes: ReadWrite {
                read: meter.bytes.read,
                write: meter.bytes.write,
            },
        }
    }

    fn since(self, before: Self) -> Self {
        Self {
            issued: self.issued.saturating_sub(before.issued),
            flushes: self.flushes.saturating_sub(before.flushes),
            refused: self.refused.saturating_sub(before.refused),
            bytes: ReadWrite {
                read: self.bytes.read.saturating_sub(before.bytes.read),
                write: self.bytes.write.saturating_sub(before.bytes.write),
            },
        }
    }
}

/// Which disk of a side has a device number, as time goes by.
#[derive(Debug)]
pub(super) struct DiskNumbers {
    first: PointerMap<u32, u32>,
    /// Disks that get a number that another one had, in the order of time.
    later: Vec<Successor>,
    n_passed: usize,
}

/// A disk whose device number was another's.
#[derive(Clone, Copy, Debug)]
pub(super) struct Successor {
    since_ns: u64,
    pub dev: u32,
    /// Its place in `GuestSide::disks`.
    pub disk: u32,
}

impl DiskNumbers {
    pub(super) fn new(side: &GuestSide) -> Self {
        let disks = (0u32..).zip(&side.disks);
        let (first, later): (Vec<_>, Vec<_>) = disks.partition(|(_, disk)| disk.since_mono_ns == 0);
        let successor = |(number, disk): (u32, &GuestDisk)| Successor {
            since_ns: disk.since_mono_ns,
            dev: disk.dev,
            disk: number,
        };
        let mut later: Vec<Successor> = later.into_iter().map(successor).collect();
        later.sort_by_key(|successor| successor.since_ns);
        let first = first.into_iter().map(|(number, disk)| (disk.dev, number));
        Self {
            first: first.collect(),
            later,
            n_passed: 0,
        }
    }

    /// The disk that has the number at this time of the guest.
    pub(super) fn at(&self, dev: u32, ns: u64) -> Option<u32> {
        let is_now = |successor: &&Successor| successor.dev == dev && successor.since_ns <= ns;
        let later = self.later.iter().rfind(is_now);
        later
            .map(|successor| successor.disk)
            .or_else(|| self.first.get(&dev).copied())
    }

    /// The next disk that has got its number by this time, and the one that had it.
    pub(super) fn pass(&mut self, ns: u64) -> Option<(Successor, Option<u32>)> {
        let next = self.later.get(self.n_passed).copied();
        let next = next.filter(|next| next.since_ns <= ns)?;
        self.n_passed += 1;
        Some((next, self.at(next.dev, next.since_ns.saturating_sub(1))))
    }
}

impl Session {
    pub(super) fn disk_mut(&mut self, event: &Event) -> Option<&mut DiskCounts> {
        let disk = self.numbers_of_disks.at(event.dev, event.ts_ns)?;
        self.disks.get_mut(disk as usize)
    }

    /// Parts what was counted under the numbers that are another disk's by this time.
    pub(super) fn pass_numbers(&mut self, ns: u64) {
        while let Some((now, before)) = self.numbers_of_disks.pass(ns) {
            let mut meters = self.block.devices.iter();
            let meter = meters.find(|meter| meter.dev == now.dev);
            let metered = Some(meter.map(Metered::of).unwrap_or_default());
            if let Some(disk) = before.and_then(|disk| self.disks.get_mut(disk as usize)) {
                disk.until = metered;
            }
            if let Some(disk) = self.disks.get_mut(now.disk as usize) {
                disk.before = metered;
            }
        }
    }
}

//! In which order everything runs, and which disks a guest has at a time.
//!
//! Cells run in blocks: each block has every cell once, in a random order of its own, so that a machine
//! that drifts favours no cell. The order depends on the plan alone, so that a run can go on where it
//! stopped.

use std::collections::BTreeSet;

use nestrace_rig::stack::Bus;

use super::combination::Combination;
use super::{Plan, PlannedCell};

/// Disks of a guest at a time; virtio-blk takes a PCI slot for each.
const MAX_DISKS: usize = 8;
/// Of a running guest, which may have few places for more.
const MAX_DISKS_OF_OWN_GUEST: usize = 4;
/// Room that a file system takes for itself: journal, tables.
const FS_OWN_BYTES: u64 = 320 << 20;
const IDE_DISKS: usize = 4;

/// Disks that one guest has at the same time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// In the order of their numbers.
    pub disks: Vec<GuestDisk>,
}

/// A disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestDisk {
    /// As [`Combination::disk_key`].
    pub combination: Combination,
    /// The only cell that uses it, and once; `None` where each cell finds it as the one before did.
    pub only_for: Option<usize>,
}

impl GuestDisk {
    /// The disk of a cell of the plan, by the cell's number.
    pub(super) fn of(number: usize, cell: &PlannedCell) -> Self {
        Self {
            combination: cell.combination.disk_key(),
            only_for: cell.combination.is_used_up().then_some(number),
        }
    }
}

/// A device under the images of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseNeed {
    /// As [`Combination::base_key`].
    pub key: Combination,
    /// Its size, bytes.
    pub bytes: u64,
    /// Indices of the disks on it.
    pub disks: Vec<usize>,
}

/// What a step is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// A measurement without recording: which repetition, from 1.
    Timed(u32),
    /// The run that is recorded.
    Recorded,
}

/// One run of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// What for.
    pub kind: Kind,
    /// Index of the cell.
    pub cell: usize,
    /// Index of the batch.
    pub batch: usize,
    /// Index of the disk in the batch.
    pub disk: usize,
}

impl Step {
    /// Whether the step needs a new guest: it has other disks, or begins a repetition. Each repetition makes file systems and
    /// images anew, because the speed of an image depends on its place and its age.
    #[must_use]
    pub fn needs_boot_after(&self, before: &Self) -> bool {
        (before.batch, before.kind) != (self.batch, self.kind)
    }
}

/// The whole order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// Disks of each guest.
    pub batches: Vec<Batch>,
    /// From first to last.
    pub steps: Vec<Step>,
}

impl Schedule {
    pub(super) fn new(plan: &Plan) -> Self {
        let most_disks = if plan.own_guest.is_some() {
            MAX_DISKS_OF_OWN_GUEST
        } else {
            MAX_DISKS
        };
        let is_wanted = |number: usize| plan.only.is_empty() || plan.only.contains(&number);
        let wanted = plan.cells.iter().enumerate();
        let wanted: Vec<_> = wanted.filter(|(number, _)| is_wanted(*number)).collect();
        let batches = batches(&wanted, plan.devices.len(), most_disks);
        let mut random = SplitMix64(plan.seed);
        let timed = (1..=plan.repetitions).map(Kind::Timed);
        let recorded = (plan.record_seconds > 0).then_some(Kind::Recorded);
        let mut steps = Vec::new();
        for kind in timed.chain(recorded) {
            let mut order: Vec<usize> = (0..batches.len()).collect();
            random.shuffle(&mut order);
            for batch in order {
                let is_possible = |(cell, _): &(usize, usize)| {
                    kind != Kind::Recorded || plan.cells[*cell].can_be_recorded()
                };
                let mut block: Vec<Step> = of_batch(&wanted, &batches[batch])
                    .filter(is_possible)
                    .map(|(cell, disk)| Step {
                        kind,
                        cell,
                        batch,
                        disk,
                    })
                    .collect();
                random.shuffle(&mut block);
                steps.extend(block);
            }
        }
        Self { batches, steps }
    }

    /// How often a guest is booted at least.
    #[must_use]
    pub fn n_boots(&self) -> usize {
        let changes = self
            .steps
            .windows(2)
            .filter(|pair| pair[1].needs_boot_after(&pair[0]));
        changes.count() + usize::from(!self.steps.is_empty())
    }
}

impl Batch {
    /// Whether a disk finds room on named devices: partitions of one disk have one queue, so disks of a
    /// guest agree in what is set there.
    fn fits_devices(&self, disk: &Combination, n_devices: usize) -> bool {
        let queue = |disk: &Combination| (disk.host_scheduler, disk.host_read_ahead_kib);
        let own = self.disks.iter().map(|disk| &disk.combination);
        let disks = || own.clone().chain([disk]);
        let bases: BTreeSet<Combination> = disks().map(Combination::base_key).collect();
        bases.len() <= n_devices && disks().all(|other| queue(other) == queue(disk))
    }

    /// The devices under its disks.
    #[must_use]
    pub fn bases(&self, image_bytes: u64) -> Vec<BaseNeed> {
        let mut bases: Vec<BaseNeed> = Vec::new();
        for (number, disk) in self.disks.iter().enumerate() {
            let key = disk.combination.base_key();
            match bases.iter_mut().find(|base| base.key == key) {
                Some(base) => base.disks.push(number),
                None => bases.push(BaseNeed {
                    key,
                    bytes: 0,
                    disks: vec![number],
                }),
            }
        }
        for base in &mut bases {
            let of_disk = |number: &usize| match self.disks.get(*number) {
                Some(disk) if disk.combination.is_copied_whole() => 2 * image_bytes,
                // Tables of images and file system, and room in which it is not short of space.
                _ => image_bytes + image_bytes / 8,
            };
            base.bytes = if base.key.is_bare() {
                image_bytes
            } else {
                base.disks.iter().map(of_disk).sum::<u64>() + FS_OWN_BYTES
            };
        }
        bases
    }
}

/// Disks in guests, so that none needs more than `n_devices` named ones; 0 where the lab makes its own.
fn batches(cells: &[(usize, &PlannedCell)], n_devices: usize, most_disks: usize) -> Vec<Batch> {
    let mut batches: Vec<Batch> = Vec::new();
    for (number, cell) in cells {
        let disk = GuestDisk::of(*number, cell);
        if batches.iter().any(|batch| batch.disks.contains(&disk)) {
            continue;
        }
        let is_ide = |disk: &GuestDisk| disk.combination.disk.bus == Bus::Ide;
        let has_room = |batch: &&mut Batch| {
            let ide = batch.disks.iter().filter(|disk| is_ide(disk));
            batch.disks.len() < most_disks
                && (!is_ide(&disk) || ide.count() < IDE_DISKS)
                && (n_devices == 0 || batch.fits_devices(&disk.combination, n_devices))
        };
        match batches.iter_mut().find(has_room) {
            Some(batch) => batch.disks.push(disk),
            None => batches.push(Batch { disks: vec![disk] }),
        }
    }
    batches
}

/// Cells whose disk is in a batch: their index and that of the disk.
fn of_batch<'p>(
    cells: &'p [(usize, &PlannedCell)],
    batch: &'p Batch,
) -> impl Iterator<Item = (usize, usize)> + 'p {
    cells.iter().filter_map(|(number, cell)| {
        let own = GuestDisk::of(*number, cell);
        let disk = batch.disks.iter().position(|disk| *disk == own)?;
        Some((*number, disk))
    })
}

/// Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014.
#[derive(Clone, Copy, Debug)]
struct SplitMix64(u64);

impl SplitMix64 {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Fisher and Yates.
    fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            let other = self.next() % (last as u64 + 1);
            items.swap(last, other as usize);
        }
    }
}

/// The numbers below `n` in a random order.
#[must_use]
pub(crate) fn shuffled(n: u64, seed: u64) -> Vec<u64> {
    let mut numbers: Vec<u64> = (0..n).collect();
    SplitMix64(seed).shuffle(&mut numbers);
    numbers
}

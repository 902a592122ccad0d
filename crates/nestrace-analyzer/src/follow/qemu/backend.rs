//! Which disk a QEMU address belongs to.
//!
//! `blk_aio_*` names the BlockBackend, the accounting names its statistics, which are embedded in
//! the BlockBackend at an offset that is the same for all of them in one QEMU. The manifest knows
//! the disks of some BlockBackends.

use nestrace_trace::manifest::{Guest, Notice};

use crate::model::pointer::PointerMap;

/// The proof of a BlockBackend that was given the guest's only disk whatever it was called: a disk
/// that was plugged in later is given the same.
const BY_ELIMINATION: &str = "only disk";

/// A BlockBackend is smaller than this.
const MAX_DISTANCE: u64 = 16384;

/// A file that was opened is noticed so much later at most.
const LATE_NS: u64 = 2_000_000_000;

/// When the recorder first noticed that a guest's QEMU had opened a file, a new disk's perhaps, in the host's
/// `CLOCK_MONOTONIC`. Its message names the guest.
pub(super) fn first_opened_ns(notices: &[Notice], guest: &Guest) -> Option<u64> {
    let begin = format!("guest {} opened ", guest.name);
    // Redacted messages have no names.
    let of_guest = |message: &str| message.starts_with(&begin) || !message.starts_with("guest ");
    let opened = notices
        .iter()
        .filter(|notice| notice.what == "file_opened" && of_guest(&notice.message));
    opened.map(|notice| notice.mono_ns).min()
}

/// Addresses of one QEMU, and what they are.
#[derive(Debug, Default)]
pub(super) struct Backends {
    backends: Vec<u64>,
    stats: Vec<u64>,
    disk_of: PointerMap<u64, u32>,
    distance: Option<u64>,
    /// The guest had one disk when recording began, and nothing tells which address is that one's.
    only_disk: bool,
    /// The statistics that were seen while nothing spoke for a second disk.
    of_only_disk: Option<u64>,
    /// When QEMU first opened another file: from then on there may be another disk.
    opened_ns: Option<u64>,
}

impl Backends {
    pub(super) fn new(guest: &Guest, opened_ns: Option<u64>) -> Self {
        let disk_of: PointerMap<u64, u32> = guest
            .backends
            .iter()
            .filter(|backend| backend.proof != BY_ELIMINATION)
            .map(|backend| (backend.address, backend.disk))
            .collect();
        let only_disk = guest.disks.len() == 1 && disk_of.is_empty();
        let backends = guest
            .backends
            .iter()
            .map(|backend| backend.address)
            .collect();
        Self {
            backends,
            disk_of,
            only_disk,
            opened_ns,
            ..Self::default()
        }
    }

    /// Notes a BlockBackend. Says whether it takes back what the only disk was given.
    pub(super) fn saw_backend(&mut self, address: u64) -> bool {
        if address == 0 || self.backends.contains(&address) {
            return false;
        }
        self.backends.push(address);
        self.learn();
        self.backends.len() > 1 && self.of_only_disk.take().is_some()
    }

    /// Notes statistics that were used at `ts_ns`. Says whether they take back what the only disk was given.
    pub(super) fn saw_stats(&mut self, address: u64, ts_ns: u64) -> bool {
        if address == 0 || self.stats.contains(&address) {
            return false;
        }
        let alone = self.stats.is_empty() && self.backends.len() <= 1;
        let before = self
            .opened_ns
            .is_none_or(|ns| ts_ns.saturating_add(LATE_NS) < ns);
        self.stats.push(address);
        self.learn();
        if self.only_disk && alone && before {
            self.of_only_disk = Some(address);
            return false;
        }
        self.of_only_disk.take().is_some()
    }

    /// The distance that explains the most statistics; of several, the smallest.
    fn learn(&mut self) {
        let mut votes: Vec<(u64, usize)> = Vec::new();
        for stats in &self.stats {
            for backend in &self.backends {
                let distance = stats.wrapping_sub(*backend);
                if distance < MAX_DISTANCE {
                    match votes.iter_mut().find(|(known, _)| *known == distance) {
                        Some((_, n)) => *n += 1,
                        None => votes.push((distance, 1)),
                    }
                }
            }
        }
        self.distance = votes
            .into_iter()
            .max_by(|(a, n), (b, m)| n.cmp(m).then(b.cmp(a)))
            .map(|(distance, _)| distance);
    }

    /// The disk of a BlockBackend, as far as it is known.
    pub(super) fn disk_of_backend(&self, backend: u64) -> Option<u32> {
        let known = self.disk_of.get(&backend).copied();
        known.or_else(|| self.disk_of_stats(backend.wrapping_add(self.distance?)))
    }

    /// The disk, as far as it is known yet.
    pub(super) fn disk_of_stats(&self, stats: u64) -> Option<u32> {
        if self.of_only_disk == Some(stats) {
            return Some(0);
        }
        let backend = stats.wrapping_sub(self.distance?);
        self.disk_of.get(&backend).copied()
    }

    /// The disk of each statistics address at the end. Where exactly one address and one disk are
    /// left, they belong together, unless there are more BlockBackends than disks or QEMU opened another file.
    /// An address without a disk is that of one that was plugged in later, or it cannot be known.
    pub(super) fn assign(
        &self,
        guest: &Guest,
        stats: impl Iterator<Item = u64>,
    ) -> PointerMap<u64, Option<u32>> {
        let mut disks: PointerMap<u64, Option<u32>> = stats
            .map(|stats| (stats, self.disk_of_stats(stats)))
            .collect();
        if self.opened_ns.is_some() || self.backends.len() > guest.disks.len() {
            return disks;
        }
        let proved = self.disk_of.values();
        let taken: Vec<u32> = disks.values().flatten().chain(proved).copied().collect();
        let free: Vec<u32> = (0u32..)
            .take(guest.disks.len())
            .filter(|disk| !taken.contains(disk))
            .collect();
        let mut open = disks.values_mut().filter(|disk| disk.is_none());
        if let ([disk], Some(only), None) = (free.as_slice(), open.next(), open.next()) {
            *only = Some(*disk);
        }
        disks
    }
}

//! How long a plan takes and how much room it needs, before anything is built.

use std::collections::BTreeMap;

use nestrace_rig::{initramfs, kernel_image};

use super::library::TREE_FILE;
use super::oltp::OWN_BYTES;
use super::{Kind, Plan, Step};

/// Seconds that a run takes besides what it measures, under translation: mkfs, mount, layout, counters.
const AROUND_A_RUN: u64 = 4;
/// Seconds more for a run that is recorded.
const AROUND_A_RECORDING: u64 = 6;
/// Seconds of a boot and the making of its disks.
const BOOT: u64 = 10;
/// How many times longer all of these take where the host's role is inside a guest, and its guests are
/// translated twice.
const IN_GUEST: u64 = 15;
/// Bytes per second at which the devices below are written in full.
const DISK_RATE: u64 = 200 << 20;
/// Bytes of a recording, roughly: what a second of a translated guest takes, and no less and no more than these.
const RECORDED_SECOND: u64 = 8 << 20;
const LEAST_RECORDING: u64 = 24 << 20;
const MAX_RECORDING: u64 = 256 << 20;

/// Memory of the guest in the host's role: its own system, the pages of what it reads over 9p, and the layer above
/// this machine's files.
const HOST_GUEST_MEMORY: u64 = 2_560 << 20;
/// What the file system of its disk takes for itself.
const HOST_GUEST_FS: u64 = 512 << 20;

/// Bytes that tar adds to a file: its header, and zeros up to whole blocks.
const TAR_FILE: u64 = 1 << 10;

/// What a plan takes, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Runs of workloads.
    pub n_runs: usize,
    /// Boots of guests.
    pub n_boots: usize,
    /// Seconds.
    pub seconds: u64,
    /// Bytes of devices and images while it runs: these are needed, not estimated.
    pub work_bytes: u64,
    /// Bytes of the guests' kernel and initramfs, of databases and trees of files, as they are made for the cache where
    /// they are not there.
    pub cache_bytes: u64,
    /// Bytes of what stays.
    pub result_bytes: u64,
    /// Bytes of memory for a guest and what serves it, and of modelled disks.
    pub memory_bytes: u64,
}

impl Plan {
    /// Seconds that a step takes, roughly.
    #[must_use]
    pub fn step_seconds(&self, step: &Step) -> u64 {
        let cell = self.cells.get(step.cell);
        let slower = self.slower();
        let measured = cell.map_or(0, |cell| u64::from(cell.workload.expected_seconds()));
        match step.kind {
            Kind::Timed(_) => AROUND_A_RUN * slower + measured,
            Kind::Recorded => {
                let is_timed = cell.is_none_or(|cell| cell.workload.is_timed());
                let recorded = if is_timed {
                    u64::from(self.record_seconds)
                } else {
                    measured
                };
                (AROUND_A_RUN + AROUND_A_RECORDING) * slower + recorded
            }
        }
    }

    /// Bytes of the archives of small files that guests get.
    #[must_use]
    pub fn archive_bytes(&self) -> u64 {
        let of_archive = |entries: u32| u64::from(entries) * (TREE_FILE + TAR_FILE);
        self.trees().into_iter().map(of_archive).sum()
    }

    /// Bytes that a tree of small files takes while it is made: it and its archive are there at the same time.
    #[must_use]
    pub fn tree_bytes(entries: u32) -> u64 {
        u64::from(entries) * (2 * TREE_FILE + TAR_FILE)
    }

    /// Bytes that databases take while they are made: they and their disk are there at the same time, with the programs.
    #[must_use]
    pub fn database_bytes(&self) -> u64 {
        let cells = self.cells.iter();
        let sizes = cells.filter_map(|cell| {
            let oltp = cell.workload.oltp()?;
            Some((oltp.rows, cell.workload.scale.data_bytes))
        });
        let sizes: BTreeMap<u64, u64> = sizes.collect();
        if sizes.is_empty() {
            return 0;
        }
        let each = sizes.values().map(|bytes| bytes + bytes / 4 + OWN_BYTES);
        2 * (each.sum::<u64>() + 2 * OWN_BYTES)
    }

    fn slower(&self) -> u64 {
        if self.host_in_guest { IN_GUEST } else { 1 }
    }
}

impl Estimate {
    /// What is left of the plan's when `n` recordings are there: they take no more room than they have.
    #[must_use]
    pub fn without_recordings(self, plan: &Plan, n: usize) -> Self {
        let there = recording(plan).saturating_mul(n as u64);
        Self {
            result_bytes: self.result_bytes.saturating_sub(there),
            ..self
        }
    }

    /// What a plan takes, of a host inside a guest with that guest.
    pub(super) fn new(plan: &Plan) -> Self {
        let inside = Self::inside(plan);
        if !plan.host_in_guest {
            return inside;
        }
        // A twentieth of its disk is kept for root, and there are tables.
        let disk = inside.work_bytes + inside.work_bytes / 8 + HOST_GUEST_FS;
        Self {
            memory_bytes: inside.memory_bytes + HOST_GUEST_MEMORY + plan.disks_outside_bytes(),
            result_bytes: recordings_of(plan) * recording(plan),
            work_bytes: disk.next_multiple_of(1 << 20),
            ..inside
        }
    }

    /// What it takes of the machine that has the host's role.
    pub(super) fn inside(plan: &Plan) -> Self {
        let schedule = plan.schedule();
        let seconds: u64 = schedule
            .steps
            .iter()
            .map(|step| plan.step_seconds(step))
            .sum();
        // The data of modelled disks is in memory, and they are not written in full.
        let most = |is_modelled: bool| -> u64 {
            let of_batch = |batch: &super::Batch| -> u64 {
                let bases = batch.bases(plan.image_bytes).into_iter();
                let own = bases.filter(|base| base.key.host_disk.model().is_some() == is_modelled);
                own.map(|base| base.bytes).sum()
            };
            // Named devices need no room, and are not written in full.
            let batches = schedule.batches.iter().filter(|_| plan.devices.is_empty());
            batches.map(of_batch).max().unwrap_or(0)
        };
        let devices = most(false);
        // Those of a guest that plays the host are outside of it.
        let modelled = if plan.host_in_guest { 0 } else { most(true) };
        let boot = (BOOT + devices / DISK_RATE) * plan.slower();
        let trees = plan.trees().into_iter().map(Plan::tree_bytes);
        Self {
            n_runs: schedule.steps.len(),
            n_boots: schedule.n_boots(),
            seconds: seconds + schedule.n_boots() as u64 * boot,
            work_bytes: devices,
            cache_bytes: boot_bytes(plan) + trees.sum::<u64>() + plan.database_bytes(),
            result_bytes: if plan.host_in_guest {
                0
            } else {
                recordings_of(plan) * recording(plan)
            },
            memory_bytes: match plan.own_guest {
                Some(_) => modelled,
                None => modelled + (u64::from(plan.guest.memory_mib + 256) << 20),
            },
        }
    }
}

/// Of what guests boot from; a running one has it.
fn boot_bytes(plan: &Plan) -> u64 {
    match plan.own_guest {
        Some(_) => 0,
        None => kernel_image::MAX_BYTES + initramfs::MAX_BYTES,
    }
}

/// Bytes of one.
fn recording(plan: &Plan) -> u64 {
    let bytes = u64::from(plan.record_seconds) * RECORDED_SECOND;
    bytes.clamp(LEAST_RECORDING, MAX_RECORDING)
}

fn recordings_of(plan: &Plan) -> u64 {
    if plan.record_seconds == 0 {
        return 0;
    }
    let recorded = plan.cells.iter().filter(|cell| cell.can_be_recorded());
    recorded.count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_that_btrfs_copies_as_a_whole_has_room_twice() {
        let bytes = |axes: &str| {
            let text = format!(
                "name = 'p'\n[axes]\nhost_fs = 'btrfs'\n{axes}\n[[workload]]\nname = 'randwrite'\n"
            );
            Plan::read(&text).unwrap().estimate().work_bytes
        };
        let image = 512 << 20;
        let sparse = bytes("placement = 'sparse'");
        assert_eq!(
            bytes("placement = 'preallocated'") - sparse,
            image - image / 8
        );
        assert_eq!(bytes("format = 'qcow2'"), sparse);
    }

    #[test]
    fn there_is_room_for_two_levels() {
        let text = "name = 'p'\n[host]\nin_guest = true\n[[workload]]\nname = 'randwrite'\n";
        let plan = Plan::read(text).unwrap();
        let (both, inside) = (plan.estimate(), plan.estimate_inside());
        assert!(both.work_bytes * 19 / 20 >= inside.work_bytes + (256 << 20));
        assert_eq!(both.memory_bytes - inside.memory_bytes, HOST_GUEST_MEMORY);
        // Recordings go to this machine's folder and not to that disk.
        assert_eq!(inside.result_bytes, 0);
        assert!(both.result_bytes > 0);
    }

    #[test]
    fn databases_of_each_size_are_there_once() {
        let bytes = |workloads: &str| {
            let text = format!("name = 'p'\nimage_size = '512M'\n{workloads}");
            Plan::read(&text).unwrap().estimate().cache_bytes
        };
        let one = "[[workload]]\nname = 'oltp-insert'\ndata_size = '32M'\n";
        let same = "[[workload]]\nname = 'oltp-read-write'\ndata_size = '32M'\n";
        let other = "[[workload]]\nname = 'oltp-read-write'\ndata_size = '64M'\n";
        assert_eq!(bytes(one), bytes(&format!("{one}{same}")));
        assert!(bytes(&format!("{one}{other}")) > bytes(one) + (128 << 20));
    }

    #[test]
    fn a_tree_of_files_needs_room_in_the_cache() {
        let bytes = |workload: &str| {
            let text = format!("name = 'p'\n[[workload]]\nname = '{workload}'\n");
            Plan::read(&text).unwrap().estimate().cache_bytes
        };
        // 128 MiB in files of 16 KiB are more than the 4,000 that there are at most.
        let boot = bytes("randread");
        assert_eq!(bytes("unpack-tree"), boot + Plan::tree_bytes(4_000));
        assert_eq!(boot, 640 << 20);
    }
}

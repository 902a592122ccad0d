//! How long a plan takes and how much room it needs, before anything is built.

use super::library::TREE_FILE;
use super::{Kind, Plan, Step};

/// Seconds that a run takes besides what it measures, under translation: mkfs, mount, layout, counters.
const AROUND_A_RUN: u64 = 4;
/// Seconds more for a run that is recorded.
const AROUND_A_RECORDING: u64 = 6;
/// Seconds of a boot and the making of its disks.
const BOOT: u64 = 20;
/// Bytes per second at which the devices beneath are written in full.
const DISK_RATE: u64 = 200 << 20;
/// Bytes of a recording, roughly.
const RECORDING: u64 = 24 << 20;

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
    /// Bytes of what stays.
    pub result_bytes: u64,
    /// Bytes of memory for a guest and what serves it.
    pub memory_bytes: u64,
}

impl Plan {
    /// Seconds that a step takes, roughly.
    #[must_use]
    pub fn step_seconds(&self, step: &Step) -> u64 {
        let cell = self.cells.get(step.cell);
        let measured = cell.map_or(0, |cell| u64::from(cell.workload.expected_seconds()));
        match step.kind {
            Kind::Timed(_) => AROUND_A_RUN + measured,
            Kind::Recorded => AROUND_A_RUN + AROUND_A_RECORDING + u64::from(self.record_seconds),
        }
    }
}

impl Estimate {
    /// What is left of it when `n` recordings are there: they take no more room than they have.
    #[must_use]
    pub fn without_recordings(self, n: usize) -> Self {
        let there = RECORDING.saturating_mul(n as u64);
        Self {
            result_bytes: self.result_bytes.saturating_sub(there),
            ..self
        }
    }

    pub(super) fn new(plan: &Plan) -> Self {
        let schedule = plan.schedule();
        let seconds: u64 = schedule
            .steps
            .iter()
            .map(|step| plan.step_seconds(step))
            .sum();
        let of_batch = |batch: &super::Batch| -> u64 {
            // Named devices need no room, and are not written in full.
            if !plan.devices.is_empty() {
                return 0;
            }
            let bases = batch.bases(plan.image_bytes);
            bases.iter().map(|base| base.bytes).sum()
        };
        let devices = schedule.batches.iter().map(of_batch).max().unwrap_or(0);
        let boot = BOOT + devices / DISK_RATE;
        let entries = plan.cells.iter().map(|cell| cell.workload.tree_entries());
        // The tree and its archive are there at the same time.
        let tree = u64::from(entries.max().unwrap_or(0)) * (2 * TREE_FILE + TAR_FILE);
        let recordings = if plan.record_seconds > 0 {
            plan.cells.len() as u64
        } else {
            0
        };
        Self {
            n_runs: schedule.steps.len(),
            n_boots: schedule.n_boots(),
            seconds: seconds + schedule.n_boots() as u64 * boot,
            work_bytes: devices + tree,
            result_bytes: recordings * RECORDING,
            memory_bytes: u64::from(plan.guest.memory_mib + 256) << 20,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_of_files_needs_room_beside_the_devices() {
        let bytes = |workload: &str| {
            let text = format!("name = 'p'\n[[workload]]\nname = '{workload}'\n");
            Plan::read(&text).unwrap().estimate().work_bytes
        };
        // 128 MiB in files of 16 KiB are more than the 4,000 that there are at most.
        let tree = 4_000 * (2 * TREE_FILE + TAR_FILE);
        assert_eq!(bytes("unpack-tree"), bytes("randread") + tree);
    }
}

//! The independent counts of a guest's disk: its own kernel's, QEMU's, and the host's.

use std::time::Duration;

use anyhow::Context;
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::guest::Guest;

use crate::ground_truth::Counts;
use crate::measure::{Tally, Watched};

/// Counts of a disk on every side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiskCounts {
    /// `/sys/block/DEV/stat` in the guest.
    pub guest: BlockStat,
    /// QEMU's, and those of the device under the image.
    pub host: Counts,
}

impl DiskCounts {
    /// Counts now; `device` is the guest's name of the disk (`vda`).
    pub fn take(disk: &Watched<'_>, device: &str) -> anyhow::Result<Self> {
        Ok(Self {
            guest: guest_stat(disk.guest, device)?,
            host: Counts::take(disk.guest, disk.disk, disk.host)?,
        })
    }

    /// Requests that reach the hypervisor: reads, writes and flushes as QEMU counts them. Discards
    /// are the guest's own count: QEMU 7.2 does not account those of virtio-blk, and makes several of
    /// a large one on SCSI and of one with several ranges on IDE (46 gave 53).
    pub fn requests(&self) -> u64 {
        let qemu = &self.host.disk;
        qemu.reads + qemu.writes + qemu.flushes + self.guest.discards
    }
}

impl Tally for DiskCounts {
    fn since(&self, earlier: &Self) -> Self {
        Self {
            guest: self.guest.since(&earlier.guest),
            host: self.host.since(&earlier.host),
        }
    }

    fn is_at_rest_since(&self, earlier: &Self) -> bool {
        self.guest == earlier.guest && self.host.is_at_rest_since(&earlier.host)
    }
}

/// `/sys/block/DEV/stat` of a guest.
pub fn guest_stat(guest: &Guest, device: &str) -> anyhow::Result<BlockStat> {
    let script = format!("cat /sys/block/{device}/stat");
    let text = guest.run_ok(&script, Duration::from_secs(20))?.stdout;
    BlockStat::parse(&text).with_context(|| format!("read the guest's counts of {device}: {text}"))
}

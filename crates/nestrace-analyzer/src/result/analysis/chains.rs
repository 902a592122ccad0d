//! `chains[]`.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::result::analysis::cpu::SegmentCpu;
use crate::result::dist::Dist;
use crate::result::series::Series;
use crate::result::sums::ChainSums;
use crate::result::unlinked::UnlinkedReason;

/// A disk's guest requests, followed to the host's device.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Chains {
    /// Guest's name.
    pub guest: String,
    /// Disk's name; empty where nothing tells which of QEMU's disks the guest's device is.
    pub disk: String,
    /// Why it is empty; `null` where it is not.
    pub why_no_disk: Option<String>,
    /// The guest's name of the disk (`vda`).
    pub guest_device: String,
    /// Bios, data and flush, counted in the guest before any linking.
    pub guest_bios: u64,
    /// Requests that reach the hypervisor, flushes included, counted in the guest before any linking.
    pub guest_requests: u64,
    /// Bios with every request followed.
    pub linked: u64,
    /// `linked / guest_bios`; `null` without bios.
    pub fraction: Option<f64>,
    /// Bios that were not, by reason.
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "$ref": "#/$defs/UnlinkedReason" })))]
    pub unlinked: BTreeMap<UnlinkedReason, u64>,
    /// Linked bios whose intervals are not inside each other.
    pub wrong_order: u64,
    /// Linked bios that lasted longer on the host than in the guest: its clock stood still or was set
    /// meanwhile (a pause). They are not in `wrong_order`.
    pub stretched: u64,
    /// Mean latency of the linked data bios in the guest.
    pub q2c_mean_ns: f64,
    /// Latency of the linked bios, in the guest.
    pub latency_ns: ChainLatency,
    /// Segments of all linked data bios, in the order of the path.
    pub segments: Vec<Segment>,
    /// The same by operation.
    pub by_op: SegmentsByOperation,
    /// Part of the summed latency that no pair of events covers.
    pub residual_share: f64,
    /// What devices that hand I/O on (dm, md, bcache, loop) did beside it, of linked data bios; the key is there only where
    /// there are such devices.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stacks: Option<StackIo>,
    /// Layers that were not recorded (`qemu`, `file_io`, `host_bio`): they are in the own time of the one
    /// above.
    pub folded: Vec<String>,
    /// QEMU's file I/Os on the disk's images.
    pub file_ios: u64,
    /// Those that could not be tied to a request of QEMU, by reason.
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "$ref": "#/$defs/UnlinkedReason" })))]
    pub file_ios_unlinked: BTreeMap<UnlinkedReason, u64>,
    /// Linked bios that waited for host I/O that others waited for too (a request that QEMU merged, one
    /// sync for several flushes, a journal's commit); each is charged what it waited.
    pub shared: u64,
    /// Linked bios below which something could be one of several requests' work.
    pub ambiguous: u64,
    /// Linked requests by what the guest's memory says of the link: whether the pages of the guest's bio are the buffer that
    /// QEMU moved.
    pub memory_check: MemoryCheck,
    /// Host I/O that guest requests caused, but did not wait for.
    pub deferred: Deferred,
    /// Time of linked bios under flushes: empty ones, and those before and behind data.
    #[serde(skip)]
    pub(crate) under_flush: Dist,
    /// Sums by time, for comparisons.
    #[serde(skip)]
    pub series: Series<ChainSums>,
}

/// Q to the end of linked bios.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ChainLatency {
    /// All with data.
    pub data: Dist,
    /// Reads.
    pub read: Dist,
    /// Writes.
    pub write: Dist,
    /// Flushes without data.
    pub flush: Dist,
    /// Discards.
    pub discard: Dist,
}

/// Segments by operation; flushes are no data bios and only here.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SegmentsByOperation {
    /// Reads.
    pub read: Vec<Segment>,
    /// Writes.
    pub write: Vec<Segment>,
    /// Flushes without data.
    pub flush: Vec<Segment>,
    /// Discards.
    pub discard: Vec<Segment>,
}

/// Where a part of the latency goes.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Segment {
    /// `guest_queue`, …
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::result::segments::CALL_SEGMENT_NAMES)))]
    pub name: &'static str,
    /// Chains that have it.
    pub n: u64,
    /// Over all chains: 0 for those without it.
    pub mean_ns: f64,
    /// Over those that have it; `null` where none has.
    pub p50_ns: Option<u64>,
    /// Over those that have it; `null` where none has.
    pub p99_ns: Option<u64>,
    /// Part of the summed latency.
    pub share: f64,
    /// What the thread did that was waited for.
    pub cpu: SegmentCpu,
    /// Of `stack_submit`, `stack_between` and `stack_complete`: the layers that the time is of, the costliest first. Others
    /// do not have the key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub layers: Option<Vec<SegmentLayer>>,
}

/// Where the time of a stacked device's bios goes: of all bios on it but those that a device above handed on.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Stack {
    /// The kernel's name: `dm-0`.
    pub device: String,
    /// What it is made by: `linear`, `crypt`, `raid1`, …
    pub kind: String,
    /// Bios, data and flush.
    pub bios: u64,
    /// Those that were followed to a lowest device.
    pub followed: u64,
    /// Mean latency of those with data.
    pub q2c_mean_ns: f64,
    /// Of those with data: the own time of each layer, and the lowest devices'; segments that none has are left out.
    pub segments: Vec<Segment>,
    /// The same by operation.
    pub by_op: SegmentsByOperation,
    /// Part of the summed latency that no pair of events covers.
    pub residual_share: f64,
    /// I/O that they waited for beside their own.
    pub beside: StackIo,
    /// `MAJOR << 20 | MINOR`.
    #[serde(skip)]
    pub(crate) dev: u32,
}

/// I/O of stacked devices that bios waited for beside their own; its time is in `host_queue`, `device` and the layers.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StackIo {
    /// Part of the summed latency under what drivers keep for themselves: thin's mappings, md's bitmap and super blocks.
    pub metadata_share: f64,
    /// Part of the summed latency under reads for the parity of a write (RAID4, 5, 6).
    pub read_modify_write_share: f64,
}

/// A layer of a stack of devices.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SegmentLayer {
    /// The kernel's name of the device (`dm-0`); of the file below a loop device its path.
    pub name: String,
    /// What the device is made by: `linear`, `thin`, `crypt`, … (device mapper's targets), `raid1`, `bcache`, `loop`; of the
    /// file below a loop device its file system.
    pub kind: String,
    /// Its own time, over all chains; the layers add up to the segment's.
    pub mean_ns: f64,
    /// `MAJOR << 20 | MINOR`.
    #[serde(skip)]
    pub(crate) dev: u32,
    /// It is the file below the loop device.
    #[serde(skip)]
    pub(crate) of_file: bool,
}

/// Whether links and the guest's memory agree, in requests.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct MemoryCheck {
    /// The guest's pages are the buffer that QEMU moved.
    pub agreed: u64,
    /// They are not: the link is wrong.
    pub contradicted: u64,
    /// Pages or buffer are not known, or the buffer is a copy.
    pub unknown: u64,
}

/// Work that came later.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Deferred {
    /// Host bios: read-ahead.
    pub reads: u64,
    /// Host bios: write-back, journal checkpoints.
    pub writes: u64,
    /// Of both.
    pub bytes: u64,
    /// From the guest's write to the host's bio for it.
    pub delay_ns: Option<Dist>,
}

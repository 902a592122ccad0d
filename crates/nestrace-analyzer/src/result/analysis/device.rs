//! `devices[]`.

use std::collections::BTreeMap;

use serde::Serialize;

use super::block::{Modes, Stats};
use super::figures::DeviceFigures;
use super::server::Server;
use crate::result::analysis::parts::Parts;
use crate::result::dist::Dist;
use crate::result::read_write::ReadWrite;
use crate::result::side::Side;
use crate::result::unlinked::UnlinkedReason;
use crate::result::word::words;

/// One block device.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Device {
    /// `host` or `guest`.
    pub side: Side,
    /// The guest, for one of its devices.
    pub guest: Option<String>,
    /// The kernel's name, or `MAJ:MIN` where the recording does not tell it.
    pub name: String,
    /// `MAJ:MIN`.
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[0-9]+:[0-9]+$")))]
    pub dev: String,
    /// Active scheduler, where known.
    pub scheduler: Option<String>,
    /// The server on a network that does its I/O; `None` for a device of its own machine.
    pub server: Option<Server>,
    /// Time over which its machine was recorded, nanoseconds: rates are per second of it, `queue_depth` is
    /// its mean. Of a guest's device that is the guest's own stream, on the guest's clock.
    pub recorded_ns: u64,
    /// Events by meaning.
    pub counts: Counts,
    /// Bytes at completion.
    pub bytes: Bytes,
    /// Distributions of time.
    pub latency_ns: Latency,
    /// Distances between neighbours in time.
    pub seek_sectors: Seeks,
    /// Requests at the device.
    pub queue_depth: QueueDepth,
    /// Who used it, most device time first; `None` where bios were not recorded.
    pub users: Option<Vec<User>>,
    /// Of a guest's disk: the files whose data it was, most time first, 32 at most; empty where nothing tells
    /// (blktrace), `None` on the host and of a light recording.
    pub files: Option<Vec<GuestFile>>,
    /// Of an array with parity (RAID4, 5, 6): its work in stripes; `None` of other devices.
    pub stripes: Option<StripeIo>,
    /// Events that named an object without a beginning, by reason.
    #[cfg_attr(feature = "schema", schemars(extend("propertyNames" = { "$ref": "#/$defs/UnlinkedReason" })))]
    pub unlinked: BTreeMap<UnlinkedReason, u64>,
    /// Raw totals that must agree with each other; `None` in a light recording.
    pub check: Option<Check>,
    /// Sizes, merges, plugs, processes, histograms; `None` in a light recording.
    pub stats: Option<Stats>,
    /// Curves and series for plots.
    #[serde(skip)]
    pub figures: DeviceFigures,
}

/// What an array with parity did to write. A stripe is a block of 4 KiB at the same place of each member.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StripeIo {
    /// Writes of a stripe.
    pub writes: u64,
    /// Those of them before which blocks were read, because only a part of the stripe was to be written.
    pub partial_writes: u64,
    /// Blocks read for that, data and parity.
    pub extra_reads: u64,
    /// Bytes of these.
    pub extra_read_bytes: u64,
    /// Blocks of parity written.
    pub parity_writes: u64,
    /// Bytes of these.
    pub parity_write_bytes: u64,
}

impl StripeIo {
    pub(crate) const fn add(&mut self, other: Self) {
        self.writes += other.writes;
        self.partial_writes += other.partial_writes;
        self.extra_reads += other.extra_reads;
        self.extra_read_bytes += other.extra_read_bytes;
        self.parity_writes += other.parity_writes;
        self.parity_write_bytes += other.parity_write_bytes;
    }
}

/// Counts of a device; see "What counts as what" in `docs/json.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Counts {
    /// Bios with data at Q.
    pub queued: Option<u64>,
    /// Requests with data at D; a requeued one counts again.
    pub issued: u64,
    /// Requests with data, once, at their last C.
    pub completed: u64,
    /// Discards among `completed`.
    pub discards: u64,
    /// Zero-length flush bios.
    pub flushes: u64,
    /// Flush requests issued to the device.
    pub device_flushes: u64,
    /// M, and discards merged without a trace event.
    pub back_merges: Option<u64>,
    /// F.
    pub front_merges: Option<u64>,
    /// Requests merged into another.
    pub request_merges: Option<u64>,
    /// X.
    pub splits: Option<u64>,
    /// R.
    pub requeues: Option<u64>,
    /// A that arrived at this device.
    pub remaps: Option<u64>,
    /// Requests at D with the read-ahead mark.
    pub readahead: u64,
    /// Requests at D with the metadata mark.
    pub meta: u64,
}

/// Bytes by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Bytes {
    /// Read.
    pub read: u64,
    /// Written, write-zeroes included (as the kernel counts).
    pub write: u64,
    /// Discarded.
    pub discard: u64,
}

impl Bytes {
    /// Sum of all directions.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.read + self.write + self.discard
    }
}

/// Latencies of a device in the vocabulary of `btt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Latency {
    /// Q to the next Q.
    pub q2q: Option<Dist>,
    /// All operations with data.
    #[serde(flatten)]
    pub all: Parts,
    /// Zero-length flush bios, Q to their end.
    pub flush: Option<Dist>,
    /// Flush requests at the device, D to C.
    pub flush_d2c: Option<Dist>,
    /// By operation.
    pub by_op: ByOperation,
}

/// [`Parts`] by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ByOperation {
    /// Reads.
    pub read: Parts,
    /// Writes and write-zeroes.
    pub write: Parts,
    /// Discards.
    pub discard: Parts,
}

/// Seek distances at two places.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Seeks {
    /// Between bios in the order of Q.
    pub q2q: Option<Seek>,
    /// Between requests in the order of D.
    pub d2d: Option<Seek>,
}

/// Distances in sectors, from the end of one I/O to the start of the next; 0 where they touch or overlap.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Seek {
    /// Pairs of neighbours.
    pub n: u64,
    /// Summed distance, exact.
    pub sum: u64,
    /// Mean distance.
    pub mean: Option<u64>,
    /// Median distance.
    pub median: Option<u64>,
    /// Share of distance 0.
    pub sequential_share: Option<f64>,
    /// The distances that occurred most often.
    pub modes: Modes,
}

/// Requests between D and C; on a device without requests (dm, md) bios from Q to their end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct QueueDepth {
    /// Mean over the time of the recording.
    pub mean: f64,
    /// Largest.
    pub max: u64,
    /// Share of the recording with at least one request at the device.
    pub busy_share: f64,
    /// The same in nanoseconds: sides that were recorded for different times are compared by it.
    #[serde(skip)]
    pub busy_ns: u64,
}

words! {
    /// Who a user of a device is.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum UserKind {
        /// An image of a guest.
        Image = "image",
        /// The QEMU process of a guest, file unknown.
        Guest = "guest",
        /// Metadata and journal of a file system, shared.
        FileSystem = "file_system",
        /// The file below a loop device.
        Loop = "loop",
        /// Any other process.
        #[default]
        Process = "process",
    }
}

/// Someone who used a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct User {
    /// `image`, `guest` (its process, file unknown), `file_system` (metadata and journal, shared),
    /// `loop` (the file below a loop device), `process`.
    pub kind: UserKind,
    /// The guest of an image.
    pub guest: Option<String>,
    /// The disk of an image.
    pub disk: Option<String>,
    /// Process name, loop device.
    pub name: Option<String>,
    /// Process id.
    pub pid: Option<u32>,
    /// Requests.
    pub requests: u64,
    /// Bytes.
    pub bytes: u64,
    /// Of these, not read.
    #[serde(skip)]
    pub written_bytes: u64,
    /// Summed D to C.
    pub device_ns: u64,
    /// Part of the device's summed D to C.
    pub share: f64,
}

/// A file of a guest. Recordings have no paths of files: its inode is.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct GuestFile {
    /// Where its file system is mounted in the guest.
    pub mount_point: String,
    /// Its number there.
    pub inode: u64,
    /// Bios with its data.
    pub bios: u64,
    /// Their bytes.
    pub bytes: ReadWrite,
    /// Their summed Q to C.
    pub q2c_ns: u64,
    /// Part of the summed Q to C of all bios with data of the disk.
    pub share: f64,
}

/// Raw totals of the block layer. With nothing lost and a quiet device at both ends:
/// `queued + splits = get_requests + back_merges + front_merges + untraced_merges`,
/// `walked_at_issue = queued + splits − empty_flushes`, `ended = queued − empty_flushes`,
/// `counted_completions = completed + empty_flushes`, and the last five are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Check {
    /// Q, with and without data.
    pub queued: u64,
    /// X.
    pub splits: u64,
    /// G.
    pub get_requests: u64,
    /// M.
    pub back_merges: u64,
    /// F.
    pub front_merges: u64,
    /// Discards found in a request without a G, M or F of their own: the kernel's discard merge
    /// has no tracepoint.
    pub untraced_merges: u64,
    /// Bios in requests at their first D.
    pub walked_at_issue: u64,
    /// Zero-length flush bios at Q.
    pub empty_flushes: u64,
    /// Completions that the kernel counts as an I/O (no FLUSH_SEQ, operation not FLUSH, nothing left).
    pub counted_completions: u64,
    /// Ends of zero-length flush bios.
    pub empty_flushes_ended: u64,
    /// Data bios that ended.
    pub ended: u64,
    /// Lives of bio pointers: Q and front halves of X.
    pub generations: u64,
    /// Ends of a bio that had ended.
    pub ended_twice: u64,
    /// Bio pointers that began a life before the last one had ended.
    pub reused_while_live: u64,
    /// Requests issued again without a completion or requeue in between.
    pub reissued_while_live: u64,
    /// Completions, of requests or of parts of them, that must have been although they were not seen.
    pub completions_missed: u64,
    /// What these requests would have added.
    pub missed: Missed,
    /// Data bios still in flight at the end.
    pub open_at_end: u64,
    /// Bios that were given back at once, because they were not to wait (REQ_NOWAIT) and would have had
    /// to; in no other count. Whoever made them queues them again.
    pub refused: u64,
}

/// What the counts of a device lack because completions were not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Missed {
    /// Of [`Counts::completed`].
    pub completed: u64,
    /// Of [`Counts::discards`].
    pub discards: u64,
    /// Of [`Device::bytes`].
    pub bytes: Bytes,
}

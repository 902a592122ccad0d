//! The result: typed values that serialize to the JSON of `docs/json.md`.
//!
//! Times are nanoseconds, sizes bytes, unless a name says otherwise. `None` becomes `null`: not
//! recorded or not knowable, never 0.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::histogram::Dist;
use crate::verdict::Verdict;

/// Name and major version of the JSON form.
pub const SCHEMA: &str = "nestrace-analysis/1";

/// An array that a later analysis fills; always empty so far.
pub type NotYet = [(); 0];

/// Everything that one recording says.
#[derive(Clone, Debug, Serialize)]
pub struct Analysis {
    /// [`SCHEMA`].
    pub schema: &'static str,
    /// The recording itself.
    pub trace: Trace,
    /// Clock of each guest (needs a guest stream).
    pub clocks: NotYet,
    /// Block devices with I/O, most bytes first.
    pub devices: Vec<Device>,
    /// Requests as QEMU accounts them, one entry for each disk.
    pub qemu: Vec<QemuDisk>,
    /// Image files, in the order of the topology.
    pub images: Vec<Image>,
    /// Guest requests followed to the device (needs a guest stream).
    pub chains: NotYet,
    /// Bytes and flushes by layer (needs a guest stream).
    pub amplification: NotYet,
    /// Rules that fired.
    pub findings: NotYet,
    /// What can be said without chains: an estimate.
    pub verdict: Verdict,
}

/// The recording.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Trace {
    /// As the caller named it.
    pub path: String,
    /// `CLOCK_REALTIME` at the start.
    pub start_unix_ns: u64,
    /// From the start to the end, or to the last event of a recording that was not closed.
    pub duration_ns: u64,
    /// Events read, of all streams.
    pub events: u64,
    /// Events dropped, of all sources.
    pub lost: u64,
    /// Whether the recording was not closed, or its end could not be read.
    pub truncated: bool,
    /// One entry for each stream.
    pub sources: Vec<TraceSource>,
    /// `full` or `light`.
    pub detail: String,
    /// Why it ended, in the recorder's words.
    pub end_reason: String,
    /// Losses by source, where there are any. `walk` counts requests whose list of bios was too
    /// long for the probe; they are not part of [`Trace::lost`].
    pub losses: Vec<SourceLoss>,
    /// Probes that were refused, and what that costs.
    pub refused: Vec<RefusedProbe>,
    /// What happened while recording.
    pub notices: Vec<String>,
    /// Events of kinds that this release does not know.
    pub unknown_events: u64,
}

/// One stream of the recording.
#[derive(Clone, Debug, Default, Serialize)]
pub struct TraceSource {
    /// File name within the bundle.
    pub name: String,
    /// `host` or `guest`.
    pub side: String,
    /// The guest of a guest stream.
    pub guest: Option<String>,
    /// `ebpf` or `blktrace`.
    pub backend: String,
    /// `uname -r`.
    pub kernel: String,
    /// Events read.
    pub events: u64,
    /// Events dropped.
    pub lost: u64,
}

/// Events of one family of probes that found no room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct SourceLoss {
    /// `block`, `file`, `host_fs`, `qemu`, `meta`, `walk`, or what else was lost.
    pub source: String,
    /// The guest, for a loss on its side.
    pub guest: Option<String>,
    /// How many.
    pub events: u64,
}

/// A probe that could not be attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RefusedProbe {
    /// Tracepoint or function.
    pub name: String,
    /// Family of probes.
    pub source: String,
    /// Why.
    pub reason: String,
    /// What is missing without it.
    pub cost: String,
    /// The guest, for a probe of one QEMU.
    pub guest: Option<String>,
}

/// One block device.
#[derive(Clone, Debug, Serialize)]
pub struct Device {
    /// `host` or `guest`.
    pub side: &'static str,
    /// The guest, for one of its devices.
    pub guest: Option<String>,
    /// The kernel's name, or `MAJ:MIN` where the recording does not tell it.
    pub name: String,
    /// `MAJ:MIN`.
    pub dev: String,
    /// Active scheduler, where known.
    pub scheduler: Option<String>,
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
    /// Events that named an object without a beginning, by reason.
    pub unlinked: BTreeMap<&'static str, u64>,
    /// Raw totals that must agree with each other; `None` in a light recording.
    pub check: Option<Check>,
}

/// Counts of a device; see "What counts as what" in `docs/json.md`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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

/// Bytes read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ReadWrite {
    /// Read.
    pub read: u64,
    /// Written.
    pub write: u64,
}

/// Latencies of a device in the vocabulary of `btt`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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

/// The parts of a bio's way. Q2G + G2I + I2D + D2C = Q2C, with G2D in the place of G2I + I2D
/// where there was no insert event, and Q2M + M2D + D2C = Q2C for a merged bio.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// Queued to request allocated, one sample for each fragment.
    pub q2g: Option<Dist>,
    /// Allocated to inserted into the scheduler, one sample for each fragment.
    pub g2i: Option<Dist>,
    /// Allocated to issued, where nothing was inserted.
    pub g2d: Option<Dist>,
    /// Inserted to issued.
    pub i2d: Option<Dist>,
    /// Queued to merged.
    pub q2m: Option<Dist>,
    /// Merged to issued.
    pub m2d: Option<Dist>,
    /// Issued to completed. In a light recording one sample for each request, else each bio.
    pub d2c: Option<Dist>,
    /// Queued to completed.
    pub q2c: Option<Dist>,
}

/// [`Parts`] by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ByOperation {
    /// Reads.
    pub read: Parts,
    /// Writes and write-zeroes.
    pub write: Parts,
    /// Discards.
    pub discard: Parts,
}

/// Seek distances at two places.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Seeks {
    /// Between bios in the order of Q.
    pub q2q: Option<Seek>,
    /// Between requests in the order of D.
    pub d2d: Option<Seek>,
}

/// Distances in sectors, from the end of one I/O to the start of the next; 0 where they touch or overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Seek {
    /// Pairs of neighbours.
    pub n: u64,
    /// Mean distance.
    pub mean: Option<u64>,
    /// Median distance.
    pub median: Option<u64>,
    /// Share of distance 0.
    pub sequential_share: Option<f64>,
}

/// Requests between D and C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct QueueDepth {
    /// Mean over the time of the recording.
    pub mean: f64,
    /// Largest.
    pub max: u64,
    /// Share of the recording with at least one request at the device.
    pub busy_share: f64,
}

/// Someone who used a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct User {
    /// `image`, `guest` (its process, file unknown), `file_system` (metadata and journal, shared),
    /// `loop` (the file beneath a loop device), `process`.
    pub kind: &'static str,
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
    /// Summed D to C.
    pub device_ns: u64,
    /// Part of the device's summed D to C.
    pub share: f64,
}

/// Raw totals of the block layer. With nothing lost and a quiet device at both ends:
/// `queued + splits = get_requests + back_merges + front_merges + untraced_merges`,
/// `walked_at_issue = queued + splits − empty_flushes`, `ended = queued − empty_flushes`,
/// `counted_completions = completed + empty_flushes`, and the last five are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
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
    /// Requests that must have completed although no completion was seen.
    pub completions_missed: u64,
    /// Data bios still in flight at the end.
    pub open_at_end: u64,
    /// Bios that were given back at once, because they were not to wait (REQ_NOWAIT) and would have had
    /// to; in no other count. Whoever made them queues them again.
    pub refused: u64,
}

/// QEMU's accounting of one disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QemuDisk {
    /// The guest.
    pub guest: String,
    /// The disk, or `None` where its BlockBackend could not be told.
    pub disk: Option<String>,
    /// Reads done, merged ones included.
    pub reads: u64,
    /// Writes done, write-zeroes and merged ones included.
    pub writes: u64,
    /// Flushes done.
    pub flushes: u64,
    /// Discards done.
    pub discards: u64,
    /// Requests that QEMU merged into another (virtio-blk); `None` where `blk_aio_*` was not recorded.
    pub merged: Option<u64>,
    /// `merged` by type.
    pub merged_by_type: Option<QemuMerged>,
    /// Requests that failed.
    pub failed: u64,
    /// Requests that were refused before they began (`block_acct_invalid`).
    pub invalid: u64,
    /// Bytes done.
    pub bytes: QemuBytes,
    /// Start to the hand-back to the guest where it was recorded, else to `block_acct_done`.
    pub latency_ns: QemuLatency,
    /// Samples of `latency_ns` that end with the hand-back (`virtqueue_push`).
    pub ended_by_push: u64,
    /// Ends without a recorded start.
    pub unlinked: u64,
}

/// Bytes by QEMU's accounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QemuBytes {
    /// Read.
    pub read: u64,
    /// Written.
    pub write: u64,
    /// Discarded.
    pub discard: u64,
}

/// Requests that QEMU merged into another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QemuMerged {
    /// Reads.
    pub read: u64,
    /// Writes.
    pub write: u64,
    /// Discards.
    pub discard: u64,
}

/// Latency by type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct QemuLatency {
    /// Reads.
    pub read: Dist,
    /// Writes.
    pub write: Dist,
    /// Flushes.
    pub flush: Dist,
    /// Discards.
    pub discard: Dist,
}

/// One image file of a disk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Image {
    /// The guest.
    pub guest: String,
    /// The disk.
    pub disk: String,
    /// Path in QEMU's mount namespace.
    pub path: String,
    /// Inode number.
    pub inode: u64,
    /// 0 for the disk's own image, 1 for its backing file, and so on.
    pub depth: u32,
    /// `raw`, `qcow2`, …
    pub format: String,
    /// The host's file system, where it lies on one.
    pub fs_type: Option<String>,
    /// QEMU's file I/O on it; `None` where file I/O was not recorded.
    pub file_io: Option<ImageFileIo>,
    /// Bytes of bios at Q on the first block device under the file system; `None` where bios were not recorded.
    pub host_bytes: Option<ReadWrite>,
    /// The same file serves several disks or guests; device I/O is listed under the first of them.
    pub shared: bool,
}

/// QEMU's file I/O on an image; calls that failed are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ImageFileIo {
    /// Reads that succeeded.
    pub reads: u64,
    /// Writes that succeeded.
    pub writes: u64,
    /// `fsync` and `fdatasync`.
    pub syncs: u64,
    /// Bytes as the calls returned them.
    pub bytes: ReadWrite,
    /// Writes with RWF_DSYNC or RWF_SYNC.
    pub dsync: u64,
    /// Bios of a file opened with O_DIRECT that carried page-cache pages.
    pub buffered_fallback: u64,
    /// Their bytes.
    pub buffered_fallback_bytes: u64,
    /// `fallocate` calls.
    pub fallocates: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Call (or submission) to return (or completion).
    pub latency_ns: FileLatency,
}

/// Latency of file I/O by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FileLatency {
    /// Reads.
    pub read: Dist,
    /// Writes.
    pub write: Dist,
    /// Syncs.
    pub sync: Dist,
}

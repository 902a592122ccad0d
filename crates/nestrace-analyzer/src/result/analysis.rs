//! The result: typed values that serialize to the JSON of `docs/json.md`.
//!
//! Times are nanoseconds, sizes bytes, unless a name says otherwise. `None` becomes `null`: not
//! recorded or not knowable, never 0.

mod amplification;
mod block;
mod calls;
mod chains;
mod clock;
mod cpu;
mod device;
mod figures;
mod finding;
mod flight;
mod jobs;
mod machine;
mod parts;
mod pressure;
mod server;
mod story;

use nestrace_trace::manifest::Relation;
use serde::Serialize;

use crate::result::cdf::Cdf;
use crate::result::dist::Dist;
pub use crate::result::read_write::ReadWrite;
use crate::result::series::Series;
pub use crate::result::side::Side;
use crate::result::sums::QemuSums;
pub use crate::result::unlinked::UnlinkedReason;
use crate::result::verdict::Verdict;

pub(crate) use amplification::Classes;
pub use amplification::{Amplification, ClassBytes, LayerBytes, LayerFlushes};
pub use block::{
    Active, ActivePeriods, AtQueue, ByOp, Edges, FirstSeek, FirstSeeks, Histograms, Io, IostatRow,
    Modes, OpHistograms, Path, Plug, Process, Q2d, Sizes, Slot, Stats, Step, Way,
};
pub(crate) use calls::SUM;
pub use calls::{CallFile, CallIo, CallOperation, CallRow, GuestCalls, OthersData};
pub use chains::{
    ChainLatency, Chains, Deferred, MemoryCheck, Segment, SegmentLayer, SegmentsByOperation, Stack,
    StackIo,
};
pub use clock::{Clock, ClockMethod, ClockPiece, ErrorBound};
pub use cpu::{CpuTime, QemuThread, QemuThreads, RanInstead, SegmentCpu};
pub use device::{
    ByOperation, Bytes, Check, Counts, Device, GuestFile, Latency, Missed, QueueDepth, Seek, Seeks,
    StripeIo, User, UserKind,
};
pub use figures::{Address, DepthSlot, DeviceFigures, LatencySlot, TimePiece};
pub use finding::{Evidence, Finding, Severity, Unjudged};
pub use flight::{FlightMoment, FlightReading, FlightRow};
pub use jobs::{Job, JobCopies, JobWaits};
pub use machine::{BlockAnalysis, BlockDevice, BlockProcess};
pub use parts::Parts;
pub use pressure::Pressure;
pub use server::Server;
pub use story::{CallStory, Story, StoryLayer, StorySegment, StorySpan, StoryWork};

/// Name and major version of the JSON form.
pub const SCHEMA: &str = "nestrace-analysis/1";

/// Everything that one recording says.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Analysis {
    /// Name and major version of this form: [`SCHEMA`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA)))]
    pub schema: &'static str,
    /// The recording itself.
    pub trace: Trace,
    /// Clock of each guest (needs a guest stream).
    pub clocks: Vec<Clock>,
    /// Block devices with I/O, most bytes first.
    pub devices: Vec<Device>,
    /// Requests as QEMU accounts them, one entry for each disk.
    pub qemu: Vec<QemuDisk>,
    /// Jobs that QEMU did by itself (backup, mirror, commit, stream), as its monitor listed them.
    pub jobs: Vec<Job>,
    /// Image files, in the order of the topology.
    pub images: Vec<Image>,
    /// Guest requests followed to the device (needs a guest stream).
    pub chains: Vec<Chains>,
    /// Devices that hand I/O on to devices below (dm, md, bcache, loop), and where the time of their bios goes; the key is
    /// there only where there are such devices.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stacks: Vec<Stack>,
    /// Calls of the guests' programs by program, file and operation, of each guest the costliest first; `null` where no
    /// guest's calls were recorded: [`Analysis::guest_calls`] says why.
    pub calls: Option<Vec<CallRow>>,
    /// One entry for each recorded session of a guest.
    pub guest_calls: Vec<GuestCalls>,
    /// Bytes and flushes by layer (needs a guest stream).
    pub amplification: Vec<Amplification>,
    /// The threads of each guest's QEMU, where it was recorded when they have a processor.
    pub qemu_threads: Vec<QemuThreads>,
    /// I/O pressure: of the host, then of each guest's cgroup; what the kernel did not count has no entry.
    pub pressure: Vec<Pressure>,
    /// Rules that fired, most at stake first.
    pub findings: Vec<Finding>,
    /// Rules that could not judge.
    pub findings_unjudged: Vec<Unjudged>,
    /// What can be said without chains: an estimate.
    pub verdict: Verdict,
    /// Why a flight recorder wrote it; `null` of any other recording.
    pub flight: Option<FlightMoment>,
    /// Single bios that were asked for (`--io`, `--slowest`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stories: Vec<Story>,
    /// Single calls that were asked for (`--call`, `--slowest N --calls`).
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub call_stories: Vec<CallStory>,
}

/// The recording.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Trace {
    /// As the caller named it.
    pub path: String,
    /// `CLOCK_REALTIME` at the start; `None` where nothing tells it.
    pub start_unix_ns: Option<u64>,
    /// From the start to the end, or to the last event of a recording that was not closed.
    pub duration_ns: u64,
    /// Events read, of all streams.
    pub events: u64,
    /// Events dropped, of all sources.
    pub lost: u64,
    /// Whether the recording was not closed, its end could not be read, or a guest's stream is missing.
    pub truncated: bool,
    /// Whether whoever recorded it closed it. A capture of blktrace has no mark of that and counts as closed; without a
    /// manifest it is not known.
    pub closed: Option<bool>,
    /// One entry for each stream.
    pub sources: Vec<TraceSource>,
    /// `full` or `light`; `None` where nothing tells it.
    pub detail: Option<String>,
    /// Why it ended, in the recorder's words; `None` where none were written.
    pub end_reason: Option<String>,
    /// Losses by source, where there are any. `walk` counts requests whose list of bios was too
    /// long for the probe; they are not part of [`Trace::lost`].
    pub losses: Vec<SourceLoss>,
    /// Streams of guests that could not be read at all.
    pub unread: Vec<UnreadStream>,
    /// Probes that were refused, and what that costs.
    pub refused: Vec<RefusedProbe>,
    /// What happened while recording.
    pub notices: Vec<String>,
    /// Events of kinds that this release does not know.
    pub unknown_events: u64,
    /// Guests whose own streams break off before the recording's end.
    #[serde(skip)]
    pub cut_guests: Vec<String>,
    /// A stretch of the recording was asked for (`--from`, `--to`): `duration_ns` and all else is of that, the
    /// events and the losses are of the whole.
    #[serde(skip)]
    pub is_stretch: bool,
}

/// One stream of the recording.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct TraceSource {
    /// File name within the bundle.
    pub name: String,
    /// `host` or `guest`.
    pub side: Side,
    /// The guest of a guest stream.
    pub guest: Option<String>,
    /// `ebpf` or `blktrace`; `None` where nothing tells it.
    pub backend: Option<String>,
    /// `uname -r`; `None` where nothing tells it.
    pub kernel: Option<String>,
    /// Events read.
    pub events: u64,
    /// Events dropped.
    pub lost: u64,
}

/// Events of one family of probes that found no room.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct SourceLoss {
    /// `block`, `file`, `host_fs`, `qemu`, `meta`, `walk`, or what else was lost.
    pub source: String,
    /// The guest, for a loss on its side.
    pub guest: Option<String>,
    /// How many.
    pub events: u64,
}

/// A stream that the recording has by its manifest, and that is not there or cannot be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct UnreadStream {
    /// File name within the bundle.
    pub name: String,
    /// The guest that recorded it.
    pub guest: String,
    /// Why.
    pub reason: String,
    /// Events that it held, by its index; `None` where nothing tells.
    pub events: Option<u64>,
}

impl UnreadStream {
    /// The stream `name` of a guest, and why it could not be read.
    #[must_use]
    pub const fn new(name: String, guest: String, reason: String, events: Option<u64>) -> Self {
        Self {
            name,
            guest,
            reason,
            events,
        }
    }
}

/// A probe that could not be attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
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

/// QEMU's accounting of one disk.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct QemuDisk {
    /// The guest.
    pub guest: String,
    /// The disk, or `None` where its BlockBackend is not known.
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
    /// Start to the completion notification to the guest where it was recorded, else to `block_acct_done`.
    pub latency_ns: QemuLatency,
    /// Samples of `latency_ns` that end with the completion notification (`virtqueue_push`).
    pub ended_by_push: u64,
    /// Ends without a recorded start.
    pub unlinked: u64,
    /// Latency as curves, for plots.
    #[serde(skip)]
    pub cdf: ReadWriteCdf,
    /// Sums by time, for comparisons.
    #[serde(skip)]
    pub series: Series<QemuSums>,
}

/// A curve for each direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadWriteCdf {
    /// Reads.
    pub read: Cdf,
    /// Writes.
    pub write: Cdf,
}

/// Bytes by QEMU's accounting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
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
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Image {
    /// The guest.
    pub guest: String,
    /// The disk.
    pub disk: String,
    /// Path in QEMU's mount namespace.
    pub path: String,
    /// Inode number.
    pub inode: u64,
    /// 0 for the disk's own image and what holds its data, 1 for its backing file, and so on.
    pub depth: u32,
    /// What it is to the disk or to another image of it.
    pub relation: ImageRelation,
    /// `raw`, `qcow2`, …
    pub format: String,
    /// The host's file system, where it lies on one.
    pub fs_type: Option<String>,
    /// Servers on a network that hold its data: that of its file system, or those of the lowest devices.
    pub servers: Vec<Server>,
    /// QEMU's file I/O on it; `None` where file I/O was not recorded.
    pub file_io: Option<ImageFileIo>,
    /// Calls to the server that carried its data; `None` where they were not recorded.
    pub rpcs: Option<ImageRpcs>,
    /// Bytes of bios at Q on the first block device under the file system; `None` where bios were not recorded.
    pub host_bytes: Option<ReadWrite>,
    /// The same file serves several disks or guests; device I/O is listed under the first of them.
    pub shared: bool,
}

/// What an image is in QEMU's block graph.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ImageRelation {
    /// The disk's own image.
    #[default]
    Own,
    /// Holds what the image above it does not have.
    Backing,
    /// qcow2's external data file.
    DataFile,
    /// A part of the disk: an extent of vmdk.
    Extent,
    /// A further copy: a child of quorum or blkverify.
    Member,
}

impl From<Option<Relation>> for ImageRelation {
    fn from(relation: Option<Relation>) -> Self {
        match relation {
            Some(Relation::BackingOf(_)) => Self::Backing,
            Some(Relation::DataFileOf(_)) => Self::DataFile,
            Some(Relation::ExtentOf(_)) => Self::Extent,
            Some(Relation::MemberOf(_)) => Self::Member,
            _ => Self::Own,
        }
    }
}

/// QEMU's file I/O on an image; calls that failed are not counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
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
    /// The same as curves, for plots.
    #[serde(skip)]
    pub cdf: ReadWriteCdf,
}

/// Calls of the NFS or SMB client to its server about an image, for any process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ImageRpcs {
    /// Calls that read.
    pub reads: u64,
    /// Calls that write.
    pub writes: u64,
    /// Calls that make written data durable.
    pub commits: u64,
    /// Bytes that they were for.
    pub bytes: ReadWrite,
    /// Calls that are known to be for one file I/O of QEMU.
    pub linked: u64,
    /// Begin to end in the client; `sync` of commits.
    pub latency_ns: FileLatency,
    /// From the moment that the call was last sent until its reply came, as sunrpc counts it (of SMB from its begin);
    /// `sync` of commits.
    pub at_server_ns: FileLatency,
}

/// Latency of file I/O by operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FileLatency {
    /// Reads.
    pub read: Dist,
    /// Writes.
    pub write: Dist,
    /// Syncs.
    pub sync: Dist,
}

//! `stories[]`.

use serde::Serialize;

use crate::result::analysis::{CallFile, CallOperation};
use crate::result::side::Side;
use crate::result::unlinked::UnlinkedReason;
use crate::result::word::words;

/// The whole I/O trace of one guest bio.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Story {
    /// Its number among the guest bios of its disk, from 1, in the order of Q.
    pub io: u64,
    /// Guest's name.
    pub guest: String,
    /// Disk's name; empty if the bio was not followed to QEMU.
    pub disk: String,
    /// The guest's name of the disk (`vda`).
    pub guest_device: String,
    /// Q after the start of the recording, on the host's clock; `null` if it was not followed.
    pub at_ns: Option<u64>,
    /// How far `at_ns`, and the borders between guest and host, may be off.
    pub clock_bound_ns: u64,
    /// From Q to C in the guest.
    pub q2c_ns: u64,
    /// Why it was not followed to the host; `null` if it was.
    pub unlinked: Option<UnlinkedReason>,
    /// Something below it could be another request's work.
    pub ambiguous: bool,
    /// Its segments.
    pub segments: Vec<StorySegment>,
    /// What happened.
    pub tree: StorySpan,
}

/// The whole trace of one call of a program in a guest.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CallStory {
    /// `guest`: calls are recorded inside guests.
    pub side: Side,
    /// Its number among the calls of its guest's session, from 1, in the order in which they began.
    pub call: u64,
    /// Guest's name.
    pub guest: String,
    /// The program.
    pub process: String,
    /// Process that the thread is of; `null` where the thread's name was not recorded.
    pub pid: Option<u32>,
    /// Thread that called or submitted.
    pub tid: u32,
    /// `read`, `write`, `fsync`, …
    pub op: CallOperation,
    /// The file.
    pub file: CallFile,
    /// Disk that the file's file system lies on; empty where that is not known.
    pub disk: String,
    /// The guest's name of that disk (`vda`); empty where that is not known.
    pub guest_device: String,
    /// Where its range of the file begins.
    pub offset: u64,
    /// Bytes asked for.
    pub bytes: u64,
    /// What it returned: bytes, or a negative errno.
    pub result: i64,
    /// Its begin after the start of the recording, on the host's clock; `null` where the clock is not known.
    pub at_ns: Option<u64>,
    /// How far `at_ns` and the borders between guest and host may be off.
    pub clock_bound_ns: u64,
    /// From its begin to its end.
    pub latency_ns: u64,
    /// It waited for no bio and was not throttled.
    pub without_io: bool,
    /// Bios that it waited for, those of the journal's commits among them; others may have waited for them too.
    pub bios: u64,
    /// All of its I/O was followed to the host; without that there are no segments.
    pub linked: bool,
    /// Its segments.
    pub segments: Vec<StorySegment>,
    /// What happened.
    pub tree: StorySpan,
}

impl CallStory {
    /// Time in the segment of this name, nanoseconds; `None` where the call was not linked.
    #[must_use]
    pub fn segment_ns(&self, name: &str) -> Option<u64> {
        let found = self.segments.iter().find(|segment| segment.name == name);
        self.linked.then(|| found.map_or(0, |segment| segment.ns))
    }

    /// The latency less all segments, nanoseconds; `None` where the call was not linked.
    #[must_use]
    pub fn residual_ns(&self) -> Option<i64> {
        let segments = self.segments.iter().map(|segment| i128::from(segment.ns));
        let residual_ns = i128::from(self.latency_ns) - segments.sum::<i128>();
        self.linked.then(|| i64::try_from(residual_ns).ok())?
    }
}

/// One segment of an I/O trace.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StorySegment {
    /// `guest_queue`, …
    #[cfg_attr(feature = "schema", schemars(extend("enum" = crate::result::segments::CALL_SEGMENT_NAMES)))]
    pub name: &'static str,
    /// How long.
    pub ns: u64,
}

words! {
    /// Where a span stands in the path of an I/O.
    #[non_exhaustive]
    pub enum StoryLayer {
        /// A call of a program in the guest.
        Call = "call",
        /// The kernel lets a writer pause, because too many pages are dirty.
        Throttle = "throttle",
        /// Pages that are on their way from or to the disk.
        PageWait = "page_wait",
        /// A commit of the guest's journal, or a force of its log.
        GuestJournal = "guest_journal",
        /// A bio of the guest.
        GuestBio = "guest_bio",
        /// A request of the guest between D and C.
        GuestRequest = "guest_request",
        /// A request of QEMU.
        Qemu = "qemu",
        /// A job of QEMU's that the request waits for: a backup copies the old data first.
        QemuJob = "qemu_job",
        /// A call of QEMU on an image file.
        FileIo = "file_io",
        /// QEMU's own client of a server that holds the disk: from QEMU's call to its return.
        Remote = "remote",
        /// A call of a network file system's client to its server.
        ServerCall = "server_call",
        /// A bio of the host.
        HostBio = "host_bio",
        /// A host request between D and C; what a loop, dm or md device did for it lies inside.
        HostRequest = "host_request",
        /// Direct I/O of a loop device on its file.
        StackFile = "stack_file",
    }

    /// What a span does.
    #[non_exhaustive]
    pub enum StoryWork {
        /// A read.
        Read = "read",
        /// A write.
        Write = "write",
        /// A discard.
        Discard = "discard",
        /// A flush.
        Flush = "flush",
        /// `fsync` or `fdatasync`.
        Sync = "sync",
        /// The image's own metadata.
        ImageMetadata = "image_metadata",
        /// A journal of a file system.
        Journal = "journal",
        /// Data of another file than the call's, which a commit has to write first (ext4's ordered mode).
        OthersData = "others_data",
        /// What the driver of a stacked device keeps for itself: thin's mappings, md's bitmap and super blocks.
        LayerMetadata = "layer_metadata",
        /// What RAID4, 5 or 6 reads to compute the parity of a write.
        ReadModifyWrite = "read_modify_write",
        /// Anything else.
        Other = "other",
    }
}

/// An interval in an I/O trace; times count from the bio's Q, in the trace of a call from the call's begin.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct StorySpan {
    /// Which layer.
    pub layer: StoryLayer,
    /// `write`, `flush`, `journal`, …
    pub what: StoryWork,
    /// Disk, image or device.
    pub place: String,
    /// Byte offset in that.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
    /// Begin as the recording's event has it (`ts_ns`): the clock of the machine that the layer is of.
    pub ts_ns: u64,
    /// Begin after the trace's begin.
    pub from_ns: i64,
    /// End after the trace's begin.
    pub to_ns: i64,
    /// Others waited for it too.
    pub shared: bool,
    /// The device hands I/O on to devices below (dm, md, bcache, loop). The key is there only where it is true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub stacked: bool,
    /// A server on a network does the work of the device, or of the file's file system. The key is there only where it is
    /// true.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub remote: bool,
    /// What it waited for.
    pub children: Vec<StorySpan>,
}

//! `jobs[]`: what QEMU does by itself.

use serde::Serialize;

use crate::result::dist::Dist;

/// A job of QEMU's block layer that was seen while recording.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Job {
    /// The guest.
    pub guest: String,
    /// The disk that it works on; `null` where that is not known.
    pub disk: Option<String>,
    /// Its id.
    pub id: String,
    /// `backup`, `mirror`, `commit`, `stream`, …: QEMU's own word.
    pub kind: String,
    /// File of its target; `null` where it has none of its own, or it is not known.
    pub target: Option<String>,
    /// `running`, `paused`, `ready`, … when it was seen last.
    pub status: String,
    /// Bytes a second that it may copy; 0: no limit. `null` where QEMU did not say.
    pub speed: Option<u64>,
    /// How far it was when it was seen last, in bytes.
    pub done_bytes: u64,
    /// How far it goes, in bytes.
    pub total_bytes: u64,
    /// When it was seen first, after the recording's begin; 0 where it was there before.
    pub first_seen_ns: u64,
    /// When it was seen last, after the recording's begin.
    pub last_seen_ns: u64,
    /// What it copied while recording, its own I/O apart from the guest's; `null` where that was not recorded, where it
    /// copies nothing, and where several jobs of the disk cannot be distinguished.
    pub copies: Option<JobCopies>,
    /// The guest's requests that had to wait for it; `null` where [`Self::copies`] is.
    pub guest_waits: Option<JobWaits>,
}

/// Copies from an image to another file, or from a backing file into the image.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct JobCopies {
    /// How many were followed from their read to the end of their write.
    pub n: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Latency of their reads of the image.
    pub read_ns: Dist,
    /// Latency of their writes to the target.
    pub write_ns: Dist,
}

/// Requests of a guest that waited for a job.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct JobWaits {
    /// How many.
    pub n: u64,
    /// How long each waited.
    pub latency_ns: Dist,
}

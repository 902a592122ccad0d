//! `calls[]`.

use serde::Serialize;

use crate::result::analysis::Segment;
use crate::result::dist::Dist;
use crate::result::series::Series;
use crate::result::side::Side;
use crate::result::sums::CallSums;
use crate::result::word::words;

words! {
    /// What a call does.
    #[non_exhaustive]
    pub enum CallOperation {
        /// A read of any form.
        Read = "read",
        /// A write of any form.
        Write = "write",
        /// `fsync`.
        Fsync = "fsync",
        /// `fdatasync`.
        Fdatasync = "fdatasync",
        /// `msync` that waits.
        Msync = "msync",
        /// `sync_file_range`.
        SyncFileRange = "sync_file_range",
        /// `sync`.
        Sync = "sync",
        /// `syncfs`.
        Syncfs = "syncfs",
        /// `fallocate`.
        Fallocate = "fallocate",
        /// `truncate`, `ftruncate`.
        Truncate = "truncate",
        /// An `open` that created the file.
        Open = "open",
        /// `unlink` of a file.
        Unlink = "unlink",
        /// `rename`.
        Rename = "rename",
        /// `mkdir`.
        Mkdir = "mkdir",
        /// `rmdir`.
        Rmdir = "rmdir",
        /// A page fault on a mapped file that had to wait.
        PageFault = "page_fault",
        /// Anything else.
        Other = "other",
    }
}

#[cfg(feature = "dataframe")]
impl CallOperation {
    /// Whether what it returns are the bytes that it moved.
    pub(crate) const fn moves_data(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::PageFault)
    }
}

/// Calls of one operation by one program on one file, from the call down to the device.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CallRow {
    /// `guest`: calls are recorded inside guests.
    pub side: Side,
    /// Guest's name.
    pub guest: String,
    /// The program: the name of its process; `…` where this row sums further ones.
    pub process: String,
    /// The file.
    pub file: CallFile,
    /// `read`, `write`, `fsync`, …
    pub op: CallOperation,
    /// Calls that have ended.
    pub n: u64,
    /// Calls that waited for no I/O: the page cache served them, or nothing was left to do.
    pub without_io: u64,
    /// Calls that failed.
    pub failed: u64,
    /// Calls that were submitted by native aio or io_uring: the program goes on meanwhile.
    pub submitted: u64,
    /// Calls whose I/O was followed to the host, those without I/O among them: the segments are of these.
    pub linked: u64,
    /// Bytes that they moved.
    pub bytes: u64,
    /// From the entry to the return, or from the submission to the completion.
    pub latency_ns: Dist,
    /// Where the time of the linked ones goes, in the order of the path.
    pub segments: Vec<Segment>,
    /// Part of the summed latency that is in no segment.
    pub residual_share: f64,
    /// Part of the summed latency of the linked ones under the guest's journal or log, with the I/O of that.
    pub journal_share: f64,
    /// Part of the summed latency of the linked ones under other files' data, which the journal's commit wrote first
    /// (ext4's ordered mode).
    pub others_data_share: f64,
    /// Part of the summed latency of the linked ones while QEMU synced an image.
    pub image_sync_share: f64,
    /// Other files whose data these calls' commits wrote, most bytes first, eight at most.
    pub others_data: Vec<OthersData>,
    /// Bios that these calls waited for; one that several waited for counts for the first of them.
    pub waited: CallIo,
    /// Bios that these calls caused and did not wait for: write-back of pages that they changed, read-ahead.
    pub deferred: CallIo,
    /// From the write to the write-back of its pages.
    pub deferred_delay_ns: Option<Dist>,
    /// Sums by time, for comparisons; `None` where too many others had more time.
    #[serde(skip)]
    pub(crate) series: Option<Series<CallSums>>,
}

impl CallRow {
    /// Whether this row sums up what is in no row of its own.
    pub(crate) fn is_sum(&self) -> bool {
        self.file.mount == SUM
    }
}

/// In place of a mount point.
pub(crate) const SUM: &str = "…";

/// A file in a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CallFile {
    /// Mount point in the guest; the device's number where no mount of a recorded disk has it; `…` for a sum; empty for
    /// all file systems (`sync`).
    pub mount: String,
    /// Inode number; `null` for a sum, and for a call that names no file (`sync`).
    pub inode: Option<u64>,
    /// Path below the guest's root; `null` where it was not recorded or is not known.
    pub path: Option<String>,
}

impl CallFile {
    /// What a person calls it: its path, or its inode and where it is mounted.
    pub(crate) fn label(&self) -> String {
        match (&self.path, self.inode) {
            (Some(path), _) => path.clone(),
            (None, Some(inode)) => format!("inode {inode} on {}", self.mount),
            (None, None) => self.mount.clone(),
        }
    }
}

/// Bios of a guest's block layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CallIo {
    /// How many.
    pub bios: u64,
    /// Their bytes.
    pub bytes: u64,
}

impl CallIo {
    /// No bio.
    #[must_use]
    pub const fn none() -> Self {
        Self { bios: 0, bytes: 0 }
    }

    pub(crate) fn add(&mut self, bytes: u64) {
        self.bios += 1;
        self.bytes = self.bytes.saturating_add(bytes);
    }

    pub(crate) fn merge(&mut self, other: Self) {
        self.bios += other.bios;
        self.bytes = self.bytes.saturating_add(other.bytes);
    }
}

/// Another file's data in the commits that calls waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OthersData {
    /// The program that wrote it; `null` where its write was not seen.
    pub process: Option<String>,
    /// The file.
    pub file: CallFile,
    /// Bytes of it in these commits.
    pub bytes: u64,
}

/// What is known of one guest's calls.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct GuestCalls {
    /// Guest's name.
    pub guest: String,
    /// Why its calls are not known; `null` where they are.
    pub why_none: Option<String>,
    /// Calls whose end was not seen.
    pub unended: u64,
    /// Bios that calls waited for.
    pub waited: CallIo,
    /// Bios that calls caused and did not wait for.
    pub deferred: CallIo,
    /// Bios of commits that no call waited for.
    pub journal: CallIo,
    /// All other bios: of the file systems' own work, and of calls that were not seen.
    pub other: CallIo,
}

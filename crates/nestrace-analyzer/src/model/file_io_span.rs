//! A file I/O of QEMU as an interval, with the bios that it waited for.

use nestrace_abi::flags::op;

use crate::model::actor::Actor;
use crate::model::span::HostBio;

/// How a file I/O ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileEnd {
    /// Still under way.
    Open,
    Done,
    Failed,
    /// It ended at an unknown time.
    Sometime,
    /// The kernel did not take it.
    Refused,
}

/// A call to a server from the moment that it was last sent until its reply came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RpcSpan {
    /// `flags::op`; of a commit that of `fsync`.
    pub op: u8,
    pub offset: u64,
    pub bytes: u64,
    pub sent_ns: u64,
    pub answered_ns: u64,
}

/// A file I/O of QEMU on an image.
#[derive(Clone, Debug)]
pub(crate) struct FileIoSpan {
    /// Number that no other file I/O of the recording has.
    pub serial: u64,
    /// Index into `Images::images`.
    pub image: u32,
    /// The guest whose QEMU did it.
    pub guest: u32,
    /// `flags::op`.
    pub op: u8,
    pub offset: u64,
    pub bytes: u64,
    pub start_ns: u64,
    /// The last thing known of it while [`FileEnd::Open`] or [`FileEnd::Sometime`].
    pub end_ns: u64,
    /// Thread that called or submitted.
    pub tid: u32,
    /// The thread that ends it: of native aio an interrupt does.
    pub ends: Actor,
    /// User's address of its first buffer; 0 if unknown.
    pub buffer: u64,
    /// Ends only when it is on the device (RWF_DSYNC).
    pub dsync: bool,
    pub end: FileEnd,
    /// What it waited for.
    pub bios: Vec<HostBio>,
    /// Calls to a server that it waited for.
    pub rpcs: Vec<RpcSpan>,
    /// Its control block in the kernel; 0 if none was seen.
    pub kiocb: u64,
    /// A thread that did it for the caller.
    pub worker: u32,
}

impl FileIoSpan {
    /// It waits until the file is on the device.
    pub(crate) const fn syncs(&self) -> bool {
        self.dsync || matches!(self.op, op::FSYNC | op::FDATASYNC | op::SYNC_FILE_RANGE)
    }

    /// Whether the byte range of the file that begins at `offset` has something in common with its
    /// pages.
    pub(crate) fn touches(&self, offset: u64, bytes: u64) -> bool {
        let (start, end) = self.pages();
        offset < end && start < offset.saturating_add(bytes)
    }

    /// Start and end of its range in whole pages of the file.
    pub(crate) fn pages(&self) -> (u64, u64) {
        const PAGE: u64 = 4096;
        let end = self.offset.saturating_add(self.bytes);
        (
            self.offset & !(PAGE - 1),
            end.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX),
        )
    }
}

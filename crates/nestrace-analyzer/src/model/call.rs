//! A call of a program in a guest, with what it waited for.

use nestrace_abi::flags::op;
use nestrace_trace::Event;

use crate::model::aio_key::AioKey;

/// A page fault on a mapped file that had to wait, among the numbers of `flags::op`. It is none of these.
pub(crate) const PAGE_FAULT: u8 = u8::MAX;

/// A file of a guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct FileId {
    /// Device number of its super block.
    pub dev: u32,
    /// Inode number.
    pub inode: u64,
}

/// The caller of an I/O: the thread, what it called and on which file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Thread that called or submitted.
    pub tid: u32,
    /// `flags::op`, or [`PAGE_FAULT`].
    pub op: u8,
    pub file: FileId,
}

/// How a call came to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum By {
    /// A system call, until its return.
    Thread,
    /// Native aio: one control block of an `io_submit`.
    Aio(AioKey),
    /// The io_uring request at this address.
    Uring(u64),
}

/// A bio that a call waited for, or may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitedBio {
    /// Number of the bio in its session.
    pub id: u64,
    pub why: Why,
    /// It was queued in the call.
    pub own: bool,
    pub queued_ns: u64,
    pub ended_ns: u64,
}

/// Why a call waits for a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// It carries the call's own direct I/O, its metadata or its flush.
    Own,
    /// It moves pages of the call's range or file.
    Pages,
    /// Another thread wrote pages of the file back. A sync waits for it if it was queued before the sync had queued its own
    /// last write.
    WriteBack,
    /// The log that the call forced.
    Log,
}

/// A write of XFS' log that a call may have waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogWrite {
    /// Number of the bio in its session.
    pub id: u64,
    pub bio: u64,
    pub dev: u32,
    pub offset: u64,
    pub bytes: u64,
    pub queued_ns: u64,
    pub ended_ns: u64,
}

/// A thread has begun to wait for a write of XFS' log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogWait {
    /// Address of the write's bio.
    pub bio: u64,
    pub ts_ns: u64,
}

/// A commit of btrfs, or a checkpoint of f2fs, which has no number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitId {
    /// Device number of the super block.
    pub dev: u32,
    /// `sub` of `Kind::CommitWait`.
    pub what: u8,
    pub subvolume: u64,
    pub number: u64,
}

impl CommitId {
    /// `sub` of `Kind::CommitWait` for a checkpoint of f2fs.
    const CHECKPOINT: u8 = 3;

    pub(crate) const fn is_checkpoint(self) -> bool {
        self.what == Self::CHECKPOINT
    }

    /// That a `Kind::CommitWait` names.
    pub(crate) const fn of(event: &Event) -> Self {
        Self {
            dev: event.dev,
            what: event.sub,
            subvolume: event.related,
            number: event.object,
        }
    }
}

/// A call has begun to make a commit, or to wait for another thread that makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CommitWait {
    pub commit: CommitId,
    pub ts_ns: u64,
}

/// A call of a program: from its entry to its return, or from its submission to its completion.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Number that no other call of the session has.
    pub serial: u64,
    pub caller: Caller,
    pub by: By,
    /// Where its range of the file begins.
    pub offset: u64,
    /// Bytes asked for.
    pub bytes: u64,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Bytes that it moved, or a negative errno.
    pub result: i64,
    /// By O_DIRECT.
    pub direct: bool,
    /// A write that ends only when it is on the disk (O_SYNC, O_DSYNC, RWF_SYNC, RWF_DSYNC).
    pub synced_write: bool,
    /// Such a write, or a sync, needs no times and sizes that no reader needs (fdatasync, O_DSYNC).
    pub data_only: bool,
    /// Q of the last write that its own thread queued for it; 0 without one.
    pub last_write_ns: u64,
    pub bios: Vec<WaitedBio>,
    /// Pauses of a writer: begin and end.
    pub throttles: Vec<(u64, u64)>,
    /// Waits for space in the journal of ext4 or the log of XFS: begin and end.
    pub log_space: Vec<(u64, u64)>,
    /// Transactions of the journal that hold the inode when its sync ends: all of it, and its data. 0 where not known.
    pub transactions: (u32, u32),
    /// When it forced the log of its file system.
    pub log_forced_ns: Option<u64>,
    /// Writes of XFS' log for which it has waited, and all that have ended since it forced its log.
    pub log_waits: Vec<LogWait>,
    pub log_writes: Vec<LogWrite>,
    /// Commits of btrfs and checkpoints of f2fs that it has made, or for which it has waited.
    pub commit_waits: Vec<CommitWait>,
    /// Nothing was recorded of it before its return.
    pub recorded_at_return: bool,
    /// Direct I/O has begun for it: its end is recorded.
    pub direct_begun: bool,
    /// The kernel's control block of a submitted one; 0 where none was seen.
    pub kiocb: u64,
    /// Its thread has queued a bio for it.
    pub has_bio: bool,
    /// A bio of direct I/O has named its control block.
    pub has_direct_bio: bool,
    /// Bytes of it that no ended bio has covered.
    pub bytes_left: u64,
    /// What it waited for is not all known.
    pub incomplete: bool,
}

impl Call {
    /// It waits until the file is on the disk.
    pub(crate) const fn syncs(&self) -> bool {
        self.synced_write
            || matches!(
                self.caller.op,
                op::FSYNC | op::FDATASYNC | op::MSYNC | op::SYNC_FILE_RANGE | op::SYNC | op::SYNCFS
            )
    }

    /// It moves data of its file.
    pub(crate) const fn moves_data(&self) -> bool {
        matches!(self.caller.op, op::READ | op::WRITE | PAGE_FAULT)
    }

    /// Whether the byte range of its file has something in common with the pages of its own.
    pub(crate) const fn touches(&self, offset: u64, bytes: u64) -> bool {
        const PAGE: u64 = 4096;
        let begin = self.offset & !(PAGE - 1);
        let end = self.offset.saturating_add(self.bytes);
        let end = match end.checked_next_multiple_of(PAGE) {
            Some(end) => end,
            None => u64::MAX,
        };
        offset < end && begin < offset.saturating_add(bytes)
    }

    /// When the page of a fault had been read that its thread queued, or that was in flight when it looked. `None` where it
    /// waited for neither.
    pub(crate) fn page_came_ns(&self) -> Option<u64> {
        let is_proven =
            |bio: &&WaitedBio| bio.why == Why::Pages && (bio.own || bio.queued_ns < self.start_ns);
        let proven = self.bios.iter().filter(is_proven);
        proven.map(|bio| bio.ended_ns).max()
    }

    /// Takes out the bios that it has ended without waiting for: write-back that another thread queued after the sync's own
    /// last write, and reads that end after a fault.
    pub(crate) fn take_unproven(&mut self) -> Vec<WaitedBio> {
        let last_write_ns = self.last_write_ns.max(self.start_ns);
        let fault_end_ns = match self.caller.op {
            PAGE_FAULT => self.end_ns,
            _ => u64::MAX,
        };
        let is_unproven = |bio: &mut WaitedBio| {
            let later = bio.why == Why::WriteBack && bio.queued_ns > last_write_ns;
            later || bio.ended_ns > fault_end_ns
        };
        self.bios.extract_if(.., is_unproven).collect()
    }

    /// The transaction that it waits for, if it waits for one.
    pub(crate) const fn transaction(&self) -> u32 {
        if self.data_only {
            self.transactions.1
        } else {
            self.transactions.0
        }
    }
}

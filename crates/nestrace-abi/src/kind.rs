//! What an event is. The numbers are stored in bundles: never reuse one.
//!
//! The documentation of each kind is its row in the table of `docs/format.md`, which a test of `nestrace-trace` writes.
//! In it, *place* = `dev`, `offset`, `bytes`; *file* = `inode`, `owner_dev`; *guest* = its index in `dev`. Columns that
//! are not named hold 0. Offsets and lengths of the block layer are in bytes on the *whole disk* that `dev` names
//! (sector × 512).

/// Declares [`Kind`] once: number, name, source and meaning.
macro_rules! kinds {
    ($($(#[doc = $doc:literal])+ $name:ident = $number:literal, $text:literal, $source:ident;)+) => {
        /// What an event is; the discriminant is the number in the stored column `kind`.
        #[repr(u8)]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Kind { $($(#[doc = $doc])+ $name = $number,)+ }

        impl Kind {
            /// Every kind, in the order of their numbers.
            pub const ALL: &'static [Self] = &[$(Self::$name,)+];

            /// The kind with this number, or `None` for one that a newer release added.
            // A table is what the compiler makes of it, but later than it looks at what is small enough.
            #[must_use]
            #[inline(always)]
            pub const fn from_u8(number: u8) -> Option<Self> {
                match number { $($number => Some(Self::$name),)+ _ => None }
            }

            /// The name used in exports and documentation.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }

            /// What it means, and what its columns hold: its documentation.
            #[must_use]
            pub const fn meaning(self) -> &'static str {
                match self { $(Self::$name => concat!($($doc),+),)+ }
            }

            /// Whether it is one of `blk_aio_*`: `related` is the BlockBackend.
            #[must_use]
            pub const fn is_aio_call(self) -> bool {
                matches!(
                    self,
                    Self::AioPreadv
                        | Self::AioPwritev
                        | Self::AioPwriteZeroes
                        | Self::AioFlush
                        | Self::AioPdiscard
                )
            }

            /// The source whose loss counter covers this kind.
            #[must_use]
            #[inline(always)]
            pub const fn source(self) -> Source {
                match self { $(Self::$name => Source::$source,)+ }
            }
        }
    };
}

kinds! {
    /// Q, a bio is queued. `object` bio, place, `flags`; `sub` owner: 0 none, 1 direct I/O, 2 page cache, 3 anonymous
    /// memory; owner columns (for direct I/O, `file_offset` is where the whole of it begins), `iocb`, `origin`,
    /// `end_io`, `cgroup`, `aux` priority, `related` the first page's `struct page`; its low six bits hold the place
    /// within that page in units of 64 bytes (only for direct I/O in a guest).
    // The place within the page: `PAGE_IDENTITY_SHIFT`; the owners: `OWNER_*` of `flags`.
    Queue = 1, "queue", Block;
    /// G, a request was allocated for a bio. `object` bio, `dev`.
    GetRequest = 2, "get_request", Block;
    /// M, a bio was merged at the back of a request. `object` bio, `dev`.
    BackMerge = 3, "back_merge", Block;
    /// F, a bio was merged at the front of a request. `object` bio, `dev`.
    FrontMerge = 4, "front_merge", Block;
    /// X, a bio was split. `object` the new front half, `related` the parent, place of the front half; in a guest,
    /// `origin` is the first page of the rest; `related` of `queue` is the first page of the whole.
    Split = 5, "split", Block;
    /// A, a bio was remapped to another device or place. `object` bio, `related` its `bi_private` (0 in older recordings;
    /// one for all bios of a stripe of RAID4, 5 or 6), new place; `file_offset`, `owner_dev` the old offset and device.
    BioRemap = 6, "bio_remap", Block;
    /// A bio of a bio-based device (dm, md) ended. `object` bio, place as left, `aux` status.
    BioComplete = 7, "bio_complete", Block;
    /// S, a thread waits for a free request (kernels before 5.0; only what blktrace recorded). `object` bio, place,
    /// `flags`.
    SleepRequest = 8, "sleep_request", Block;
    /// I, a request entered the scheduler. `object` request, place, `flags`.
    Insert = 10, "insert", Block;
    /// D, a request went to the driver. `object` request, `related` its first bio, place, `flags`, `sub` number of
    /// further bios (255 = or more). Of data in a flush sequence: `iocb` the request that its hardware queue flushes
    /// with (`object` of such a flush); 0 if unknown.
    Issue = 11, "issue", Block;
    /// Up to three further bios of the `issue` just before on the same processor: `object` request; `related`,
    /// `offset`, `bytes`; `dev`.
    Link = 12, "link", Block;
    /// R, a request was put back. `object` request, place, `flags`.
    Requeue = 13, "requeue", Block;
    /// C, a request or a part of it was completed. `object` request, place of this completion, `related` bytes that
    /// remain, `flags`, `sub` not 0: it failed (low byte of the kernel's status: `blk_status_t` since 5.16, before that
    /// a negative errno). If it moves no bytes, `origin` is the bio that it ends (a flush without data, or a bio that
    /// had its data before); 0 if there is none or the backend does not give it; with it `iocb` as `issue` has it.
    Complete = 14, "complete", Block;
    /// A request was merged into another. `object` the request that disappears, place, `flags`.
    RequestMerge = 15, "request_merge", Block;
    /// A request was remapped. `object` request, new place; `file_offset`, `owner_dev` the old offset and device.
    RequestRemap = 16, "request_remap", Block;
    /// A driver has made a bio for another one, right before its Q (bcache and dm's mirror, which report no remap). `object` the bio,
    /// place, `flags`; `related` the bio that it is for, `owner_dev` the device of that.
    BioMade = 17, "bio_made", Block;
    /// P, a thread plugged the queue. `dev`.
    Plug = 20, "plug", Block;
    /// U, a thread's plug was flushed; UT where `sub` is 1 (by the timer or the scheduler). `bytes` number of requests,
    /// `dev`.
    Unplug = 21, "unplug", Block;
    /// Light detail, one per request. `object` request, `related` time of D, `ts_ns` is C, place, `flags`, `sub` as
    /// `complete`.
    RequestDone = 25, "request_done", Block;

    /// A file system call begins. `sub` op, `object` file descriptor, `offset`, `bytes` (the sum of a vector), `flags`
    /// RWF_*, guest, file (a block device's inode is its device number), `aux` f_flags, `iocb` first buffer, 0 if it
    /// could not be read. In a guest's stream: `dev` 0; regular files on the selected mounts only, for every process;
    /// also `read`, `write`, `readv` and `writev`, with the file's position at entry as `offset` (for a write in append
    /// mode: the file's size), `ftruncate` (`offset` the new size), `sync` (no file), `syncfs` (any file of the mount),
    /// `sendfile` as a read of its source, `copy_file_range` as a write to its target, `msync` with MS_SYNC from where
    /// the file system's sync of its first file begins (`related` when the call began; on ext4, XFS and btrfs).
    SyscallEnter = 30, "syscall_enter", File;
    /// The same thread's call returns. `sub` op, `offset` result, guest.
    SyscallExit = 31, "syscall_exit", File;
    /// One iocb of an io_submit. `object` the user's iocb, `sub` op, `offset`, `bytes` (the sum of a vector), `flags`
    /// aio_rw_flags, guest, file, `iocb` first buffer. Not in a guest's stream: the `io_submit` itself.
    AioSubmit = 32, "aio_submit", File;
    /// An io_uring request was submitted. `object` io_kiocb, `related` user_data, `sub` op, `offset`, `bytes` (the sum
    /// of a vector; 0 if it could not be read), `flags` rw_flags, file, `iocb` first buffer. Not in a guest's stream:
    /// requests on registered files.
    UringSubmit = 34, "uring_submit", File;
    /// It completed. `object` io_kiocb, `related` user_data, `offset` result.
    UringComplete = 35, "uring_complete", File;
    /// An io_uring request was handed to a worker thread. `object` io_kiocb.
    UringAsync = 36, "uring_async", File;
    /// Direct I/O enters iomap. `object` kiocb, `offset`, `bytes`, file, `iocb`, `origin`.
    DioBegin = 37, "dio_begin", File;
    /// It has ended. `object` kiocb, `bytes` done, `aux` errno, file, `origin`.
    DioComplete = 38, "dio_complete", File;
    /// A file system's own sync. `sub` op, file.
    SyncEnter = 39, "sync_enter", File;
    /// It ends. `offset` result, file. On ext4 with a journal `related` holds two transactions (`object` of
    /// `journal_commit_end`) of the inode at that moment: in the low 32 bits the last one that changed anything of it,
    /// for which `fsync` waits; in the high 32 bits the last one that its data need, for which `fdatasync` waits; 0 if
    /// unknown. If it is of a later transaction than the sync waited for, another thread has changed the inode since.
    SyncExit = 40, "sync_exit", File;
    /// A call that names a file by its path has returned. `related` the time of its begin, `sub` op, `offset` result;
    /// only in a guest's stream. `open` (of any form) that has created a regular file on a selected mount: `object` its
    /// file descriptor, file, `aux` f_flags. `unlink`, `rename`, `mkdir`, `rmdir`, `truncate` (`bytes` the new size):
    /// `owner_dev` the mount where the path (`rename`: the old one) begins: that of the current folder, or of the folder
    /// whose descriptor is passed; `inode` 0. Not recorded with an absolute path: a probe cannot see its mount. `sub` of
    /// `unlinkat` for a folder is that of `rmdir`.
    CallDone = 41, "call_done", File;
    /// A call to a server of files (NFS, SMB) begins that reads, writes or commits an image's data. `sub` op (of a commit or
    /// a flush that of `fsync`), `object` the client's structure for it (of SMB's flush the thread), `related` the direct I/O
    /// that it is for (0 if it is for the page cache; on SMB since 6.10 whatever it is for), `offset`, `bytes` (of a commit
    /// 0), file; of direct I/O by native aio or io_uring `iocb` and `origin` as `dio_begin` has them. Only in a host's stream.
    RpcBegin = 42, "rpc_begin", File;
    /// It has ended, or begins again with the rest. `sub` op, `object` as `rpc_begin` has it, `related` when it was sent
    /// last (0: it was not; all ones: the client does not say, which is SMB), `offset` how many nanoseconds later its reply
    /// arrived, file.
    RpcEnd = 43, "rpc_end", File;

    /// Read-ahead on an image. `sub` 1 sync, 2 async, 3 by order, 4 unbounded; `offset`, `bytes`, file.
    Readahead = 50, "readahead", HostFs;
    /// A folio of an image entered the page cache. `offset`, `bytes`, file.
    CacheInsert = 51, "cache_insert", HostFs;
    /// A journal (jbd2) begins to commit: `object` transaction, `dev` of the disk. In a guest's stream also a checkpoint of
    /// f2fs (`sub` 1), without a number: `dev` of the super block.
    JournalCommitStart = 52, "journal_commit_start", HostFs;
    /// The commit, or the checkpoint, has ended. As its begin.
    JournalCommitEnd = 53, "journal_commit_end", HostFs;
    /// XFS forces its log. `object` log sequence number, `dev`.
    LogForce = 54, "log_force", HostFs;
    /// Write-back of an inode begins. `bytes` requested (all ones: everything), file.
    WritebackStart = 55, "writeback_start", HostFs;
    /// It ends. `bytes` written, file.
    WritebackEnd = 56, "writeback_end", HostFs;

    /// A commit of a journal (jbd2) reaches its next phase. `sub` 1 locking (waits for the handles that are open), 2
    /// flushing (writes the files' data), 3 logging (writes the metadata into the journal); `object` transaction, `dev`.
    JournalCommitPhase = 57, "journal_commit_phase", HostFs;
    /// A thread within a selected call begins to sleep because there are too many dirty pages. `offset` for how many
    /// nanoseconds at most. Only in a guest's stream.
    DirtyThrottle = 58, "dirty_throttle", HostFs;
    /// A page fault on a mapped file looks into the page cache, and reads what is not there; again if it had to wait.
    /// Those that the kernel maps around another page are not seen. `offset` of the page, file. Only in a guest's stream.
    PageFault = 59, "page_fault", HostFs;

    /// `block_acct_start`. `object` cookie, `related` stats, `bytes`, `sub` 1 read, 2 write, 3 flush, 4 unmap; guest.
    AcctStart = 60, "acct_start", Qemu;
    /// `block_acct_done`. `object` cookie, `related` stats.
    AcctDone = 61, "acct_done", Qemu;
    /// `block_acct_failed`. As `acct_done`.
    AcctFailed = 62, "acct_failed", Qemu;
    /// `block_acct_invalid`. `related` stats, `sub` as `acct_start`.
    AcctInvalid = 63, "acct_invalid", Qemu;
    /// `blk_aio_preadv`. `object` opaque, `related` BlockBackend, `offset`, `bytes`, `flags`, `iocb` first buffer.
    AioPreadv = 64, "blk_aio_preadv", Qemu;
    /// `blk_aio_pwritev`. As `blk_aio_preadv`.
    AioPwritev = 65, "blk_aio_pwritev", Qemu;
    /// `blk_aio_pwrite_zeroes`. As `blk_aio_preadv`, without a buffer.
    AioPwriteZeroes = 66, "blk_aio_pwrite_zeroes", Qemu;
    /// `blk_aio_flush`. `object` opaque, `related` BlockBackend.
    AioFlush = 67, "blk_aio_flush", Qemu;
    /// `blk_aio_pdiscard`. As `blk_aio_preadv`, without a buffer.
    AioPdiscard = 68, "blk_aio_pdiscard", Qemu;
    /// `virtqueue_push` on a queue with block requests. `object` elem, `related` queue.
    VirtqueuePush = 69, "virtqueue_push", Qemu;
    /// `vm_state_notify`: the guest's processors stop (`sub` 0) or run (`sub` 1). `aux` QEMU's RunState (3 io-error, 4
    /// paused, 9 running, …); guest.
    GuestRun = 70, "guest_run", Qemu;
    /// `qemu_system_reset`. `sub` QEMU's ShutdownCause (3 over QMP, 7 by the guest, …); guest.
    GuestReset = 71, "guest_reset", Qemu;

    /// A thread's name, again when it has changed. `tid`, `object` tgid, `related` and `offset` the 16 bytes of comm.
    Thread = 80, "thread", Meta;
    /// Written by the collector. `sub` source (0 block, 1 file, 2 host_fs, 3 qemu, 4 meta, 5 walk, 6 cpu), `object` events
    /// dropped in this stream so far. If a guest's agent starts to record again, or batches are missing, one loss of
    /// the block layer stands for all missing events, at the time of the last event before.
    // `related` 1: no total, but a reader's mark that events of the source are missing here. It is in no recording.
    Loss = 81, "loss", Meta;

    /// A thread waits for a write of XFS' log. `object` the bio of that write, `sub` how far it is
    /// (`XLOG_STATE_*`: 1 and 2 it has not ended; 0 and from 3 on it has), `related` the log sequence number, `dev`. Only
    /// in a guest's stream.
    LogWait = 82, "log_wait", HostFs;
    /// A thread makes a commit of btrfs or a checkpoint of f2fs, or waits until another one has made it. `sub` 1 of a
    /// subvolume's log, 2 of a transaction, 3 a checkpoint; `object` its number (0 of a checkpoint), `related` the
    /// subvolume (0 of the others), `dev`. Only in a guest's stream.
    CommitWait = 83, "commit_wait", HostFs;
    /// A thread waits for space in the journal of ext4 or the log of XFS, which is made by writing metadata to its place.
    /// `sub` 1 it begins to wait, 2 the wait is over (XFS: the thread looks again); `dev`. Only in a guest's stream.
    LogSpace = 84, "log_space", HostFs;

    /// A processor goes from one thread to another, and one of them carries I/O. `tid` the thread that leaves, `sub` what it
    /// does without the processor (0 it waits for one: preempted; 1 asleep, 2 asleep and no signal wakes it, 3 stopped or
    /// ended), `object` the thread that comes (0 the idle one), `dev` which of the two carry I/O (1 the one that leaves, 2
    /// the one that comes, 3 both), `related` and `offset` the 16 bytes of comm of the one that comes, or of the one that
    /// leaves if that does not carry I/O.
    Switch = 90, "switch", Cpu;
    /// A sleeping thread that carries I/O is woken: from now on it waits for a processor. `object` the thread, `tid` the one
    /// that ran where it was woken from.
    Wake = 91, "wake", Cpu;
}

/// A family of probes with a loss counter of its own.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Source {
    /// Block layer events.
    Block = 0,
    /// Host file I/O: system calls, aio, io_uring, iomap, sync.
    File = 1,
    /// Host file system and page cache.
    HostFs = 2,
    /// QEMU's entry probes.
    Qemu = 3,
    /// Thread names.
    Meta = 4,
    /// Not ring records: requests with more bios, or calls with more control blocks, than a probe
    /// walks. The count is of those requests and calls.
    Walk = 5,
    /// When threads that carry I/O have a processor.
    Cpu = 6,
}

impl Source {
    /// Every source, in the order of their numbers.
    pub const ALL: &'static [Self] = &[
        Self::Block,
        Self::File,
        Self::HostFs,
        Self::Qemu,
        Self::Meta,
        Self::Walk,
        Self::Cpu,
    ];

    /// The name in JSON and in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Block => "block",
            Self::File => "file",
            Self::HostFs => "host_fs",
            Self::Qemu => "qemu",
            Self::Meta => "meta",
            Self::Walk => "walk",
            Self::Cpu => "cpu",
        }
    }
}

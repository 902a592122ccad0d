//! What an event is. The numbers are stored in bundles: never reuse one.
//!
//! In the tables below, columns that are not named hold 0. "Block" offsets and lengths are in
//! bytes on the *whole disk* that `dev` names (sector × 512).

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
    /// A bio is queued (Q). `object` bio, `offset`/`bytes`/`flags`/`dev`; the owner columns say whose
    /// pages or direct I/O it carries, `end_io` who is told of its end, `aux` its I/O priority.
    /// `related`: the first page's `struct page` with the place within it (see `PAGE_IDENTITY_SHIFT`), or 0; of direct I/O
    /// in a guest only. For direct I/O `file_offset` is where the whole direct I/O begins. `sub`: an `OWNER_*` value of `flags`.
    Queue = 1, "queue", Block;
    /// A request was allocated for a bio (G). `object` bio, `dev`.
    GetRequest = 2, "get_request", Block;
    /// A bio was merged at the back of a request (M). `object` bio, `dev`.
    BackMerge = 3, "back_merge", Block;
    /// A bio was merged at the front of a request (F). `object` bio, `dev`.
    FrontMerge = 4, "front_merge", Block;
    /// A bio was split (X). `object` the new *front* half, `related` the parent (its `bi_private`),
    /// `offset`/`bytes` of the front half, `dev`. In a guest `origin` is the first page of the rest, as `related` of
    /// [`Kind::Queue`] is the first page of the whole.
    Split = 5, "split", Block;
    /// A bio was remapped to another device or sector (A). `object` bio, `offset`/`bytes`/`dev` the new
    /// place; `file_offset` the old byte offset, `owner_dev` the old device (partition, dm, md).
    BioRemap = 6, "bio_remap", Block;
    /// A bio ended (bio-based devices such as dm and md). `object` bio, `offset`/`bytes` as left, `dev`,
    /// `aux` the status (blk_status_t).
    BioComplete = 7, "bio_complete", Block;
    /// A thread waits for a free request for a bio (S; kernels before 5.0, from blktrace only). `object` bio,
    /// `offset`/`bytes`/`flags`/`dev`.
    SleepRequest = 8, "sleep_request", Block;
    /// A request entered the scheduler (I). `object` request, `offset`/`bytes`/`flags`/`dev`.
    Insert = 10, "insert", Block;
    /// A request went to the driver (D). `object` request, `related` its first bio, `offset`/`bytes`/
    /// `flags`/`dev`, `sub` the number of bios that `Link` events add (saturating at 255).
    Issue = 11, "issue", Block;
    /// Further bios of the request of the `Issue` just before it on the same processor: `object` request;
    /// `related`, `offset`, `bytes` = up to three further bios (0 = none), `dev`.
    Link = 12, "link", Block;
    /// A request was put back (R). `object` request, `offset`/`bytes`/`flags`/`dev`.
    Requeue = 13, "requeue", Block;
    /// A request, or a part of it, was completed (C). `object` request, `bytes` this completion's bytes,
    /// `offset` where it began, `related` the bytes that remain, `flags`, `dev`, `sub` not 0: it failed (the
    /// low byte of the kernel's status: `blk_status_t` since 5.16, before that a negative errno). `origin` of one
    /// that moves nothing: the bio that it ends, a flush without data or one whose data came before; 0 where there
    /// is none (a flush request of the device), and in blktrace's.
    Complete = 14, "complete", Block;
    /// A request was merged into another. `object` request that disappears, `offset`/`bytes`/`flags`/`dev`.
    RequestMerge = 15, "request_merge", Block;
    /// A request was remapped. `object` request, `offset`/`bytes`/`dev`; `file_offset` old byte offset,
    /// `owner_dev` old device.
    RequestRemap = 16, "request_remap", Block;
    /// The queue of `dev` was plugged by the thread (P).
    Plug = 20, "plug", Block;
    /// The thread's plug was flushed (U, or UT where `sub` is 1: the timer or the scheduler, not the
    /// thread, asked). `bytes` = the number of requests, `dev`.
    Unplug = 21, "unplug", Block;
    /// Light detail: one whole request. `object` request, `related` D in ns, `ts_ns` is C; `offset`/`bytes`
    /// (all completed bytes)/`flags`/`dev`, `sub` as `Complete`.
    RequestDone = 25, "request_done", Block;

    /// A file system call begins: of a traced process, or (in a guest) of any process on a regular file of a
    /// chosen mount. `sub` an [`op`](crate::flags::op), `object` the file
    /// descriptor, `offset`/`bytes` as far as the call names them (vectored calls: the sum), `flags` the
    /// call's own flags (RWF_*), `dev` the guest (in a guest 0); owner columns: the file's inode and device,
    /// `aux` its f_flags (O_DIRECT, O_DSYNC). A block device's inode is its device number. `iocb` of a read or
    /// write: the user's address of the first buffer (`iov_base` of the first part), 0 where unreadable. In a
    /// guest, read, write, readv and writev are sent too; `offset` is then the file's position at entry, and of
    /// a write to a file that is appended to its size.
    SyscallEnter = 30, "syscall_enter", File;
    /// It returns, on the same `tid`. `sub` op, `offset` the result (two's complement), `dev` the guest.
    SyscallExit = 31, "syscall_exit", File;
    /// One iocb of an `io_submit`. `object` the user's iocb, `sub` op, `offset`/`bytes`, `flags` aio_rw_flags,
    /// `dev` guest; owner: file. `bytes` of a vectored one is the sum. `iocb` as `SyscallEnter`. (In a guest the
    /// `io_submit` itself is not sent.)
    AioSubmit = 32, "aio_submit", File;
    /// One io_uring request was submitted. `object` the io_kiocb, `related` user_data, `sub` op, `offset`/`bytes`
    /// (of a vectored one the sum, 0 where unreadable; the completion has it), `flags` rw_flags, owner: file.
    /// `iocb` as `SyscallEnter`.
    UringSubmit = 34, "uring_submit", File;
    /// It completed. `object` io_kiocb, `related` user_data, `offset` the result (two's complement).
    UringComplete = 35, "uring_complete", File;
    /// An io_uring request was handed to a worker thread. `object` io_kiocb.
    UringAsync = 36, "uring_async", File;
    /// Direct I/O enters iomap. `object` kiocb, `offset`/`bytes`, owner: file, `iocb`, `origin`.
    DioBegin = 37, "dio_begin", File;
    /// Direct I/O has ended in iomap. `object` kiocb, `bytes` done, `aux` errno; owner: file, `origin`.
    DioComplete = 38, "dio_complete", File;
    /// A file system's own sync begins. `sub` op (FSYNC or FDATASYNC), owner: file.
    SyncEnter = 39, "sync_enter", File;
    /// It ends. `offset` the result; owner: file.
    SyncExit = 40, "sync_exit", File;

    /// Read-ahead on an image. `sub`: 1 sync, 2 async, 3 by order, 4 unbounded; `offset`/`bytes`, owner: file.
    Readahead = 50, "readahead", HostFs;
    /// A page (folio) of an image entered the page cache. `offset`/`bytes`; owner: file.
    CacheInsert = 51, "cache_insert", HostFs;
    /// jbd2 begins to commit. `object` transaction id, `dev` the file system's device.
    JournalCommitStart = 52, "journal_commit_start", HostFs;
    /// The commit ended. `object` transaction id, `dev`.
    JournalCommitEnd = 53, "journal_commit_end", HostFs;
    /// XFS forces its log. `dev`, `object` the log sequence number.
    LogForce = 54, "log_force", HostFs;
    /// Write-back of one inode begins. `bytes` asked for (all ones: everything), owner: file.
    WritebackStart = 55, "writeback_start", HostFs;
    /// It ends. `bytes` written, owner: file.
    WritebackEnd = 56, "writeback_end", HostFs;

    /// `block_acct_start`. `object` cookie, `related` stats, `bytes`, `sub` the type (QEMU's BLOCK_ACCT_*:
    /// 1 read, 2 write, 3 flush, 4 unmap), `dev` guest.
    AcctStart = 60, "acct_start", Qemu;
    /// `block_acct_done`. `object` cookie, `related` stats.
    AcctDone = 61, "acct_done", Qemu;
    /// `block_acct_failed`. As `AcctDone`.
    AcctFailed = 62, "acct_failed", Qemu;
    /// `block_acct_invalid`. `related` stats, `sub` type.
    AcctInvalid = 63, "acct_invalid", Qemu;
    /// `blk_aio_preadv`. `object` opaque, `related` the BlockBackend, `offset`, `bytes` (the vector's size), `flags`,
    /// `iocb` QEMU's address of the first buffer (`iov_base` of the first part; 0 where unreadable): the buffer
    /// of the file I/O that serves it without a copy.
    AioPreadv = 64, "blk_aio_preadv", Qemu;
    /// `blk_aio_pwritev`. As `AioPreadv`.
    AioPwritev = 65, "blk_aio_pwritev", Qemu;
    /// `blk_aio_pwrite_zeroes`. As `AioPreadv`, without a buffer.
    AioPwriteZeroes = 66, "blk_aio_pwrite_zeroes", Qemu;
    /// `blk_aio_flush`. `object` opaque, `related` the BlockBackend.
    AioFlush = 67, "blk_aio_flush", Qemu;
    /// `blk_aio_pdiscard`. As `AioPreadv`, without a buffer.
    AioPdiscard = 68, "blk_aio_pdiscard", Qemu;
    /// `virtqueue_push` on a queue that carried block requests. `object` elem, `related` the queue.
    VirtqueuePush = 69, "virtqueue_push", Qemu;
    /// `vm_state_notify`: the guest's processors were started or stopped. `sub` 1 running, 0 stopped, `aux`
    /// the state (QEMU's RunState: 3 io-error, 4 paused, 9 running, …), `dev` guest.
    GuestRun = 70, "guest_run", Qemu;
    /// `qemu_system_reset`: the machine is reset. `sub` why (QEMU's ShutdownCause: 3 QMP, 7 the guest, …),
    /// `dev` guest.
    GuestReset = 71, "guest_reset", Qemu;

    /// The name of a thread, before or right after its first event and the first after it changed. `tid`, `object`
    /// tgid, `related`+`offset` the 16 bytes of `comm`, little endian.
    Thread = 80, "thread", Meta;
    /// Written by the collector: how many events of a source the kernel had to drop so far.
    /// `sub` the [`Source`], `object` the total. `related` 1: no total, a reader's mark that events of the
    /// source are missing here.
    Loss = 81, "loss", Meta;
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
        }
    }
}

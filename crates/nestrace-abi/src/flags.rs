//! Operation and flags in a *stored* event. The kernel's own bits move between versions (REQ_RAHEAD
//! and RQF_FLUSH_SEQ both did), so the collector translates them, with the positions that BTF gives.

/// Bits 0–7: the operation.
pub const OP_MASK: u32 = 0xff;
/// Read.
pub const OP_READ: u32 = 0;
/// Write.
pub const OP_WRITE: u32 = 1;
/// Flush of the device's cache, no data.
pub const OP_FLUSH: u32 = 2;
/// Discard.
pub const OP_DISCARD: u32 = 3;
/// Write zeroes.
pub const OP_WRITE_ZEROES: u32 = 4;
/// Secure erase.
pub const OP_SECURE_ERASE: u32 = 5;
/// Zone operations, driver commands and whatever else the kernel has.
pub const OP_OTHER: u32 = 15;

/// Someone waits for it (REQ_SYNC).
pub const SYNC: u32 = 1 << 8;
/// Metadata of a file system (REQ_META).
pub const META: u32 = 1 << 9;
/// Forced unit access (REQ_FUA).
pub const FUA: u32 = 1 << 10;
/// Flush the cache first (REQ_PREFLUSH).
pub const PREFLUSH: u32 = 1 << 11;
/// Read-ahead (REQ_RAHEAD).
pub const RAHEAD: u32 = 1 << 12;
/// Boosted priority (REQ_PRIO).
pub const PRIO: u32 = 1 << 13;
/// Anticipate idleness (REQ_IDLE).
pub const IDLE: u32 = 1 << 14;
/// Background write-back (REQ_BACKGROUND).
pub const BACKGROUND: u32 = 1 << 15;
/// Do not wait (REQ_NOWAIT).
pub const NOWAIT: u32 = 1 << 16;
/// The request is part of the flush machinery's sequence (RQF_FLUSH_SEQ).
pub const FLUSH_SEQ: u32 = 1 << 24;

/// Bit in a *ring record's* raw `flags` (the kernel's `opf`, whose own bits end below) for RQF_FLUSH_SEQ.
pub const RAW_FLUSH_SEQ: u32 = 1 << 31;

/// `Queue.sub`: the bio carries no page and no control block that names an owner.
pub const OWNER_NONE: u8 = 0;
/// `Queue.sub`: direct I/O, identified by its kiocb.
pub const OWNER_DIRECT: u8 = 1;
/// `Queue.sub`: pages of a file, or of a block device's own inode (metadata), in the page cache.
pub const OWNER_PAGES: u8 = 2;
/// `Queue.sub`: anonymous memory without a kiocb that can be read: direct I/O of an unknown file.
pub const OWNER_ANONYMOUS: u8 = 3;

/// File I/O operations (`sub` of `SyscallEnter`, `CallDone`, `AioSubmit`, `UringSubmit`, `SyncEnter`).
pub mod op {
    /// A read of any form.
    pub const READ: u8 = 1;
    /// A write of any form.
    pub const WRITE: u8 = 2;
    /// `fsync`.
    pub const FSYNC: u8 = 3;
    /// `fdatasync`.
    pub const FDATASYNC: u8 = 4;
    /// `fallocate`; the mode is in `flags`.
    pub const FALLOCATE: u8 = 5;
    /// `sync_file_range`.
    pub const SYNC_FILE_RANGE: u8 = 6;
    /// `io_submit` itself; `bytes` is the number of control blocks.
    pub const IO_SUBMIT: u8 = 7;
    /// `truncate`, `ftruncate`.
    pub const TRUNCATE: u8 = 8;
    /// `sync`.
    pub const SYNC: u8 = 9;
    /// `syncfs`.
    pub const SYNCFS: u8 = 10;
    /// `open`, `openat`, `openat2`, `creat`.
    pub const OPEN: u8 = 11;
    /// `unlink`, `unlinkat` of a file.
    pub const UNLINK: u8 = 12;
    /// `rename`, `renameat`, `renameat2`.
    pub const RENAME: u8 = 13;
    /// `mkdir`, `mkdirat`.
    pub const MKDIR: u8 = 14;
    /// An io_uring request of another kind (poll, timeout, …); `flags` is its opcode.
    pub const OTHER: u8 = 15;
    /// `rmdir`, `unlinkat` of a folder.
    pub const RMDIR: u8 = 16;
    /// `msync` with MS_SYNC.
    pub const MSYNC: u8 = 17;
}

/// What a thread does that leaves its processor (`sub` of `Switch`).
pub mod thread_state {
    /// It would go on at once: it was preempted, or gave way.
    pub const RUNNABLE: u8 = 0;
    /// It waits for something (`TASK_INTERRUPTIBLE`, `TASK_IDLE`).
    pub const ASLEEP: u8 = 1;
    /// It waits for something, and no signal wakes it: mostly I/O (`TASK_UNINTERRUPTIBLE`).
    pub const UNINTERRUPTIBLE: u8 = 2;
    /// It was stopped, is traced or has ended.
    pub const STOPPED: u8 = 3;
}

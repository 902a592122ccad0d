//! The table of probes: each program of the probe object, where it attaches, and what a recording
//! lacks without it. The order is that of a request on its way down.

mod rows;

use nestrace_abi::Source;

pub use crate::how::How;
use rows::*;

/// At which `--detail` a probe is attached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    Full,
    Light,
    Both,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProbeRow {
    /// Name of the program in the probe object.
    pub program: &'static str,
    /// The tracepoint or function.
    pub target: &'static str,
    /// The name of the same tracepoint on older kernels.
    pub older_target: Option<&'static str>,
    /// The loss counter that it counts into.
    pub source: Source,
    /// How it is attached.
    pub how: How,
    /// The module that has the tracepoint where it is not built in, if it is one file system's.
    pub module: Option<&'static str>,
    /// What the user loses without it, as a sentence.
    pub cost: &'static str,
    pub(crate) at: At,
    /// It is a second program for events of threads, which none needs where tracepoints are not preempted.
    pub(crate) where_preempted: bool,
    /// It is for images only: of all files of a guest's mounts it would be too much.
    pub(crate) images_only: bool,
    /// It is of use only where files are chosen by mount, which is a guest's way.
    pub by_mount: bool,
}

/// Every row of the kernel; QEMU's functions are in [`QEMU`].
pub const TRACEPOINTS: &[ProbeRow] = &[
    block(
        "block_bio_queue",
        "Which file a host I/O belongs to, and its time before the request, stay unknown.",
    ),
    of_threads("block_bio_queue_nested", "block_bio_queue", BLOCK_FULL),
    block(
        "block_getrq",
        "The time from queueing to a request (q2g) stays unknown.",
    ),
    of_threads("block_getrq_nested", "block_getrq", BLOCK_FULL),
    block(
        "block_bio_backmerge",
        "Back merges are not counted and merged I/O lacks q2m and m2d.",
    ),
    of_threads(
        "block_bio_backmerge_nested",
        "block_bio_backmerge",
        BLOCK_FULL,
    ),
    block(
        "block_bio_frontmerge",
        "Front merges are not counted and merged I/O lacks q2m and m2d.",
    ),
    of_threads(
        "block_bio_frontmerge_nested",
        "block_bio_frontmerge",
        BLOCK_FULL,
    ),
    block(
        "block_split",
        "Split I/O cannot be followed: the fragments look like new I/O.",
    ),
    of_threads("block_split_nested", "block_split", BLOCK_FULL),
    block(
        "block_bio_remap",
        "I/O cannot be followed through partitions, dm and md.",
    ),
    of_threads("block_bio_remap_nested", "block_bio_remap", BLOCK_FULL),
    block(
        "block_bio_complete",
        "I/O on dm and md devices has no end of its own.",
    ),
    nested("block_bio_complete_nested", "block_bio_complete", At::Full),
    block(
        "block_rq_insert",
        "The scheduler's share of the queue time (i2d) stays unknown.",
    ),
    of_threads("block_rq_insert_nested", "block_rq_insert", BLOCK_FULL),
    block(
        "block_rq_issue",
        "There is no device latency: nothing says when a request reached the driver.",
    ),
    of_threads("block_rq_issue_nested", "block_rq_issue", BLOCK_FULL),
    block(
        "block_rq_requeue",
        "Requests that the driver requeued count as dispatched twice.",
    ),
    block(
        "block_rq_complete",
        "There is no device latency: nothing says when a request ended.",
    ),
    nested("block_rq_complete_nested", "block_rq_complete", At::Full),
    block(
        "block_rq_merge",
        "Merges of two requests are not counted; the swallowed one never ends.",
    ),
    of_threads("block_rq_merge_nested", "block_rq_merge", BLOCK_FULL),
    block(
        "block_rq_remap",
        "Requests of request-based dm cannot be followed to the path below.",
    ),
    block(
        "block_plug",
        "Plugging is not shown; its time is part of the queue time.",
    ),
    block(
        "block_unplug",
        "Unplugging is not shown; its time is part of the queue time.",
    ),
    light("light_rq_issue", "block_rq_issue"),
    of_threads("light_rq_issue_nested", "block_rq_issue", BLOCK_LIGHT),
    light("light_rq_complete", "block_rq_complete"),
    nested("light_rq_complete_nested", "block_rq_complete", At::Light),
    call(
        "sys_enter",
        "QEMU's system calls on its images are not seen: host file I/O folds into QEMU's own time.",
    ),
    of_threads("sys_enter_nested", "sys_enter", CALL),
    ProbeRow {
        // A program of its own, so that the loops over control blocks do not burden the verifier
        // with every other call.
        program: "sys_enter_io_submit",
        ..call(
            "sys_enter",
            "Native aio is not seen: what QEMU submits by io_submit has no begin.",
        )
    },
    of_threads("sys_enter_io_submit_nested", "sys_enter", CALL),
    call(
        "sys_exit",
        "The end of QEMU's system calls is not seen: host file I/O folds into QEMU's own time.",
    ),
    of_threads("sys_exit_nested", "sys_exit", CALL),
    ProbeRow {
        older_target: Some("io_uring_submit_sqe"),
        ..file(
            "io_uring_submit_req",
            "File I/O that QEMU submits by io_uring (aio=io_uring) is not seen.",
        )
    },
    ProbeRow {
        older_target: Some("io_uring_submit_sqe"),
        ..of_threads("io_uring_submit_req_nested", "io_uring_submit_req", FILE)
    },
    file(
        "io_uring_complete",
        "The end of io_uring file I/O is not seen; direct I/O may still end in iomap.",
    ),
    of_threads("io_uring_complete_nested", "io_uring_complete", FILE),
    file(
        "io_uring_queue_async_work",
        "Whether io_uring handed I/O to a worker thread stays unknown.",
    ),
    of_threads(
        "io_uring_queue_async_work_nested",
        "io_uring_queue_async_work",
        FILE,
    ),
    file(
        "iomap_dio_rw_begin",
        "The begin of direct I/O in iomap is not seen; the system call's begin stands for it.",
    ),
    of_threads("iomap_dio_rw_begin_nested", "iomap_dio_rw_begin", FILE),
    file(
        "iomap_dio_complete",
        "The end of direct I/O with aio=native is not seen: it folds into QEMU's completion time.",
    ),
    ProbeRow {
        program: "iomap_dio_complete_nested",
        ..file(
            "iomap_dio_complete",
            "Ends of direct I/O that interrupt the program for another one are lost (and counted).",
        )
    },
    module_file(
        "ext4_sync_file_enter",
        "ext4",
        "A sync by io_uring on ext4 has no begin of its own.",
    ),
    module_file(
        "ext4_sync_file_exit",
        "ext4",
        "A sync by io_uring on ext4 has no end of its own.",
    ),
    module_file(
        "xfs_file_fsync",
        "xfs",
        "A sync by io_uring on XFS has no begin of its own.",
    ),
    module_file(
        "btrfs_sync_file",
        "btrfs",
        "A sync by io_uring on btrfs has no begin of its own.",
    ),
    rpc("nfs_initiate_read"),
    rpc("nfs_initiate_write"),
    rpc("nfs_initiate_commit"),
    rpc("nfs_readpage_done"),
    rpc("nfs_writeback_done"),
    rpc("nfs_commit_done"),
    smb_call("smb2_async_readv"),
    smb_call("smb2_async_writev"),
    smb_call("smb2_readv_callback"),
    smb_call("smb2_writev_callback"),
    smb_call("smb2_flush_file"),
    ProbeRow {
        program: "smb2_flushed_file",
        how: How::Kretprobe,
        ..smb_call("smb2_flush_file")
    },
    page_cache(
        "page_cache_sync_ra",
        "Read-ahead is known by the flag of the I/O only, not by what asked for it.",
    ),
    page_cache(
        "page_cache_async_ra",
        "Read-ahead is known by the flag of the I/O only, not by what asked for it.",
    ),
    page_cache(
        "page_cache_ra_order",
        "The size of folios in read-ahead stays unknown.",
    ),
    page_cache(
        "page_cache_ra_unbounded",
        "Read-ahead beyond the window (fs-verity and the like) is known by its flag only.",
    ),
    page_cache(
        "mm_filemap_add_to_page_cache",
        "Which parts of an image entered the page cache stays unknown.",
    ),
    journal_commit("jbd2_start_commit"),
    journal_phase("jbd2_commit_locking"),
    journal_phase("jbd2_commit_flushing"),
    journal_phase("jbd2_commit_logging"),
    journal_commit("jbd2_end_commit"),
    module_fs(
        "xfs_log_force",
        "xfs",
        "Waiting for the XFS log cannot be distinguished from other waiting.",
    ),
    mount_module_fs(
        "xlog_iclog_wait_on",
        "xfs",
        "Which write of the XFS log a sync waits for stays unknown where several file systems write logs.",
    ),
    log_space("xfs_log_grant_sleep"),
    log_space("xfs_log_grant_wake"),
    function("__jbd2_log_wait_for_space", "jbd2", JOURNAL_SPACE),
    function_return(
        "__jbd2_log_waited_for_space",
        "__jbd2_log_wait_for_space",
        "jbd2",
        JOURNAL_SPACE,
    ),
    function(
        "btrfs_sync_log",
        "btrfs",
        "Waiting for a log that another thread writes cannot be distinguished from other waiting on btrfs.",
    ),
    function(
        "btrfs_commit_transaction",
        "btrfs",
        "Waiting for a transaction that another thread commits cannot be distinguished from other waiting on btrfs.",
    ),
    mount_module_fs(
        "f2fs_write_checkpoint",
        "f2fs",
        "The I/O of f2fs' checkpoints cannot be distinguished from other waiting.",
    ),
    function(
        "f2fs_issue_checkpoint",
        "f2fs",
        "Waiting for a checkpoint cannot be distinguished from other waiting on f2fs.",
    ),
    page_cache(
        "writeback_single_inode_start",
        "Write-back of an image has no begin: its I/O is seen, not what asked for it.",
    ),
    page_cache(
        "writeback_single_inode",
        "Write-back of an image has no end: its I/O is seen, not what asked for it.",
    ),
    mount_fs(
        "balance_dirty_pages",
        "The sleep of writers that have made too many pages dirty cannot be distinguished from other waiting.",
    ),
    mount_fs_of_threads("balance_dirty_pages_nested", "balance_dirty_pages"),
    mount_fs(
        "mm_filemap_fault",
        "Page faults on mapped files have no begin.",
    ),
    mount_fs_of_threads("mm_filemap_fault_nested", "mm_filemap_fault"),
    cpu("sched_switch"),
    cpu("sched_waking"),
];

/// QEMU's functions; each is attached once for every QEMU binary.
pub const QEMU: &[ProbeRow] = &[
    qemu(
        "block_acct_start",
        "When a request reached QEMU's block layer stays unknown: QEMU is known by its file I/O only.",
    ),
    qemu(
        "block_acct_done",
        "When QEMU had finished a request stays unknown: QEMU is known by its file I/O only.",
    ),
    qemu(
        "block_acct_failed",
        "Failed requests look as if they never ended.",
    ),
    qemu(
        "block_acct_invalid",
        "Invalid requests of the guest are not counted.",
    ),
    qemu(
        "blk_aio_preadv",
        "Reads in QEMU have no offset and cannot be linked to the guest's.",
    ),
    qemu(
        "blk_aio_pwritev",
        "Writes in QEMU have no offset and cannot be linked to the guest's.",
    ),
    qemu(
        "blk_aio_pwrite_zeroes",
        "Write-zeroes in QEMU has no offset and cannot be distinguished from a write.",
    ),
    qemu(
        "blk_aio_flush",
        "Flushes in QEMU cannot be linked to the disk that they flush.",
    ),
    qemu(
        "blk_aio_pdiscard",
        "Discards in QEMU have no offset and cannot be linked to the guest's.",
    ),
    qemu(
        "virtqueue_push",
        "The completion notification is not seen; the last host event of a request stands for it: qemu_complete folds into virt_complete.",
    ),
    qemu(
        "vm_state_notify",
        "A guest that is paused and resumed is not noticed: its pause looks like waiting.",
    ),
    qemu("qemu_system_reset", "A reset of the guest is not noticed."),
];

/// USDT probes of QEMU (its own trace events, provider `qemu`) that carry the same first arguments as
/// a function of [`QEMU`], for builds that export no symbols. `virtqueue_push(vq, elem, len)` calls
/// `virtqueue_fill`, whose trace event is `virtqueue_fill(vq, elem, len, idx)`. The accounting has none.
pub const QEMU_USDT: &[(&str, &str)] = &[("virtqueue_push", "virtqueue_fill")];

/// Modules that carry types or tracepoints of the tables where they are not built in, in the order
/// in which they depend on one another. `/sys/kernel/btf` names them like this.
pub const MODULES: &[&str] = &[
    "jbd2", "ext4", "xfs", "btrfs", "f2fs", "loop", "dm_mod", "md_mod", "bcache", "sunrpc", "nfs",
    "cifs",
];

/// Every tracepoint that a row names, each once.
pub fn tracepoints() -> impl Iterator<Item = &'static str> {
    // Programs that share a tracepoint with another one have a name of their own.
    let rows = TRACEPOINTS
        .iter()
        .filter(|row| row.program == row.target && !row.how.is_on_function());
    rows.flat_map(|row| std::iter::once(row.target).chain(row.older_target))
}

/// Every function of the kernel that a row names.
pub fn functions() -> impl Iterator<Item = &'static str> {
    // A function's return is another program on it.
    let rows = TRACEPOINTS.iter().filter(|row| row.how == How::Kprobe);
    rows.map(|row| row.target)
}

//! The journal of ext4, the logs of XFS and btrfs and the checkpoints of f2fs, in a guest: which write, which commit, or
//! which space a thread waits for.

use aya_ebpf::{
    btf_maps::LruHashMap,
    helpers::bpf_get_current_pid_tgid,
    macros::{btf_map, kprobe, kretprobe, raw_tracepoint},
    programs::{ProbeContext, RawTracePointContext, RetProbeContext},
};
use nestrace_abi::{Kind, Record, Source};

use crate::{caller, layout::*, preemption, ring, thread};

#[raw_tracepoint(tracepoint = "xlog_iclog_wait_on")]
pub fn xlog_iclog_wait_on(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| log_wait(ctx.arg(0)))
}

/// A record of this super block's file system, if its mount is wanted.
#[inline(always)]
fn record_of(kind: Kind, super_block: u64) -> Option<Record> {
    let dev: u32 = copy_field(super_block, &SB_DEV);
    if !caller::wants_mount(dev) {
        return None;
    }
    thread::introduce();
    let mut record = ring::stamp(kind);
    record.dev = dev;
    Some(record)
}

/// The same of a log of XFS.
#[inline(always)]
fn record_of_log(kind: Kind, log: u64) -> Option<Record> {
    let mount: u64 = copy_field(log, &XFS_LOG_MOUNT);
    record_of(kind, copy_field(mount, &XFS_MOUNT_SUPER))
}

/// A thread waits for a write of XFS' log, if that has not ended. The write's bio is a part of its `xlog_in_core`.
#[inline(always)]
fn log_wait(iclog: u64) -> i32 {
    if !ring::open() || !has(&XFS_ICLOG_BIO) {
        return 0;
    }
    let Some(mut record) = record_of_log(Kind::LogWait, copy_field(iclog, &XFS_ICLOG_LOG)) else {
        return 0;
    };
    let header: u64 = copy_field(iclog, &XFS_ICLOG_HEADER);
    record.sub = copy_field::<u32>(iclog, &XFS_ICLOG_STATE) as u8;
    record.object = iclog + u64::from(XFS_ICLOG_BIO.load());
    record.related = u64::from_be(copy_field(header, &XFS_RECORD_LSN));
    ring::send(record, Source::HostFs);
    0
}

/// What a thread does that needs space in a log; the stored `sub`.
mod space {
    pub const SLEEPS: u8 = 1;
    pub const WAKES: u8 = 2;
}

#[raw_tracepoint(tracepoint = "xfs_log_grant_sleep")]
pub fn xfs_log_grant_sleep(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| log_space(ctx.arg(0), space::SLEEPS))
}

#[raw_tracepoint(tracepoint = "xfs_log_grant_wake")]
pub fn xfs_log_grant_wake(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| log_space(ctx.arg(0), space::WAKES))
}

#[inline(always)]
fn log_space(log: u64, does: u8) -> i32 {
    if !ring::open() || !has(&XFS_LOG_MOUNT) {
        return 0;
    }
    if let Some(mut record) = record_of_log(Kind::LogSpace, log) {
        record.sub = does;
        ring::send(record, Source::HostFs);
    }
    0
}

/// By thread: the super block of the ext4 whose journal it waits for.
#[btf_map]
static IN_JOURNAL_WAIT: LruHashMap<u32, u32, 4096> = LruHashMap::new();

/// jbd2 makes space by a checkpoint, which one thread makes and the others wait for, or waits for a commit.
#[kprobe]
pub fn __jbd2_log_wait_for_space(ctx: ProbeContext) -> u32 {
    let tid = bpf_get_current_pid_tgid() as u32;
    // The kernel may have missed the last return.
    let _ = IN_JOURNAL_WAIT.remove(&tid);
    if !ring::open() || !has(&JOURNAL_DEV) {
        return 0;
    }
    let bdev: u64 = copy_field(ctx.arg::<u64>(0).unwrap_or_default(), &JOURNAL_DEV);
    let dev: u32 = copy_field(bdev, &BDEV_DEV);
    if !caller::wants_mount(dev) {
        return 0;
    }
    thread::introduce();
    let _ = IN_JOURNAL_WAIT.insert(&tid, &dev, 0);
    journal_space(dev, space::SLEEPS)
}

#[kretprobe]
pub fn __jbd2_log_waited_for_space(_ctx: RetProbeContext) -> u32 {
    let tid = bpf_get_current_pid_tgid() as u32;
    // SAFETY: the value is read at once.
    let Some(dev) = unsafe { IN_JOURNAL_WAIT.get(&tid) }.copied() else {
        return 0;
    };
    let _ = IN_JOURNAL_WAIT.remove(&tid);
    if !ring::open() {
        return 0;
    }
    journal_space(dev, space::WAKES)
}

#[inline(always)]
fn journal_space(dev: u32, does: u8) -> u32 {
    let mut record = ring::stamp(Kind::LogSpace);
    record.dev = dev;
    record.sub = does;
    ring::send(record, Source::HostFs);
    0
}

/// What is committed; the stored `sub`.
mod commit {
    pub const LOG: u8 = 1;
    pub const TRANSACTION: u8 = 2;
    pub const CHECKPOINT: u8 = 3;
}

/// A thread makes this commit, or waits until another one has made it.
#[inline(always)]
fn commit_wait(super_block: u64, what: u8, number: u64, subvolume: u64) -> u32 {
    if let Some(mut record) = record_of(Kind::CommitWait, super_block) {
        record.sub = what;
        record.object = number;
        record.related = subvolume;
        ring::send(record, Source::HostFs);
    }
    0
}

#[kprobe]
pub fn btrfs_sync_log(ctx: ProbeContext) -> u32 {
    let (root, log): (u64, u64) = (ctx.arg(1).unwrap_or_default(), ctx.arg(2).unwrap_or_default());
    if !ring::open() || !has(&BTRFS_LOG_TRANSID) {
        return 0;
    }
    let number: u32 = copy_field(log, &BTRFS_LOG_TRANSID);
    let fs: u64 = copy_field(root, &BTRFS_ROOT_FS);
    commit_wait(
        copy_field(fs, &BTRFS_FS_SUPER),
        commit::LOG,
        u64::from(number),
        copy_field(root, &BTRFS_ROOT_ID),
    )
}

#[kprobe]
pub fn btrfs_commit_transaction(ctx: ProbeContext) -> u32 {
    let handle: u64 = ctx.arg(0).unwrap_or_default();
    if !ring::open() || !has(&BTRFS_HANDLE_TRANSID) {
        return 0;
    }
    let number: u64 = copy_field(handle, &BTRFS_HANDLE_TRANSID);
    let fs: u64 = copy_field(handle, &BTRFS_HANDLE_FS);
    commit_wait(copy_field(fs, &BTRFS_FS_SUPER), commit::TRANSACTION, number, 0)
}

#[kprobe]
pub fn f2fs_issue_checkpoint(ctx: ProbeContext) -> u32 {
    if !ring::open() || !has(&F2FS_SUPER) {
        return 0;
    }
    let fs: u64 = ctx.arg(0).unwrap_or_default();
    commit_wait(copy_field(fs, &F2FS_SUPER), commit::CHECKPOINT, 0, 0)
}

/// How far a checkpoint of f2fs is; a newer kernel passes the number, an older one a text.
mod phase {
    pub const START: u64 = 0;
    pub const END: u64 = 2;
    pub const MAX_NUMBER: u64 = 16;
    /// How the texts begin: "start block_ops" and "finish checkpoint".
    pub const START_TEXT: u64 = u64::from_le_bytes(*b"start bl");
    pub const END_TEXT: u64 = u64::from_le_bytes(*b"finish c");
}

/// Of f2fs; the stored `sub`.
const F2FS: u8 = 1;

#[raw_tracepoint(tracepoint = "f2fs_write_checkpoint")]
pub fn f2fs_write_checkpoint(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| checkpoint(ctx.arg(0), ctx.arg(2)))
}

#[inline(always)]
fn checkpoint(super_block: u64, phase: u64) -> i32 {
    if !ring::open() {
        return 0;
    }
    let said = if phase < phase::MAX_NUMBER { phase } else { copy(phase) };
    let kind = match said {
        phase::START | phase::START_TEXT => Kind::JournalCommitStart,
        phase::END | phase::END_TEXT => Kind::JournalCommitEnd,
        _ => return 0,
    };
    if let Some(mut record) = record_of(kind, super_block) {
        record.sub = F2FS;
        ring::send(record, Source::HostFs);
    }
    0
}

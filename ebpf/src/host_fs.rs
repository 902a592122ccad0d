//! What the host's file system and page cache do for an image: read-ahead, insertions, journal
//! commits, write-back; and for the files of a guest's mounts: throttled writers, page faults.

use aya_ebpf::{
    EbpfContext as _, helpers::bpf_get_current_pid_tgid, macros::raw_tracepoint, programs::RawTracePointContext,
};
use nestrace_abi::{Kind, Owner, Record, Source};

use crate::{caller, layout::*, owner, preemption, ring, second_program, thread};

const PAGE_SHIFT: u64 = 12;

/// A record about a wanted inode.
#[inline(always)]
fn inode_record(kind: Kind, inode: u64) -> Option<(Record, Owner)> {
    if inode == 0 || !ring::open() {
        return None;
    }
    let mut owner = Owner::default();
    owner::describe_inode(&mut owner, &owner::inode_at(inode));
    if !caller::wants_inode(owner.inode, owner.owner_dev) {
        return None;
    }
    Some((ring::stamp(kind), owner))
}

/// How read-ahead was asked for; the stored `sub`.
mod readahead {
    pub const SYNC: u8 = 1;
    pub const ASYNC: u8 = 2;
    pub const ORDER: u8 = 3;
    pub const UNBOUNDED: u8 = 4;
}

#[inline(always)]
fn send_readahead(ctx: &RawTracePointContext, how: u8, pages: u64) -> i32 {
    if let Some((mut record, owner)) = inode_record(Kind::Readahead, ctx.arg(0)) {
        record.sub = how;
        record.offset = ctx.arg::<u64>(1) << PAGE_SHIFT;
        record.bytes = pages << PAGE_SHIFT;
        ring::send_owned(record, owner, Source::HostFs);
    }
    0
}

#[raw_tracepoint(tracepoint = "page_cache_sync_ra")]
pub fn page_cache_sync_ra(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| send_readahead(&ctx, readahead::SYNC, ctx.arg(3)))
}

#[raw_tracepoint(tracepoint = "page_cache_async_ra")]
pub fn page_cache_async_ra(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| send_readahead(&ctx, readahead::ASYNC, ctx.arg(3)))
}

#[raw_tracepoint(tracepoint = "page_cache_ra_order")]
pub fn page_cache_ra_order(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        let pages: u32 = if has(&RA_SIZE) { copy_field(ctx.arg::<u64>(2), &RA_SIZE) } else { 0 };
        send_readahead(&ctx, readahead::ORDER, u64::from(pages))
    })
}

#[raw_tracepoint(tracepoint = "page_cache_ra_unbounded")]
pub fn page_cache_ra_unbounded(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| send_readahead(&ctx, readahead::UNBOUNDED, ctx.arg(2)))
}

/// Pages of a folio as a power of two.
#[inline(always)]
fn folio_order(folio: u64) -> u64 {
    if !has(&FOLIO_FLAGS) || PG_HEAD_BIT.load() == 0 {
        return 0;
    }
    let flags: u64 = copy_field(folio, &FOLIO_FLAGS);
    if (flags >> (PG_HEAD_BIT.load() & 63)) & 1 == 0 {
        return 0;
    }
    if has(&FOLIO_ORDER) {
        return u64::from(copy_field::<u8>(folio, &FOLIO_ORDER));
    }
    if has(&FOLIO_FLAGS_1) {
        return copy_field::<u64>(folio, &FOLIO_FLAGS_1) & 0xff;
    }
    0
}

#[raw_tracepoint(tracepoint = "mm_filemap_add_to_page_cache")]
pub fn mm_filemap_add_to_page_cache(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        let folio: u64 = ctx.arg(0);
        let mapping: u64 = copy_field(folio, &FOLIO_MAPPING);
        if mapping == 0 {
            return 0;
        }
        if let Some((mut record, owner)) = inode_record(Kind::CacheInsert, copy_field(mapping, &MAPPING_HOST)) {
            record.offset = copy_field::<u64>(folio, &FOLIO_INDEX) << PAGE_SHIFT;
            record.bytes = 1 << (PAGE_SHIFT + (folio_order(folio) & 31));
            ring::send_owned(record, owner, Source::HostFs);
        }
        0
    })
}

/// What a commit of the journal begins; the stored `sub`.
mod phase {
    pub const LOCKING: u8 = 1;
    pub const FLUSHING: u8 = 2;
    pub const LOGGING: u8 = 3;
}

#[inline(always)]
fn journal_commit(kind: Kind, phase: u8, ctx: &RawTracePointContext) -> i32 {
    if !ring::open() || !has(&JOURNAL_DEV) {
        return 0;
    }
    let bdev: u64 = copy_field(ctx.arg::<u64>(0), &JOURNAL_DEV);
    let disk: u64 = copy_field(bdev, &BDEV_DISK);
    let major: u32 = copy_field(disk, &DISK_MAJOR);
    let minor: u32 = copy_field(disk, &DISK_MINOR);
    let dev = (major << 20) | (minor & 0xf_ffff);
    if !ring::wants_device(dev) {
        return 0;
    }
    thread::introduce();
    let mut record = ring::stamp(kind);
    record.dev = dev;
    record.sub = phase;
    record.object = u64::from(copy_field::<u32>(ctx.arg::<u64>(1), &TRANSACTION_TID));
    ring::send(record, Source::HostFs);
    0
}

#[raw_tracepoint(tracepoint = "jbd2_start_commit")]
pub fn jbd2_start_commit(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| journal_commit(Kind::JournalCommitStart, 0, &ctx))
}

#[raw_tracepoint(tracepoint = "jbd2_commit_locking")]
pub fn jbd2_commit_locking(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| journal_commit(Kind::JournalCommitPhase, phase::LOCKING, &ctx))
}

#[raw_tracepoint(tracepoint = "jbd2_commit_flushing")]
pub fn jbd2_commit_flushing(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| journal_commit(Kind::JournalCommitPhase, phase::FLUSHING, &ctx))
}

#[raw_tracepoint(tracepoint = "jbd2_commit_logging")]
pub fn jbd2_commit_logging(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| journal_commit(Kind::JournalCommitPhase, phase::LOGGING, &ctx))
}

#[raw_tracepoint(tracepoint = "jbd2_end_commit")]
pub fn jbd2_end_commit(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| journal_commit(Kind::JournalCommitEnd, 0, &ctx))
}

#[raw_tracepoint(tracepoint = "xfs_log_force")]
pub fn xfs_log_force(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        if !ring::open() || !has(&XFS_MOUNT_SUPER) {
            return 0;
        }
        let super_block: u64 = copy_field(ctx.arg::<u64>(0), &XFS_MOUNT_SUPER);
        let dev: u32 = copy_field(super_block, &SB_DEV);
        if !ring::wants_device(dev) {
            return 0;
        }
        let mut record = ring::stamp(Kind::LogForce);
        record.dev = dev;
        record.object = ctx.arg(1);
        ring::send(record, Source::HostFs);
        0
    })
}

#[raw_tracepoint(tracepoint = "writeback_single_inode_start")]
pub fn writeback_single_inode_start(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        if let Some((mut record, owner)) = inode_record(Kind::WritebackStart, ctx.arg(0)) {
            thread::introduce();
            // Whoever wants all of it asks for LONG_MAX pages.
            let pages: u64 = ctx.arg(2);
            record.bytes = if pages > u64::MAX >> PAGE_SHIFT { u64::MAX } else { pages << PAGE_SHIFT };
            ring::send_owned(record, owner, Source::HostFs);
        }
        0
    })
}

#[raw_tracepoint(tracepoint = "writeback_single_inode")]
pub fn writeback_single_inode(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        if let Some((mut record, owner)) = inode_record(Kind::WritebackEnd, ctx.arg(0)) {
            let left: u64 = copy_field(ctx.arg::<u64>(1), &WBC_TO_WRITE);
            record.bytes = ctx.arg::<u64>(2).wrapping_sub(left) << PAGE_SHIFT;
            ring::send_owned(record, owner, Source::HostFs);
        }
        0
    })
}

/// What a thread comes by at most one of at a time.
#[derive(Clone, Copy)]
enum Passing {
    Throttle,
    Fault,
}

/// What tells the current thread's event from those of all others.
#[inline(always)]
fn this_event(passing: Passing) -> u64 {
    let tid = bpf_get_current_pid_tgid() & 0xffff_ffff;
    (tid << 2) | (passing as u64 + 1)
}

#[raw_tracepoint(tracepoint = "balance_dirty_pages")]
pub fn balance_dirty_pages(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::first_of_threads(Source::HostFs, this_event(Passing::Throttle), || throttle(&ctx))
    })
}

#[raw_tracepoint(tracepoint = "balance_dirty_pages")]
pub fn balance_dirty_pages_nested(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::second_of_threads(Source::HostFs, this_event(Passing::Throttle), || throttle(&ctx))
    })
}

#[inline(always)]
fn throttle(ctx: &RawTracePointContext) -> i32 {
    if THROTTLE_PAUSE_ARG.load() == 0 || !ring::open() || !caller::is_in_call() {
        return 0;
    }
    // In one of the two places half of it is read, which is all that a pause needs: of two loads that differ in their place
    // only the compiler makes one at a place that it computes, which the verifier refuses.
    let jiffies = if THROTTLE_PAUSE_ARG.load() == 6 {
        ctx.arg::<u64>(6).cast_signed()
    } else {
        i64::from(load::<i32>(ctx.as_ptr().cast(), 10 * size_of::<u64>()))
    };
    // Not positive: the thread goes on at once.
    if jiffies <= 0 {
        return 0;
    }
    let mut record = ring::stamp(Kind::DirtyThrottle);
    record.offset = jiffies.cast_unsigned() * u64::from(JIFFY_NS.load());
    ring::send(record, Source::HostFs);
    0
}

#[raw_tracepoint(tracepoint = "mm_filemap_fault")]
pub fn mm_filemap_fault(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::first_of_threads(Source::HostFs, this_event(Passing::Fault), || fault(&ctx))
    })
}

#[raw_tracepoint(tracepoint = "mm_filemap_fault")]
pub fn mm_filemap_fault_nested(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::second_of_threads(Source::HostFs, this_event(Passing::Fault), || fault(&ctx))
    })
}

#[inline(always)]
fn fault(ctx: &RawTracePointContext) -> i32 {
    if !caller::by_mount() || !ring::open() || caller::current().is_none() {
        return 0;
    }
    let inode: u64 = copy_field(ctx.arg::<u64>(0), &MAPPING_HOST);
    if let Some((mut record, owner)) = inode_record(Kind::PageFault, inode) {
        thread::introduce();
        record.offset = ctx.arg::<u64>(1) << PAGE_SHIFT;
        ring::send_owned(record, owner, Source::HostFs);
    }
    0
}

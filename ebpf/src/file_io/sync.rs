//! The file systems' own sync: all that is seen of one by io_uring.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use nestrace_abi::{Kind, Owner, Source, flags::op};

use super::OpenFile;
use crate::{layout::*, owner, preemption, ring};

#[inline(always)]
fn sync(kind: Kind, owner: Owner, datasync: bool, result: u64) -> i32 {
    if !ring::wants_inode(owner.inode, owner.owner_dev) {
        return 0;
    }
    let mut record = ring::stamp(kind);
    record.sub = if datasync { op::FDATASYNC } else { op::FSYNC };
    record.offset = result;
    ring::send_owned(record, owner, Source::File);
    0
}

#[inline(always)]
fn sync_enter_file(ctx: &RawTracePointContext) -> i32 {
    if !ring::open() {
        return 0;
    }
    let owner = OpenFile::at(ctx.arg(0)).owner();
    sync(Kind::SyncEnter, owner, ctx.arg::<u64>(1) as u32 != 0, 0)
}

#[raw_tracepoint(tracepoint = "ext4_sync_file_enter")]
pub fn ext4_sync_file_enter(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| sync_enter_file(&ctx))
}

#[raw_tracepoint(tracepoint = "btrfs_sync_file")]
pub fn btrfs_sync_file(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| sync_enter_file(&ctx))
}

#[raw_tracepoint(tracepoint = "ext4_sync_file_exit")]
pub fn ext4_sync_file_exit(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        if !ring::open() {
            return 0;
        }
        let mut owner = Owner::default();
        owner::describe_inode(&mut owner, &owner::inode_at(ctx.arg(0)));
        sync(Kind::SyncExit, owner, false, i64::from(ctx.arg::<u64>(1) as i32).cast_unsigned())
    })
}

#[raw_tracepoint(tracepoint = "xfs_file_fsync")]
pub fn xfs_file_fsync(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        if !ring::open() || !has(&XFS_INODE_VFS) {
            return 0;
        }
        let mut owner = Owner::default();
        let inode = ctx.arg::<u64>(0) + u64::from(XFS_INODE_VFS.load());
        owner::describe_inode(&mut owner, &owner::inode_at(inode));
        sync(Kind::SyncEnter, owner, false, 0)
    })
}

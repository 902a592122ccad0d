//! The file systems' own sync: all that is seen of one by io_uring.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use nestrace_abi::{Kind, Owner, Source, flags::op};

use super::{OpenFile, system_call::msync_finds};
use crate::{caller, layout::*, owner, preemption, ring};

#[inline(always)]
fn sync(kind: Kind, owner: Owner, datasync: bool, transactions: u64, result: u64) -> i32 {
    if !caller::wants_inode(owner.inode, owner.owner_dev) {
        return 0;
    }
    if matches!(kind, Kind::SyncEnter) {
        msync_finds(&owner);
    }
    let mut record = ring::stamp(kind);
    record.sub = if datasync { op::FDATASYNC } else { op::FSYNC };
    record.related = transactions;
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
    sync(Kind::SyncEnter, owner, ctx.arg::<u64>(1) as u32 != 0, 0, 0)
}

/// The transactions that `fsync` (low half) and `fdatasync` (high half) of this inode of ext4 wait for now; 0 where the
/// kernel does not say.
#[inline(always)]
fn ext4_transactions(inode: u64) -> u64 {
    if !has(&EXT4_INODE_VFS) || !has(&EXT4_SYNC_TID) || !has(&EXT4_DATASYNC_TID) {
        return 0;
    }
    let inode = inode.wrapping_sub(u64::from(EXT4_INODE_VFS.load()));
    let of_sync: u32 = copy_field(inode, &EXT4_SYNC_TID);
    let of_datasync: u32 = copy_field(inode, &EXT4_DATASYNC_TID);
    u64::from(of_sync) | u64::from(of_datasync) << 32
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
        let inode: u64 = ctx.arg(0);
        owner::describe_inode(&mut owner, &owner::inode_at(inode));
        sync(Kind::SyncExit, owner, false, ext4_transactions(inode), i64::from(ctx.arg::<u64>(1) as i32).cast_unsigned())
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
        sync(Kind::SyncEnter, owner, false, 0, 0)
    })
}

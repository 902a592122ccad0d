//! The calls that carry an image's data to and from an NFS server, on the host. They begin in the thread that the file
//! system was called by; asynchronous direct I/O names its kiocb.

use aya_ebpf::{Global, macros::raw_tracepoint, programs::RawTracePointContext};
use nestrace_abi::{Kind, Owner, Record, Source, flags::op};

use super::rpc;
use crate::{layout::*, preemption, ring};

/// Names the direct I/O that the call is for, and its kiocb if it has one.
#[inline(always)]
fn direct(record: &mut Record, file: &mut Owner, direct: u64) {
    record.related = direct;
    if direct != 0 {
        rpc::describe_iocb(file, copy_field(direct, &NFS_DIRECT_IOCB));
    }
}

#[inline(always)]
fn begins(operation: u8, ctx: &RawTracePointContext) -> i32 {
    let header: u64 = ctx.arg(0);
    if let Some((mut record, mut file)) = rpc::record_of(Kind::RpcBegin, operation, header, copy_field(header, &NFS_HEADER_INODE)) {
        record.offset = copy_field(header, &NFS_HEADER_OFFSET);
        record.bytes = u64::from(copy_field::<u32>(header, &NFS_HEADER_COUNT));
        direct(&mut record, &mut file, copy_field(header, &NFS_HEADER_DIRECT));
        ring::send_owned(record, file, Source::File);
    }
    0
}

#[raw_tracepoint(tracepoint = "nfs_initiate_read")]
pub fn nfs_initiate_read(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| begins(op::READ, &ctx))
}

#[raw_tracepoint(tracepoint = "nfs_initiate_write")]
pub fn nfs_initiate_write(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| begins(op::WRITE, &ctx))
}

#[raw_tracepoint(tracepoint = "nfs_initiate_commit")]
pub fn nfs_initiate_commit(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        let commit: u64 = ctx.arg(0);
        if let Some((mut record, mut file)) = rpc::record_of(Kind::RpcBegin, op::FSYNC, commit, copy_field(commit, &NFS_COMMIT_INODE)) {
            direct(&mut record, &mut file, copy_field(commit, &NFS_COMMIT_DIRECT));
            ring::send_owned(record, file, Source::File);
        }
        0
    })
}

/// When the call was sent last, and how long the answer took from then: sunrpc's own count, which `mountstats` sums.
#[inline(always)]
fn ends(operation: u8, ctx: &RawTracePointContext, inode: &Global<u16>) -> i32 {
    let call: u64 = ctx.arg(1);
    if let Some((mut record, file)) = rpc::record_of(Kind::RpcEnd, operation, call, copy_field(call, inode)) {
        let request: u64 = copy_field(ctx.arg::<u64>(0), &RPC_TASK_REQUEST);
        if request != 0 {
            record.related = copy_field(request, &RPC_REQUEST_SENT);
            record.offset = copy_field(request, &RPC_REQUEST_TOOK);
        }
        ring::send_owned(record, file, Source::File);
    }
    0
}

#[raw_tracepoint(tracepoint = "nfs_readpage_done")]
pub fn nfs_readpage_done(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| ends(op::READ, &ctx, &NFS_HEADER_INODE))
}

#[raw_tracepoint(tracepoint = "nfs_writeback_done")]
pub fn nfs_writeback_done(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| ends(op::WRITE, &ctx, &NFS_HEADER_INODE))
}

#[raw_tracepoint(tracepoint = "nfs_commit_done")]
pub fn nfs_commit_done(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| ends(op::FSYNC, &ctx, &NFS_COMMIT_INODE))
}

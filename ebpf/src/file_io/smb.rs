//! The calls of the SMB client (`cifs`) that carry an image's data. Its tracepoints name neither inode nor request, so two calls
//! for the same range could be confused: these are its functions, which have the client's own structures.
//!
//! Up to 6.9 a read and a write have a structure each, since 6.10 both have netfs' (3ee1a1fc39819).

use aya_ebpf::{
    Global,
    btf_maps::LruHashMap,
    helpers::bpf_get_current_pid_tgid,
    macros::{btf_map, kprobe, kretprobe},
    programs::{ProbeContext, RetProbeContext},
};
use nestrace_abi::{Kind, Owner, RPC_SENT_UNKNOWN, Record, Source, flags::op, maps::InodeKey};

use super::rpc;
use crate::{layout::*, ring};

/// Where the structure of a call has its parts, before 6.10.
struct Fields {
    file: &'static Global<u16>,
    context: &'static Global<u16>,
    offset: &'static Global<u16>,
    bytes: &'static Global<u16>,
}

const READ: Fields = Fields {
    file: &SMB_READ_FILE,
    context: &SMB_READ_CONTEXT,
    offset: &SMB_READ_OFFSET,
    bytes: &SMB_READ_BYTES,
};
const WRITE: Fields = Fields {
    file: &SMB_WRITE_FILE,
    context: &SMB_WRITE_CONTEXT,
    offset: &SMB_WRITE_OFFSET,
    bytes: &SMB_WRITE_BYTES,
};

/// The inode of the client's open file.
#[inline(always)]
fn inode_of(file: u64) -> u64 {
    if file == 0 || !has(&SMB_FILE_DENTRY) || !has(&DENTRY_INODE) {
        return 0;
    }
    copy_field(copy_field(file, &SMB_FILE_DENTRY), &DENTRY_INODE)
}

/// The inode that a read or a write is on.
#[inline(always)]
fn inode_of_call(call: u64, fields: &Fields) -> u64 {
    if has(&SMB_CALL_REQUEST) && has(&NETFS_INODE) {
        return copy_field(copy_field(call, &SMB_CALL_REQUEST), &NETFS_INODE);
    }
    if has(fields.file) { inode_of(copy_field(call, fields.file)) } else { 0 }
}

#[inline(always)]
fn begins(operation: u8, call: u64, fields: &Fields) -> u32 {
    let inode = inode_of_call(call, fields);
    let Some((mut record, mut file)) = rpc::record_of(Kind::RpcBegin, operation, call, inode) else {
        return 0;
    };
    if has(&SMB_CALL_REQUEST) && has(&SMB_CALL_OFFSET) && has(&SMB_CALL_BYTES) && has(&NETFS_IOCB) {
        record.related = copy_field(call, &SMB_CALL_REQUEST);
        record.offset = copy_field(call, &SMB_CALL_OFFSET);
        record.bytes = copy_field(call, &SMB_CALL_BYTES);
        rpc::describe_iocb(&mut file, copy_field(record.related, &NETFS_IOCB));
    } else if has(fields.context) && has(fields.offset) && has(fields.bytes) && has(&SMB_CONTEXT_IOCB) {
        record.related = copy_field(call, fields.context);
        record.offset = copy_field(call, fields.offset);
        record.bytes = u64::from(copy_field::<u32>(call, fields.bytes));
        if record.related != 0 {
            rpc::describe_iocb(&mut file, copy_field(record.related, &SMB_CONTEXT_IOCB));
        }
    }
    ring::send_owned(record, file, Source::File);
    0
}

#[kprobe]
pub fn smb2_async_readv(ctx: ProbeContext) -> u32 {
    begins(op::READ, ctx.arg(0).unwrap_or_default(), &READ)
}

#[kprobe]
pub fn smb2_async_writev(ctx: ProbeContext) -> u32 {
    begins(op::WRITE, ctx.arg(0).unwrap_or_default(), &WRITE)
}

/// The message that a callback is for.
#[inline(always)]
fn message_of(ctx: &ProbeContext) -> u64 {
    let first: u64 = ctx.arg(0).unwrap_or_default();
    let second: u64 = ctx.arg(1).unwrap_or_default();
    // Read out of the stack, because the verifier refuses a context with an offset that the compiler has chosen between.
    // SAFETY: both are valid.
    unsafe { core::ptr::read_volatile(if SMB_MESSAGE_ARG.load() == 1 { &second } else { &first }) }
}

/// The reply has come. When the call was sent the client does not say.
#[inline(always)]
fn ends(operation: u8, ctx: &ProbeContext, fields: &Fields) -> u32 {
    let call: u64 = copy_field(message_of(ctx), &SMB_MESSAGE_DATA);
    if let Some((record, file)) = rpc::record_of(Kind::RpcEnd, operation, call, inode_of_call(call, fields)) {
        reply(record, file);
    }
    0
}

#[inline(always)]
fn reply(mut record: Record, file: Owner) {
    record.related = RPC_SENT_UNKNOWN;
    ring::send_owned(record, file, Source::File);
}

#[kprobe]
pub fn smb2_readv_callback(ctx: ProbeContext) -> u32 {
    ends(op::READ, &ctx, &READ)
}

#[kprobe]
pub fn smb2_writev_callback(ctx: ProbeContext) -> u32 {
    ends(op::WRITE, &ctx, &WRITE)
}

/// By thread: the file whose flush it waits for.
#[btf_map]
static IN_FLUSH: LruHashMap<u32, InodeKey, 4096> = LruHashMap::new();

/// What stands for a flush, which has no structure of its own: its thread, which waits for it.
#[inline(always)]
fn flush_of(tid: u32) -> u64 {
    u64::from(tid)
}

#[kprobe]
pub fn smb2_flush_file(ctx: ProbeContext) -> u32 {
    let tid = bpf_get_current_pid_tgid() as u32;
    // The kernel may have missed the last return.
    let _ = IN_FLUSH.remove(&tid);
    if !has(&SMB_FILE_FID) {
        return 0;
    }
    // The server's number for the file is a part of the client's open file.
    let fid: u64 = ctx.arg(2).unwrap_or_default();
    let inode = inode_of(fid.wrapping_sub(u64::from(SMB_FILE_FID.load())));
    if let Some((record, file)) = rpc::record_of(Kind::RpcBegin, op::FSYNC, flush_of(tid), inode) {
        let key = InodeKey { inode: file.inode, dev: file.owner_dev, pad: 0 };
        let _ = IN_FLUSH.insert(&tid, &key, 0);
        ring::send_owned(record, file, Source::File);
    }
    0
}

#[kretprobe]
pub fn smb2_flushed_file(_ctx: RetProbeContext) -> u32 {
    let tid = bpf_get_current_pid_tgid() as u32;
    // SAFETY: the value is read at once.
    let Some(key) = unsafe { IN_FLUSH.get(&tid) }.copied() else {
        return 0;
    };
    let _ = IN_FLUSH.remove(&tid);
    if ring::open() {
        let mut record = ring::stamp(Kind::RpcEnd);
        record.sub = op::FSYNC;
        record.object = flush_of(tid);
        reply(record, Owner { inode: key.inode, owner_dev: key.dev, ..Owner::default() });
    }
    0
}

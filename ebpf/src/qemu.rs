//! QEMU's block layer, by entry probes only: a return probe on a coroutine function returns to the
//! wrong caller.

use aya_ebpf::{
    btf_maps::{HashMap, LruHashMap},
    helpers::bpf_probe_read_user,
    macros::{btf_map, uprobe},
    programs::ProbeContext,
};
use nestrace_abi::{Kind, Record, Source};

use crate::{ring, thread};

/// `QEMUIOVector.size`, the same since QEMU 2.12: pointer, count, and a union whose second arm puts
/// the size where the local iovec's length is.
const QIOV_SIZE: u64 = 32;

/// A pointer in one of the traced processes.
#[repr(C)]
#[derive(Clone, Copy)]
struct GuestPointer {
    address: u64,
    guest: u32,
    pad: u32,
}

/// `opaque` of block requests in flight: on virtio-blk that is the request, whose first member is the
/// element that `virtqueue_push` gets.
#[btf_map]
static OPAQUES: LruHashMap<GuestPointer, u8, 8192> = LruHashMap::new();

/// Virtqueues that were seen to return a block request; pushes on others (network, console) are not sent.
#[btf_map]
static BLOCK_QUEUES: HashMap<GuestPointer, u8, 4096> = HashMap::new();

/// A record of a traced QEMU.
#[inline(always)]
fn record(kind: Kind) -> Option<Record> {
    if !ring::open() {
        return None;
    }
    let guest = ring::current_guest()?;
    let mut record = ring::stamp(kind);
    record.dev = guest;
    Some(record)
}

#[inline(always)]
fn argument(ctx: &ProbeContext, n: usize) -> u64 {
    ctx.arg(n).unwrap_or_default()
}

#[uprobe]
pub fn block_acct_start(ctx: ProbeContext) -> u32 {
    if let Some(mut record) = record(Kind::AcctStart) {
        thread::introduce();
        record.related = argument(&ctx, 0);
        record.object = argument(&ctx, 1);
        record.bytes = argument(&ctx, 2);
        record.sub = argument(&ctx, 3) as u8;
        ring::send(record, Source::Qemu);
    }
    0
}

#[inline(always)]
fn accounted(kind: Kind, ctx: &ProbeContext) -> u32 {
    if let Some(mut record) = record(kind) {
        record.related = argument(ctx, 0);
        record.object = argument(ctx, 1);
        ring::send(record, Source::Qemu);
    }
    0
}

#[uprobe]
pub fn block_acct_done(ctx: ProbeContext) -> u32 {
    accounted(Kind::AcctDone, &ctx)
}

#[uprobe]
pub fn block_acct_failed(ctx: ProbeContext) -> u32 {
    accounted(Kind::AcctFailed, &ctx)
}

#[uprobe]
pub fn block_acct_invalid(ctx: ProbeContext) -> u32 {
    if let Some(mut record) = record(Kind::AcctInvalid) {
        record.related = argument(&ctx, 0);
        record.sub = argument(&ctx, 1) as u8;
        ring::send(record, Source::Qemu);
    }
    0
}

/// A call of `blk_aio_*`: its BlockBackend and the caller's `opaque`.
#[inline(always)]
fn backend_call(kind: Kind, backend: u64, opaque: u64, offset: u64, bytes: u64, flags: u32) -> u32 {
    if let Some(mut record) = record(kind) {
        record.object = opaque;
        record.related = backend;
        record.offset = offset;
        record.bytes = bytes;
        record.flags = flags;
        let key = GuestPointer { address: opaque, guest: record.dev, pad: 0 };
        let _ = OPAQUES.insert(&key, &1, 0);
        ring::send(record, Source::Qemu);
    }
    0
}

#[inline(always)]
fn vector_call(kind: Kind, ctx: &ProbeContext) -> u32 {
    let vector = argument(ctx, 2);
    // SAFETY: the helper checks the address and never faults.
    let bytes = unsafe { bpf_probe_read_user((vector + QIOV_SIZE) as *const u64) }.unwrap_or_default();
    backend_call(kind, argument(ctx, 0), argument(ctx, 5), argument(ctx, 1), bytes, argument(ctx, 3) as u32)
}

#[uprobe]
pub fn blk_aio_preadv(ctx: ProbeContext) -> u32 {
    vector_call(Kind::AioPreadv, &ctx)
}

#[uprobe]
pub fn blk_aio_pwritev(ctx: ProbeContext) -> u32 {
    vector_call(Kind::AioPwritev, &ctx)
}

#[uprobe]
pub fn blk_aio_pwrite_zeroes(ctx: ProbeContext) -> u32 {
    let (backend, offset, bytes, flags) =
        (argument(&ctx, 0), argument(&ctx, 1), argument(&ctx, 2), argument(&ctx, 3) as u32);
    backend_call(Kind::AioPwriteZeroes, backend, argument(&ctx, 5), offset, bytes, flags)
}

#[uprobe]
pub fn blk_aio_flush(ctx: ProbeContext) -> u32 {
    backend_call(Kind::AioFlush, argument(&ctx, 0), argument(&ctx, 2), 0, 0, 0)
}

#[uprobe]
pub fn blk_aio_pdiscard(ctx: ProbeContext) -> u32 {
    let (backend, offset, bytes) = (argument(&ctx, 0), argument(&ctx, 1), argument(&ctx, 2));
    backend_call(Kind::AioPdiscard, backend, argument(&ctx, 4), offset, bytes, 0)
}

#[uprobe]
pub fn virtqueue_push(ctx: ProbeContext) -> u32 {
    let Some(mut record) = record(Kind::VirtqueuePush) else { return 0 };
    record.object = argument(&ctx, 1);
    record.related = argument(&ctx, 0);
    let queue = GuestPointer { address: record.related, guest: record.dev, pad: 0 };
    // SAFETY: only the presence of the entry is looked at.
    if unsafe { BLOCK_QUEUES.get(&queue) }.is_none() {
        let element = GuestPointer { address: record.object, guest: record.dev, pad: 0 };
        // SAFETY: as above.
        if unsafe { OPAQUES.get(&element) }.is_none() {
            return 0;
        }
        let _ = BLOCK_QUEUES.insert(&queue, &1, 0);
    }
    ring::send(record, Source::Qemu);
    0
}

//! QEMU's block layer, by entry probes only: a return probe on a coroutine function returns to the
//! wrong caller.

use aya_ebpf::{
    btf_maps::{HashMap, LruHashMap},
    macros::{btf_map, uprobe},
    programs::ProbeContext,
};
use nestrace_abi::{Kind, Owner, Record, Source};

use crate::{
    file_io::{copy_user, first_buffer},
    ring, sums, thread,
};

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
/// element that `virtqueue_push` gets. Gone with the push, because the memory may be a network's element
/// next.
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
    if sums::on() {
        sums::qemu_begins(argument(&ctx, 0), argument(&ctx, 1), argument(&ctx, 2), argument(&ctx, 3) & 0xffff_ffff);
        return 0;
    }
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
    if sums::on() {
        sums::qemu_ends(argument(ctx, 1), matches!(kind, Kind::AcctFailed));
        return 0;
    }
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
fn backend_call(kind: Kind, backend: u64, opaque: u64) -> Option<Record> {
    let mut record = record(kind)?;
    record.object = opaque;
    record.related = backend;
    let key = GuestPointer { address: opaque, guest: record.dev, pad: 0 };
    let _ = OPAQUES.insert(&key, &1, 0);
    Some(record)
}

#[inline(always)]
fn vector_call(kind: Kind, ctx: &ProbeContext) -> u32 {
    if let Some(mut record) = backend_call(kind, argument(ctx, 0), argument(ctx, 5)) {
        let vector = argument(ctx, 2);
        record.offset = argument(ctx, 1);
        record.bytes = copy_user(vector + QIOV_SIZE).unwrap_or_default();
        record.flags = argument(ctx, 3) as u32;
        // The first member of a QEMUIOVector points to its iovec.
        let iovec = copy_user(vector).unwrap_or_default();
        let buffers = Owner { iocb: first_buffer(iovec), ..Owner::default() };
        ring::send_owned(record, buffers, Source::Qemu);
    }
    0
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
    if let Some(mut record) = backend_call(Kind::AioPwriteZeroes, argument(&ctx, 0), argument(&ctx, 5)) {
        record.offset = argument(&ctx, 1);
        record.bytes = argument(&ctx, 2);
        record.flags = argument(&ctx, 3) as u32;
        ring::send(record, Source::Qemu);
    }
    0
}

#[uprobe]
pub fn blk_aio_flush(ctx: ProbeContext) -> u32 {
    if let Some(record) = backend_call(Kind::AioFlush, argument(&ctx, 0), argument(&ctx, 2)) {
        ring::send(record, Source::Qemu);
    }
    0
}

#[uprobe]
pub fn blk_aio_pdiscard(ctx: ProbeContext) -> u32 {
    if let Some(mut record) = backend_call(Kind::AioPdiscard, argument(&ctx, 0), argument(&ctx, 4)) {
        record.offset = argument(&ctx, 1);
        record.bytes = argument(&ctx, 2);
        ring::send(record, Source::Qemu);
    }
    0
}

#[uprobe]
pub fn virtqueue_push(ctx: ProbeContext) -> u32 {
    let Some(mut record) = record(Kind::VirtqueuePush) else { return 0 };
    record.object = argument(&ctx, 1);
    record.related = argument(&ctx, 0);
    let element = GuestPointer { address: record.object, guest: record.dev, pad: 0 };
    let was_block_request = OPAQUES.remove(&element).is_ok();
    let queue = GuestPointer { address: record.related, guest: record.dev, pad: 0 };
    // SAFETY: only the presence of the entry is looked at.
    if unsafe { BLOCK_QUEUES.get(&queue) }.is_none() {
        if !was_block_request {
            return 0;
        }
        let _ = BLOCK_QUEUES.insert(&queue, &1, 0);
    }
    ring::send(record, Source::Qemu);
    0
}

/// `vm_state_notify(bool running, RunState state)`: the guest's processors were started or stopped.
#[uprobe]
pub fn vm_state_notify(ctx: ProbeContext) -> u32 {
    if let Some(mut record) = record(Kind::GuestRun) {
        record.sub = argument(&ctx, 0) as u8 & 1;
        let state = Owner { aux: argument(&ctx, 1) as u32, ..Owner::default() };
        ring::send_owned(record, state, Source::Qemu);
    }
    0
}

/// `qemu_system_reset(ShutdownCause reason)`.
#[uprobe]
pub fn qemu_system_reset(ctx: ProbeContext) -> u32 {
    if let Some(mut record) = record(Kind::GuestReset) {
        record.sub = argument(&ctx, 0) as u8;
        ring::send(record, Source::Qemu);
    }
    0
}

//! Plugged queues: requests that a thread holds back to merge them.

use aya_ebpf::{macros::btf_tracepoint, programs::BtfTracePointContext};
use nestrace_abi::{Kind, Record, Source};

use crate::{block::queue_disk, preemption, ring};

#[btf_tracepoint(function = "block_plug")]
pub fn block_plug(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        if let Some(record) = queue_record(Kind::Plug, ctx.arg(0)) {
            ring::send(record, Source::Block);
        }
        0
    })
}

#[btf_tracepoint(function = "block_unplug")]
pub fn block_unplug(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        if let Some(mut record) = queue_record(Kind::Unplug, ctx.arg(0)) {
            record.bytes = u64::from(ctx.arg::<u64>(1) as u32);
            record.sub = (ctx.arg::<u64>(2) as u8 & 1) ^ 1;
            ring::send(record, Source::Block);
        }
        0
    })
}

#[inline(always)]
fn queue_record(kind: Kind, queue: *const u8) -> Option<Record> {
    if !ring::open() {
        return None;
    }
    let dev = queue_disk(queue);
    if !ring::wants_device(dev) {
        return None;
    }
    let mut record = ring::stamp(kind);
    record.dev = dev;
    Some(record)
}

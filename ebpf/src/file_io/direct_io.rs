//! Direct I/O within iomap, where the kernel tells: its end is that of native aio.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use nestrace_abi::{Kind, Owner, Record, Source};

use crate::{caller, layout::*, owner, preemption, ring, second_program, sums};

/// A record of direct I/O on a wanted file.
#[inline(always)]
fn dio_record(kind: Kind, iocb: u64) -> Option<(Record, Owner)> {
    if iocb == 0 || !ring::open() {
        return None;
    }
    let mut file = Owner::default();
    owner::describe_iocb(&mut file, iocb);
    if !caller::wants_inode(file.inode, file.owner_dev) {
        return None;
    }
    let mut record = ring::stamp(kind);
    record.object = iocb;
    record.offset = file.file_offset;
    Some((record, file))
}

#[raw_tracepoint(tracepoint = "iomap_dio_rw_begin")]
pub fn iomap_dio_rw_begin(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::File, ctx.arg(0), || begin(&ctx)))
}

#[raw_tracepoint(tracepoint = "iomap_dio_rw_begin")]
pub fn iomap_dio_rw_begin_nested(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::File, ctx.arg(0), || begin(&ctx)))
}

#[inline(always)]
fn begin(ctx: &RawTracePointContext) -> i32 {
    if let Some((mut record, file)) = dio_record(Kind::DioBegin, ctx.arg(0)) {
        record.bytes = copy_field(ctx.arg::<u64>(1), &ITER_COUNT);
        ring::send_owned(record, file, Source::File);
    }
    0
}

#[raw_tracepoint(tracepoint = "iomap_dio_complete")]
pub fn iomap_dio_complete(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::first(Source::File, ctx.arg(0), || send_completion(&ctx));
        0
    })
}

#[raw_tracepoint(tracepoint = "iomap_dio_complete")]
pub fn iomap_dio_complete_nested(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::second(Source::File, ctx.arg(0), || send_completion(&ctx));
        0
    })
}

#[inline(always)]
fn send_completion(ctx: &RawTracePointContext) {
    if sums::on() {
        sum_completion(ctx);
        return;
    }
    let Some((mut record, mut file)) = dio_record(Kind::DioComplete, ctx.arg(0)) else { return };
    let result = ctx.arg::<u64>(2).cast_signed();
    record.bytes = if result > 0 { result.cast_unsigned() } else { 0 };
    file.aux = (ctx.arg::<u64>(1) as i32).unsigned_abs();
    ring::send_owned(record, file, Source::File);
}

/// Native aio alone ends here and nowhere else.
#[inline(always)]
fn sum_completion(ctx: &RawTracePointContext) {
    let iocb: u64 = ctx.arg(0);
    if iocb == 0 || !ring::open() {
        return;
    }
    let mut file = Owner::default();
    owner::describe_iocb(&mut file, iocb);
    if file.origin != iocb {
        sums::aio_ends(file.origin, file.inode, ctx.arg::<u64>(2).cast_signed());
    }
}

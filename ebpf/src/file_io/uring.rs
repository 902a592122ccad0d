//! File I/O by io_uring: submission, completion, and what a worker thread takes over.

use aya_ebpf::{macros::raw_tracepoint, programs::RawTracePointContext};
use nestrace_abi::{Kind, Owner, Record, Source, flags::op};

use super::{OpenFile, first_buffer, open_file, vector_bytes};
use crate::{caller, layout::*, preemption, ring, second_program, sums, thread};

/// IORING_OP_* of the kernel's user interface.
#[inline(always)]
fn uring_operation(opcode: u8) -> u8 {
    match opcode {
        1 | 4 | 22 => op::READ,
        2 | 5 | 23 => op::WRITE,
        3 => op::FSYNC,
        8 => op::SYNC_FILE_RANGE,
        17 => op::FALLOCATE,
        _ => 0,
    }
}

/// READV and WRITEV name a vector.
#[inline(always)]
fn names_vector(opcode: u8) -> bool {
    opcode == 1 || opcode == 2
}

/// A record of the io_uring request at `request`, if it is file I/O of a traced process.
#[inline(always)]
fn uring_record(kind: Kind, request: u64) -> Option<(Record, u8)> {
    if request == 0 || !ring::open() || !has(&URING_OPCODE) {
        return None;
    }
    let guest = caller::current()?;
    let opcode: u8 = copy_field(request, &URING_OPCODE);
    let operation = uring_operation(opcode);
    if operation == 0 {
        return None;
    }
    let mut record = ring::stamp(kind);
    record.dev = guest;
    record.sub = operation;
    record.object = request;
    Some((record, opcode))
}

#[inline(always)]
fn uring_submit(request: u64) -> i32 {
    let Some((mut record, opcode)) = uring_record(Kind::UringSubmit, request) else { return 0 };
    let opened = OpenFile::at(file_of(request));
    if sums::on() {
        sums::uring_begins(request, &opened.inode, record.dev, record.sub);
        return 0;
    }
    if !caller::wants_file(&opened.inode) {
        return 0;
    }
    thread::introduce();
    let mut file = opened.owner();
    if has(&URING_USER_DATA) {
        record.related = copy_field(request, &URING_USER_DATA);
    }
    match record.sub {
        op::READ | op::WRITE if has(&URING_RW_FLAGS) => {
            // The command of a read or write is an io_rw at the head of the request: kiocb, address, length, flags.
            record.offset = copy_field(request, &KIOCB_POS);
            record.flags = copy_field(request, &URING_RW_FLAGS);
            describe_buffers(&mut record, &mut file, names_vector(opcode));
        }
        op::FSYNC if has(&URING_SYNC_FLAGS) => {
            record.flags = copy_field(request, &URING_SYNC_FLAGS);
            // IORING_FSYNC_DATASYNC
            if record.flags & 1 != 0 {
                record.sub = op::FDATASYNC;
            }
        }
        _ => {}
    }
    caller::begins_request(request);
    ring::send_owned(record, file, Source::File);
    0
}

/// Fills length and first buffer. Requests are submitted in the process itself or, with SQPOLL, in a
/// thread that shares its memory, so the vector can be read here though the kernel may do so later.
#[inline(always)]
fn describe_buffers(record: &mut Record, file: &mut Owner, is_vector: bool) {
    let length = u64::from(copy_field::<u32>(record.object, &URING_RW_LEN));
    let buffer: u64 = if has(&URING_RW_ADDR) { copy_field(record.object, &URING_RW_ADDR) } else { 0 };
    if is_vector {
        file.iocb = first_buffer(buffer);
        record.bytes = vector_bytes(buffer, length);
    } else {
        file.iocb = buffer;
        record.bytes = length;
    }
}

/// IOSQE_FIXED_FILE: the descriptor is an index into the ring's registered files.
const FIXED_FILE: u32 = 1;

/// The `struct file` of a request, which the kernel may not have looked up yet; 0 if it is a registered
/// file then.
#[inline(always)]
fn file_of(request: u64) -> u64 {
    let address: u64 = copy_field(request, &URING_FILE);
    if address != 0 {
        address
    } else if has(&URING_FD) && copy_field::<u32>(request, &URING_FLAGS) & FIXED_FILE == 0 {
        open_file(u64::from(copy_field::<u32>(request, &URING_FD)))
    } else {
        0
    }
}

/// The request of the tracepoint of a submission.
#[inline(always)]
fn submitted(ctx: &RawTracePointContext) -> u64 {
    if URING_SUBMIT_ARG.load() == 1 { ctx.arg(1) } else { ctx.arg(0) }
}

/// That of the tracepoint of one that a worker thread takes over.
#[inline(always)]
fn handed_over(ctx: &RawTracePointContext) -> u64 {
    if URING_SUBMIT_ARG.load() == 1 { ctx.arg(2) } else { ctx.arg(0) }
}

#[raw_tracepoint(tracepoint = "io_uring_submit_req")]
pub fn io_uring_submit_req(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::File, submitted(&ctx), || submit(&ctx)))
}

#[raw_tracepoint(tracepoint = "io_uring_submit_req")]
pub fn io_uring_submit_req_nested(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::File, submitted(&ctx), || submit(&ctx)))
}

#[inline(always)]
fn submit(ctx: &RawTracePointContext) -> i32 {
    uring_submit(submitted(ctx))
}

#[raw_tracepoint(tracepoint = "io_uring_complete")]
pub fn io_uring_complete(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::File, ctx.arg(1), || complete(&ctx)))
}

#[raw_tracepoint(tracepoint = "io_uring_complete")]
pub fn io_uring_complete_nested(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::File, ctx.arg(1), || complete(&ctx)))
}

#[inline(always)]
fn complete(ctx: &RawTracePointContext) -> i32 {
    if sums::on() {
        if ring::open() {
            sums::uring_ends(ctx.arg(1), result(ctx));
        }
        return 0;
    }
    let Some((mut record, _)) = uring_record(Kind::UringComplete, ctx.arg(1)) else { return 0 };
    if !caller::knows_request(record.object) {
        return 0;
    }
    caller::ends_request(record.object);
    record.related =
        if URING_COMPLETE_CQE.load() != 0 { copy_field(ctx.arg(2), &URING_CQE_USER_DATA) } else { ctx.arg(2) };
    record.offset = result(ctx).cast_unsigned();
    ring::send(record, Source::File);
    0
}

/// What a completed request returned.
#[inline(always)]
fn result(ctx: &RawTracePointContext) -> i64 {
    if URING_COMPLETE_CQE.load() != 0 {
        i64::from(copy_field::<i32>(ctx.arg(2), &URING_CQE_RES))
    } else {
        i64::from(ctx.arg::<u64>(3) as i32)
    }
}

#[raw_tracepoint(tracepoint = "io_uring_queue_async_work")]
pub fn io_uring_queue_async_work(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::File, handed_over(&ctx), || hand_over(&ctx)))
}

#[raw_tracepoint(tracepoint = "io_uring_queue_async_work")]
pub fn io_uring_queue_async_work_nested(ctx: RawTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::File, handed_over(&ctx), || hand_over(&ctx)))
}

#[inline(always)]
fn hand_over(ctx: &RawTracePointContext) -> i32 {
    if let Some((record, _)) = uring_record(Kind::UringAsync, handed_over(ctx))
        && caller::knows_request(record.object)
    {
        ring::send(record, Source::File);
    }
    0
}

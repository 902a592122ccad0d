//! Native aio: each control block of an `io_submit`.

use core::ffi::c_void;

use aya_ebpf::{helpers::generated::bpf_loop, macros::btf_tracepoint, programs::BtfTracePointContext};
use nestrace_abi::{Kind, Source, flags::op};

use super::{
    OpenFile, copy_user, first_buffer, open_file, pt_regs,
    system_call::{Passing, nr, this_call},
    vector_bytes,
};
use crate::{caller, layout::*, preemption, ring, second_program, sums, thread};

#[btf_tracepoint(function = "sys_enter")]
pub fn sys_enter_io_submit(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::first_of_threads(Source::File, this_call(Passing::EnterIoSubmit), || enter(&ctx))
    })
}

#[btf_tracepoint(function = "sys_enter")]
pub fn sys_enter_io_submit_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| {
        second_program::second_of_threads(Source::File, this_call(Passing::EnterIoSubmit), || enter(&ctx))
    })
}

#[inline(always)]
fn enter(ctx: &BtfTracePointContext) -> i32 {
    let nr: u64 = ctx.arg(1);
    if nr != nr::IO_SUBMIT || !ring::open() {
        return 0;
    }
    let Some(guest) = caller::current() else { return 0 };
    if caller::is_compat() {
        return 0;
    }
    let regs: *const u8 = ctx.arg(0);
    let count: u64 = load(regs, pt_regs::SI);
    // By mount the control blocks are judged one by one, and the call itself is nobody's.
    if !caller::by_mount() && !sums::on() {
        thread::introduce();
        let mut record = ring::stamp(Kind::SyscallEnter);
        record.dev = guest;
        record.sub = op::IO_SUBMIT;
        record.bytes = count;
        ring::send(record, Source::File);
    }
    submit_control_blocks(load(regs, pt_regs::DX), count, guest);
    0
}

/// Control blocks of one io_submit that are read; QEMU's batches end at 32 (`aio-max-batch`).
const MAX_CONTROL_BLOCKS: u64 = 64;
/// `struct iocb` of the kernel's user interface (64 bytes).
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct UserIocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    descriptor: u32,
    buffer: u64,
    length: u64,
    offset: u64,
}

/// IOCB_CMD_* of the kernel's user interface.
mod iocb_cmd {
    pub const PREAD: u16 = 0;
    pub const PWRITE: u16 = 1;
    pub const FSYNC: u16 = 2;
    pub const FDSYNC: u16 = 3;
    pub const PREADV: u16 = 7;
    pub const PWRITEV: u16 = 8;
}

/// What [`submit_one`] is told.
#[repr(C)]
struct ControlBlocks {
    list: u64,
    guest: u32,
    pad: u32,
}

/// By `bpf_loop` (kernel 5.17), so that the verifier looks at one round: 6.1's gives up on sixty-four.
#[inline(always)]
fn submit_control_blocks(list: u64, count: u64, guest: u32) {
    let mut blocks = ControlBlocks { list, guest, pad: 0 };
    let rounds = if count > MAX_CONTROL_BLOCKS { MAX_CONTROL_BLOCKS } else { count };
    let context: *mut ControlBlocks = &mut blocks;
    // SAFETY: the context outlives the call, and the callback takes it for what it is.
    unsafe { bpf_loop(rounds as u32, submit_one as *mut c_void, context.cast(), 0) };
    if count > MAX_CONTROL_BLOCKS {
        ring::count_drop(Source::Walk);
    }
}

extern "C" fn submit_one(index: u64, context: *mut c_void) -> i64 {
    // SAFETY: `submit_control_blocks` passes its own.
    let blocks = unsafe { &*context.cast::<ControlBlocks>() };
    let address: u64 = copy_user(blocks.list + index * 8).unwrap_or_default();
    match copy_user::<UserIocb>(address) {
        Some(block) => submit_control_block(address, &block, blocks.guest),
        None => ring::count_drop(Source::Walk),
    }
    0
}

#[inline(always)]
fn submit_control_block(address: u64, block: &UserIocb, guest: u32) {
    let mut record = ring::stamp(Kind::AioSubmit);
    let opened = OpenFile::at(open_file(u64::from(block.descriptor)));
    if sums::on() {
        match block.opcode {
            iocb_cmd::PREAD | iocb_cmd::PREADV => sums::aio_begins(address, &opened.inode, guest, op::READ),
            iocb_cmd::PWRITE | iocb_cmd::PWRITEV => sums::aio_begins(address, &opened.inode, guest, op::WRITE),
            _ => {}
        }
        return;
    }
    if !caller::wants_file(&opened.inode) {
        return;
    }
    if caller::by_mount() {
        thread::introduce();
        // Its return is the end of what needed no device: the page cache's.
        caller::begins_call();
    }
    let mut file = opened.owner();
    record.dev = guest;
    record.object = address;
    record.offset = block.offset;
    record.flags = block.rw_flags;
    (record.bytes, file.iocb) = match block.opcode {
        iocb_cmd::PREADV | iocb_cmd::PWRITEV => (vector_bytes(block.buffer, block.length), first_buffer(block.buffer)),
        iocb_cmd::PREAD | iocb_cmd::PWRITE => (block.length, block.buffer),
        _ => (0, 0),
    };
    record.sub = match block.opcode {
        iocb_cmd::PREAD | iocb_cmd::PREADV => op::READ,
        iocb_cmd::PWRITE | iocb_cmd::PWRITEV => op::WRITE,
        iocb_cmd::FSYNC => op::FSYNC,
        iocb_cmd::FDSYNC => op::FDATASYNC,
        _ => op::OTHER,
    };
    ring::send_owned(record, file, Source::File);
}

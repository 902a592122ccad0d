//! Host file I/O of the traced processes: system calls, native aio, io_uring, iomap's direct I/O and
//! the file systems' own sync.

use core::ffi::c_void;

use aya_ebpf::{
    btf_maps::{Array, PerCpuArray},
    helpers::{
        bpf_get_current_task, bpf_probe_read_user,
        generated::{
            bpf_loop, bpf_probe_read_kernel as probe_read_kernel, bpf_probe_read_user as probe_read_user,
        },
    },
    macros::{btf_map, raw_tracepoint},
    programs::RawTracePointContext,
};
use nestrace_abi::{Kind, Owner, Record, Source, flags::op};

use crate::{layout::*, owner, ring, thread};

/// `struct pt_regs` of x86-64, whose layout is part of the kernel's user interface.
mod pt_regs {
    pub const R10: u64 = 56;
    pub const R9: u64 = 64;
    pub const DX: u64 = 96;
    pub const SI: u64 = 104;
    pub const DI: u64 = 112;
    pub const ORIG_AX: u64 = 120;
}

/// Numbers of x86-64 system calls.
mod nr {
    pub const PREAD64: u64 = 17;
    pub const PWRITE64: u64 = 18;
    pub const FSYNC: u64 = 74;
    pub const FDATASYNC: u64 = 75;
    pub const IO_SUBMIT: u64 = 209;
    pub const SYNC_FILE_RANGE: u64 = 277;
    pub const FALLOCATE: u64 = 285;
    pub const PREADV: u64 = 295;
    pub const PWRITEV: u64 = 296;
    pub const PREADV2: u64 = 327;
    pub const PWRITEV2: u64 = 328;
}

#[inline(always)]
fn operation(nr: u64) -> u8 {
    match nr {
        nr::PREAD64 | nr::PREADV | nr::PREADV2 => op::READ,
        nr::PWRITE64 | nr::PWRITEV | nr::PWRITEV2 => op::WRITE,
        nr::FSYNC => op::FSYNC,
        nr::FDATASYNC => op::FDATASYNC,
        nr::FALLOCATE => op::FALLOCATE,
        nr::SYNC_FILE_RANGE => op::SYNC_FILE_RANGE,
        nr::IO_SUBMIT => op::IO_SUBMIT,
        _ => 0,
    }
}

#[inline(always)]
fn copy_user<T: Copy + Default>(address: u64) -> Option<T> {
    // SAFETY: the helper checks the address and never faults.
    unsafe { bpf_probe_read_user(address as *const T) }.ok()
}

#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn sys_enter(ctx: RawTracePointContext) -> i32 {
    let nr: u64 = ctx.arg(1);
    let operation = operation(nr);
    if operation == 0 || operation == op::IO_SUBMIT || !ring::open() {
        return 0;
    }
    let Some(guest) = ring::current_guest() else { return 0 };
    thread::introduce();
    let regs: u64 = ctx.arg(0);
    let mut record = ring::stamp(Kind::SyscallEnter);
    record.dev = guest;
    record.sub = operation;
    record.object = copy(regs + pt_regs::DI);
    match nr {
        nr::PREAD64 | nr::PWRITE64 => {
            record.bytes = copy(regs + pt_regs::DX);
            record.offset = copy(regs + pt_regs::R10);
        }
        nr::PREADV | nr::PWRITEV | nr::PREADV2 | nr::PWRITEV2 => {
            record.bytes = vector_bytes(copy(regs + pt_regs::SI), copy(regs + pt_regs::DX));
            record.offset = copy(regs + pt_regs::R10);
            if nr == nr::PREADV2 || nr == nr::PWRITEV2 {
                record.flags = copy(regs + pt_regs::R9);
            }
        }
        nr::FALLOCATE => {
            record.flags = copy(regs + pt_regs::SI);
            record.offset = copy(regs + pt_regs::DX);
            record.bytes = copy(regs + pt_regs::R10);
        }
        nr::SYNC_FILE_RANGE => {
            record.offset = copy(regs + pt_regs::SI);
            record.bytes = copy(regs + pt_regs::DX);
            record.flags = copy(regs + pt_regs::R10);
        }
        _ => {}
    }
    let mut file = Owner::default();
    describe_descriptor(&mut file, record.object);
    ring::send_owned(record, file, Source::File);
    0
}

#[raw_tracepoint(tracepoint = "sys_enter")]
pub fn sys_enter_io_submit(ctx: RawTracePointContext) -> i32 {
    let nr: u64 = ctx.arg(1);
    if nr != nr::IO_SUBMIT || !ring::open() {
        return 0;
    }
    let Some(guest) = ring::current_guest() else { return 0 };
    thread::introduce();
    let regs: u64 = ctx.arg(0);
    let count: u64 = copy(regs + pt_regs::SI);
    let mut record = ring::stamp(Kind::SyscallEnter);
    record.dev = guest;
    record.sub = op::IO_SUBMIT;
    record.bytes = count;
    ring::send(record, Source::File);
    submit_control_blocks(copy(regs + pt_regs::DX), count, guest);
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
    record.dev = guest;
    record.object = address;
    record.offset = block.offset;
    record.flags = block.rw_flags;
    record.bytes = match block.opcode {
        iocb_cmd::PREADV | iocb_cmd::PWRITEV => vector_bytes(block.buffer, block.length),
        iocb_cmd::PREAD | iocb_cmd::PWRITE => block.length,
        _ => 0,
    };
    record.sub = match block.opcode {
        iocb_cmd::PREAD | iocb_cmd::PREADV => op::READ,
        iocb_cmd::PWRITE | iocb_cmd::PWRITEV => op::WRITE,
        iocb_cmd::FSYNC => op::FSYNC,
        iocb_cmd::FDSYNC => op::FDATASYNC,
        _ => op::OTHER,
    };
    let mut file = Owner::default();
    describe_descriptor(&mut file, u64::from(block.descriptor));
    ring::send_owned(record, file, Source::File);
}

/// Parts of an iovec that are summed; longer ones count as one `walk` loss.
const VECTOR_PARTS: usize = 256;

/// An iovec as the user has it: address and length by turns.
type Vector = [u64; VECTOR_PARTS * 2];

/// Room to copy an iovec to. Probes of system calls run with preemption off, so one per processor.
#[btf_map]
static VECTOR: PerCpuArray<Vector, 1> = PerCpuArray::new();

/// Never written: what [`VECTOR`] is cleared from.
#[btf_map]
static ZEROES: Array<Vector, 1> = Array::new();

/// Sum of an iovec's lengths; 0 (and one `walk` loss) where it is too long to read.
///
/// Copied as a whole over zeroes and summed without a branch, because the verifier follows every
/// branch of every round.
#[inline(always)]
fn vector_bytes(address: u64, parts: u64) -> u64 {
    let (Some(vector), Some(zeroes)) = (VECTOR.get_ptr_mut(0), ZEROES.get_ptr(0)) else { return 0 };
    // SAFETY: both maps' values are whole vectors.
    unsafe { probe_read_kernel(vector.cast(), size_of::<Vector>() as u32, zeroes.cast()) };
    // Checked right before the copy: across a call the number lies on the stack, where 6.1's verifier
    // forgets what a comparison has shown.
    if parts > VECTOR_PARTS as u64 {
        ring::count_drop(Source::Walk);
        return 0;
    }
    // SAFETY: at most a whole vector is copied.
    unsafe { probe_read_user(vector.cast(), parts as u32 * 16, address as *const _) };
    let mut sum = 0;
    let mut part = 0;
    while part < VECTOR_PARTS {
        // SAFETY: `part * 2 + 1` is within the vector.
        sum += unsafe { core::ptr::read_volatile(vector.cast::<u64>().add(part * 2 + 1)) };
        part += 1;
    }
    sum
}

/// Fills inode, device and open flags of a descriptor of the current process.
#[inline(always)]
fn describe_descriptor(file: &mut Owner, descriptor: u64) {
    if !has(&TASK_FILES) || !has(&FILES_FDT) || !has(&FDT_FD) {
        return;
    }
    // SAFETY: no preconditions.
    let task = unsafe { bpf_get_current_task() };
    let files: u64 = copy_field(task, &TASK_FILES);
    let table: u64 = copy_field(files, &FILES_FDT);
    if table == 0 || (descriptor as u32) >= copy_field::<u32>(table, &FDT_MAX) {
        return;
    }
    let entries: u64 = copy_field(table, &FDT_FD);
    let address: u64 = copy(entries + u64::from(descriptor as u32) * 8);
    describe_open_file(file, address);
}

#[inline(always)]
fn describe_open_file(owner: &mut Owner, file: u64) {
    if file != 0 {
        owner::describe_file(owner, file);
        owner.aux = copy_field(file, &FILE_FLAGS);
    }
}

#[raw_tracepoint(tracepoint = "sys_exit")]
pub fn sys_exit(ctx: RawTracePointContext) -> i32 {
    let regs: u64 = ctx.arg(0);
    if !ring::open() {
        return 0;
    }
    let Some(guest) = ring::current_guest() else { return 0 };
    let operation = operation(copy(regs + pt_regs::ORIG_AX));
    if operation == 0 {
        return 0;
    }
    let mut record = ring::stamp(Kind::SyscallExit);
    record.dev = guest;
    record.sub = operation;
    record.offset = ctx.arg(1);
    ring::send(record, Source::File);
    0
}

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

/// READV and WRITEV name a vector whose bytes only the completion tells.
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
    let guest = ring::current_guest()?;
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
    thread::introduce();
    record.related = copy_field(request, &URING_USER_DATA);
    match record.sub {
        op::READ | op::WRITE => {
            // The command of a read or write is an io_rw at the head of the request: kiocb, address, length, flags.
            record.offset = copy_field(request, &KIOCB_POS);
            if !names_vector(opcode) {
                record.bytes = u64::from(copy_field::<u32>(request, &URING_RW_LEN));
            }
            record.flags = copy_field(request, &URING_RW_FLAGS);
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
    let mut file = Owner::default();
    describe_uring_file(&mut file, request);
    ring::send_owned(record, file, Source::File);
    0
}

/// IOSQE_FIXED_FILE: the descriptor is an index into the ring's registered files.
const FIXED_FILE: u32 = 1;

/// Fills inode, device and open flags of a request's file, which may not have been looked up yet.
#[inline(always)]
fn describe_uring_file(file: &mut Owner, request: u64) {
    let address: u64 = copy_field(request, &URING_FILE);
    if address != 0 {
        describe_open_file(file, address);
    } else if has(&URING_FD) && copy_field::<u32>(request, &URING_FLAGS) & FIXED_FILE == 0 {
        describe_descriptor(file, u64::from(copy_field::<u32>(request, &URING_FD)));
    }
}

#[raw_tracepoint(tracepoint = "io_uring_submit_req")]
pub fn io_uring_submit_req(ctx: RawTracePointContext) -> i32 {
    uring_submit(if URING_SUBMIT_ARG.load() == 1 { ctx.arg(1) } else { ctx.arg(0) })
}

#[raw_tracepoint(tracepoint = "io_uring_complete")]
pub fn io_uring_complete(ctx: RawTracePointContext) -> i32 {
    let Some((mut record, _)) = uring_record(Kind::UringComplete, ctx.arg(1)) else { return 0 };
    if URING_COMPLETE_CQE.load() != 0 {
        let cqe: u64 = ctx.arg(2);
        record.related = copy_field(cqe, &URING_CQE_USER_DATA);
        record.offset = i64::from(copy_field::<i32>(cqe, &URING_CQE_RES)).cast_unsigned();
    } else {
        record.related = ctx.arg(2);
        record.offset = i64::from(ctx.arg::<u64>(3) as i32).cast_unsigned();
    }
    ring::send(record, Source::File);
    0
}

#[raw_tracepoint(tracepoint = "io_uring_queue_async_work")]
pub fn io_uring_queue_async_work(ctx: RawTracePointContext) -> i32 {
    let request = if URING_SUBMIT_ARG.load() == 1 { ctx.arg(2) } else { ctx.arg(0) };
    if let Some((record, _)) = uring_record(Kind::UringAsync, request) {
        ring::send(record, Source::File);
    }
    0
}

/// A record of direct I/O on a wanted file.
#[inline(always)]
fn dio_record(kind: Kind, iocb: u64) -> Option<(Record, Owner)> {
    if iocb == 0 || !ring::open() {
        return None;
    }
    let mut file = Owner::default();
    owner::describe_iocb(&mut file, iocb);
    if !ring::wants_inode(file.inode, file.owner_dev) {
        return None;
    }
    let mut record = ring::stamp(kind);
    record.object = iocb;
    record.offset = file.file_offset;
    Some((record, file))
}

#[raw_tracepoint(tracepoint = "iomap_dio_rw_begin")]
pub fn iomap_dio_rw_begin(ctx: RawTracePointContext) -> i32 {
    if let Some((mut record, file)) = dio_record(Kind::DioBegin, ctx.arg(0)) {
        record.bytes = copy_field(ctx.arg::<u64>(1), &ITER_COUNT);
        ring::send_owned(record, file, Source::File);
    }
    0
}

#[raw_tracepoint(tracepoint = "iomap_dio_complete")]
pub fn iomap_dio_complete(ctx: RawTracePointContext) -> i32 {
    if let Some((mut record, mut file)) = dio_record(Kind::DioComplete, ctx.arg(0)) {
        let result = ctx.arg::<u64>(2).cast_signed();
        record.bytes = if result > 0 { result.cast_unsigned() } else { 0 };
        file.aux = (ctx.arg::<u64>(1) as i32).unsigned_abs();
        ring::send_owned(record, file, Source::File);
    }
    0
}

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
    let mut owner = Owner::default();
    describe_open_file(&mut owner, ctx.arg(0));
    sync(Kind::SyncEnter, owner, ctx.arg::<u64>(1) as u32 != 0, 0)
}

#[raw_tracepoint(tracepoint = "ext4_sync_file_enter")]
pub fn ext4_sync_file_enter(ctx: RawTracePointContext) -> i32 {
    sync_enter_file(&ctx)
}

#[raw_tracepoint(tracepoint = "btrfs_sync_file")]
pub fn btrfs_sync_file(ctx: RawTracePointContext) -> i32 {
    sync_enter_file(&ctx)
}

#[raw_tracepoint(tracepoint = "ext4_sync_file_exit")]
pub fn ext4_sync_file_exit(ctx: RawTracePointContext) -> i32 {
    if !ring::open() {
        return 0;
    }
    let mut owner = Owner::default();
    owner::describe_inode(&mut owner, ctx.arg(0));
    sync(Kind::SyncExit, owner, false, i64::from(ctx.arg::<u64>(1) as i32).cast_unsigned())
}

#[raw_tracepoint(tracepoint = "xfs_file_fsync")]
pub fn xfs_file_fsync(ctx: RawTracePointContext) -> i32 {
    if !ring::open() || !has(&XFS_INODE_VFS) {
        return 0;
    }
    let mut owner = Owner::default();
    owner::describe_inode(&mut owner, ctx.arg::<u64>(0) + u64::from(XFS_INODE_VFS.load()));
    sync(Kind::SyncEnter, owner, false, 0)
}

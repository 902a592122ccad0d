//! System calls that read, write, sync and allocate, by descriptor.

use aya_ebpf::{helpers::bpf_get_current_pid_tgid, macros::btf_tracepoint, programs::BtfTracePointContext};
use nestrace_abi::{Kind, Owner, Record, Source, flags::op};

use super::{OpenFile, copy_user, first_buffer, open_file, path_call, pt_regs, vector_bytes};
use crate::{caller, layout::*, preemption, ring, second_program, sums, thread};

/// Numbers of x86-64 system calls.
pub mod nr {
    pub const READ: u64 = 0;
    pub const WRITE: u64 = 1;
    pub const PREAD64: u64 = 17;
    pub const PWRITE64: u64 = 18;
    pub const READV: u64 = 19;
    pub const WRITEV: u64 = 20;
    pub const MSYNC: u64 = 26;
    pub const SENDFILE: u64 = 40;
    pub const FSYNC: u64 = 74;
    pub const FDATASYNC: u64 = 75;
    pub const FTRUNCATE: u64 = 77;
    pub const SYNC: u64 = 162;
    pub const IO_SUBMIT: u64 = 209;
    pub const SYNC_FILE_RANGE: u64 = 277;
    pub const FALLOCATE: u64 = 285;
    pub const PREADV: u64 = 295;
    pub const PWRITEV: u64 = 296;
    pub const SYNCFS: u64 = 306;
    pub const COPY_FILE_RANGE: u64 = 326;
    pub const PREADV2: u64 = 327;
    pub const PWRITEV2: u64 = 328;
}

/// MS_SYNC of `msync`: it waits.
const MS_SYNC: u64 = 4;
/// O_APPEND of `file.f_flags`.
const APPEND: u32 = 0o2000;

/// Which program a system call comes by.
#[derive(Clone, Copy)]
pub enum Passing {
    Enter,
    EnterIoSubmit,
    Exit,
}

/// What tells the current thread's call from all others. Every call of every process has a key, wanted or not: the kernel
/// counts what it skips of every one.
#[inline(always)]
pub fn this_call(passing: Passing) -> u64 {
    let tid = bpf_get_current_pid_tgid() & 0xffff_ffff;
    (tid << 2) | (passing as u64 + 1)
}

/// Calls at the file's own position are a guest's programs' matter; QEMU names an offset always. So are those that
/// its images do not need.
#[inline(always)]
fn operation(nr: u64) -> u8 {
    match nr {
        nr::PREAD64 | nr::PREADV | nr::PREADV2 => op::READ,
        nr::PWRITE64 | nr::PWRITEV | nr::PWRITEV2 => op::WRITE,
        nr::FSYNC => op::FSYNC,
        nr::FDATASYNC => op::FDATASYNC,
        nr::FALLOCATE => op::FALLOCATE,
        nr::SYNC_FILE_RANGE => op::SYNC_FILE_RANGE,
        nr::READ | nr::READV if caller::by_mount() => op::READ,
        nr::WRITE | nr::WRITEV if caller::by_mount() => op::WRITE,
        nr::SENDFILE if caller::by_mount() => op::READ,
        nr::COPY_FILE_RANGE if caller::by_mount() => op::WRITE,
        nr::FTRUNCATE if caller::by_mount() => op::TRUNCATE,
        nr::MSYNC if caller::by_mount() => op::MSYNC,
        nr::SYNC if caller::by_mount() => op::SYNC,
        nr::SYNCFS if caller::by_mount() => op::SYNCFS,
        _ => 0,
    }
}

#[btf_tracepoint(function = "sys_enter")]
pub fn sys_enter(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::File, this_call(Passing::Enter), || enter(&ctx)))
}

#[btf_tracepoint(function = "sys_enter")]
pub fn sys_enter_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::File, this_call(Passing::Enter), || enter(&ctx)))
}

#[inline(always)]
fn enter(ctx: &BtfTracePointContext) -> i32 {
    let nr: u64 = ctx.arg(1);
    let operation = operation(nr);
    if operation == 0 {
        return path_call::begins(nr, ctx.arg(0));
    }
    if !ring::open() {
        return 0;
    }
    let regs: *const u8 = ctx.arg(0);
    let descriptor: u64 = match nr {
        nr::SENDFILE => load(regs, pt_regs::SI),
        nr::COPY_FILE_RANGE => load(regs, pt_regs::DX),
        _ => load(regs, pt_regs::DI),
    };
    let names_file = operation != op::SYNC && operation != op::MSYNC;
    let mut opened = OpenFile::default();
    // By mount nearly all calls are on files of other mounts: the file comes first.
    if caller::by_mount() && names_file {
        opened = OpenFile::at(open_file(descriptor));
        let is_wanted = if operation == op::SYNCFS {
            caller::wants_mount(opened.inode.dev)
        } else {
            caller::wants_file(&opened.inode)
        };
        if !is_wanted {
            return 0;
        }
    }
    let Some(guest) = caller::current() else { return 0 };
    if caller::is_compat() {
        return 0;
    }
    if sums::on() {
        if !caller::by_mount() {
            opened = OpenFile::at(open_file(descriptor));
        }
        sums::call_begins(bpf_get_current_pid_tgid() as u32, &opened.inode, guest, operation);
        return 0;
    }
    if operation == op::MSYNC {
        // Only its file system's sync shows the file.
        if load::<u64>(regs, pt_regs::DX) & MS_SYNC != 0 {
            path_call::remember(operation);
        }
        return 0;
    }
    let mut record = ring::stamp(Kind::SyscallEnter);
    record.dev = guest;
    record.sub = operation;
    if operation == op::SYNC {
        thread::introduce();
        caller::begins_call();
        ring::send_owned(record, Owner::default(), Source::File);
        return 0;
    }
    record.object = descriptor;
    if !caller::by_mount() {
        opened = OpenFile::at(open_file(descriptor));
    }
    thread::introduce();
    let mut file = opened.owner();
    describe_arguments(&mut record, &mut file, nr, regs);
    if caller::by_mount() {
        find_position(&mut record, &file, nr, &opened);
    }
    caller::begins_call();
    ring::send_owned(record, file, Source::File);
    0
}

/// Fills offset, length, flags and the first buffer.
#[inline(always)]
fn describe_arguments(record: &mut Record, file: &mut Owner, nr: u64, regs: *const u8) {
    match nr {
        nr::PREAD64 | nr::PWRITE64 | nr::READ | nr::WRITE => {
            file.iocb = load(regs, pt_regs::SI);
            record.bytes = load(regs, pt_regs::DX);
            record.offset = load(regs, pt_regs::R10);
        }
        nr::PREADV | nr::PWRITEV | nr::PREADV2 | nr::PWRITEV2 | nr::READV | nr::WRITEV => {
            let vector = load(regs, pt_regs::SI);
            file.iocb = first_buffer(vector);
            record.bytes = vector_bytes(vector, load(regs, pt_regs::DX));
            record.offset = load(regs, pt_regs::R10);
            if nr == nr::PREADV2 || nr == nr::PWRITEV2 {
                record.flags = load(regs, pt_regs::R9);
            }
        }
        nr::FALLOCATE => {
            record.flags = load(regs, pt_regs::SI);
            record.offset = load(regs, pt_regs::DX);
            record.bytes = load(regs, pt_regs::R10);
        }
        // These two are passed a pointer to the offset, or null for the file's own position.
        nr::SENDFILE => {
            record.offset = copy_user(load(regs, pt_regs::DX)).unwrap_or(u64::MAX);
            record.bytes = load(regs, pt_regs::R10);
        }
        nr::COPY_FILE_RANGE => {
            record.offset = copy_user(load(regs, pt_regs::R10)).unwrap_or(u64::MAX);
            record.bytes = load(regs, pt_regs::R8);
        }
        nr::FTRUNCATE => record.offset = load(regs, pt_regs::SI),
        nr::SYNC_FILE_RANGE => {
            record.offset = load(regs, pt_regs::SI);
            record.bytes = load(regs, pt_regs::DX);
            record.flags = load(regs, pt_regs::R10);
        }
        _ => {}
    }
}

/// Puts the file's own position, or its end where it is appended to, in the place of an offset that the
/// call does not name (preadv2 and pwritev2 say so by −1).
#[inline(always)]
fn find_position(record: &mut Record, file: &Owner, nr: u64, opened: &OpenFile) {
    let at_position = match nr {
        nr::READ | nr::WRITE | nr::READV | nr::WRITEV => true,
        nr::PREADV2 | nr::PWRITEV2 | nr::SENDFILE | nr::COPY_FILE_RANGE => record.offset == u64::MAX,
        _ => false,
    };
    if at_position {
        record.offset = copy_field(opened.address, &FILE_POS);
    }
    if record.sub == op::WRITE && file.aux & APPEND != 0 {
        record.offset = copy_field(opened.inode.address, &INODE_SIZE);
    }
}

/// The sync of a file has begun: an `msync` of the current thread is about it, if it has come to no other one before.
#[inline(always)]
pub fn msync_finds(file: &Owner) {
    if !caller::by_mount() {
        return;
    }
    let Some(began_ns) = path_call::recall(op::MSYNC) else { return };
    thread::introduce();
    let mut record = ring::stamp(Kind::SyscallEnter);
    record.sub = op::MSYNC;
    record.related = began_ns;
    caller::begins_call();
    ring::send_owned(record, *file, Source::File);
}

#[btf_tracepoint(function = "sys_exit")]
pub fn sys_exit(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::first_of_threads(Source::File, this_call(Passing::Exit), || exit(&ctx)))
}

#[btf_tracepoint(function = "sys_exit")]
pub fn sys_exit_nested(ctx: BtfTracePointContext) -> i32 {
    preemption::without(|| second_program::second_of_threads(Source::File, this_call(Passing::Exit), || exit(&ctx)))
}

#[inline(always)]
fn exit(ctx: &BtfTracePointContext) -> i32 {
    let nr: u64 = load(ctx.arg(0), pt_regs::ORIG_AX);
    let operation = match nr {
        nr::IO_SUBMIT => op::IO_SUBMIT,
        nr => operation(nr),
    };
    if operation == 0 {
        return path_call::ends(nr, ctx.arg(0), ctx.arg(1));
    }
    if !ring::open() {
        return 0;
    }
    if sums::on() {
        if caller::current().is_some() {
            sums::call_ends(bpf_get_current_pid_tgid() as u32, ctx.arg::<u64>(1).cast_signed());
        }
        return 0;
    }
    if operation == op::MSYNC {
        path_call::recall(operation);
    }
    if !caller::ends_call() {
        return 0;
    }
    // By mount the begin was sent, so its process is wanted.
    let guest = if caller::by_mount() { Some(0) } else { caller::current() };
    let Some(guest) = guest else { return 0 };
    let mut record = ring::stamp(Kind::SyscallExit);
    record.dev = guest;
    record.sub = operation;
    record.offset = ctx.arg(1);
    ring::send(record, Source::File);
    0
}

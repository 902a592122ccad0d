//! Calls that name a file by its path, where files are chosen by mount: what they have created or changed there is known when
//! they return, so each is one event then.

use aya_ebpf::{btf_maps::LruHashMap, helpers::bpf_get_current_pid_tgid, macros::btf_map};
use nestrace_abi::{Kind, Owner, Source, flags::op};

use super::{OpenFile, copy_user, open_file, pt_regs};
use crate::{caller, layout::*, ring, thread};

/// Numbers of x86-64 system calls.
mod nr {
    pub const OPEN: u64 = 2;
    pub const TRUNCATE: u64 = 76;
    pub const RENAME: u64 = 82;
    pub const MKDIR: u64 = 83;
    pub const RMDIR: u64 = 84;
    pub const CREAT: u64 = 85;
    pub const UNLINK: u64 = 87;
    pub const OPENAT: u64 = 257;
    pub const MKDIRAT: u64 = 258;
    pub const UNLINKAT: u64 = 263;
    pub const RENAMEAT: u64 = 264;
    pub const RENAMEAT2: u64 = 316;
    pub const OPENAT2: u64 = 437;
}

/// O_CREAT of `open`.
const CREATE: u64 = 0o100;
/// AT_REMOVEDIR of `unlinkat`.
const REMOVE_FOLDER: u64 = 0x200;
/// AT_FDCWD: instead of a folder's descriptor, for the current folder.
const CURRENT_FOLDER: i32 = -100;
/// FMODE_CREATED of `file.f_mode`, since 4.19.
const CREATED: u32 = 1 << 20;

/// A call that has begun.
#[repr(C)]
#[derive(Clone, Copy)]
struct Began {
    ts_ns: u64,
    recording: u32,
    operation: u32,
}

/// By thread: its call by path that has not returned, or an `msync` that has not come to a file.
#[btf_map]
static CALL_BEGAN: LruHashMap<u32, Began, 4096> = LruHashMap::new();

/// Remembers that the current thread's call of this operation begins now.
#[inline(always)]
pub fn remember(operation: u8) {
    let began = Began {
        ts_ns: ring::stamp(Kind::CallDone).ts_ns,
        recording: ring::recording(),
        operation: u32::from(operation),
    };
    let _ = CALL_BEGAN.insert(&(bpf_get_current_pid_tgid() as u32), &began, 0);
}

/// When the current thread's call of this operation began, if that was remembered; it is forgotten.
#[inline(always)]
pub fn recall(operation: u8) -> Option<u64> {
    let tid = bpf_get_current_pid_tgid() as u32;
    // SAFETY: the value is read at once.
    let began = unsafe { CALL_BEGAN.get(&tid) }.copied()?;
    if began.operation != u32::from(operation) {
        return None;
    }
    let _ = CALL_BEGAN.remove(&tid);
    (began.recording == ring::recording()).then_some(began.ts_ns)
}

/// 0 for every other call.
#[inline(always)]
fn operation(nr: u64) -> u8 {
    match nr {
        nr::OPEN | nr::CREAT | nr::OPENAT | nr::OPENAT2 => op::OPEN,
        nr::TRUNCATE => op::TRUNCATE,
        nr::RENAME | nr::RENAMEAT | nr::RENAMEAT2 => op::RENAME,
        nr::MKDIR | nr::MKDIRAT => op::MKDIR,
        nr::RMDIR => op::RMDIR,
        nr::UNLINK | nr::UNLINKAT => op::UNLINK,
        _ => 0,
    }
}

/// Remembers when a call by path begins.
#[inline(always)]
pub fn begins(nr: u64, regs: *const u8) -> i32 {
    if !caller::by_mount() || operation(nr) == 0 || !ring::open() {
        return 0;
    }
    let flags = match nr {
        nr::OPEN => load(regs, pt_regs::SI),
        nr::OPENAT => load(regs, pt_regs::DX),
        _ => CREATE,
    };
    if flags & CREATE == 0 || caller::current().is_none() || caller::is_compat() {
        return 0;
    }
    remember(operation(nr));
    0
}

/// Sends a call by path that returns `result`.
#[inline(always)]
pub fn ends(nr: u64, regs: *const u8, result: u64) -> i32 {
    let operation = operation(nr);
    if !caller::by_mount() || operation == 0 || !ring::open() {
        return 0;
    }
    let Some(began_ns) = recall(operation) else { return 0 };
    let mut record = ring::stamp(Kind::CallDone);
    record.sub = operation;
    record.related = began_ns;
    record.offset = result;
    let file = if operation == op::OPEN {
        record.object = result;
        created_file(result)
    } else {
        match nr {
            nr::UNLINKAT if load::<u64>(regs, pt_regs::DX) & REMOVE_FOLDER != 0 => record.sub = op::RMDIR,
            nr::TRUNCATE => record.bytes = load(regs, pt_regs::SI),
            _ => {}
        }
        mount_of_path(nr, regs)
    };
    if let Some(file) = file {
        thread::introduce();
        ring::send_owned(record, file, Source::File);
    }
    0
}

/// The file that `open` has created on a chosen mount.
#[inline(always)]
fn created_file(result: u64) -> Option<Owner> {
    if result.cast_signed() < 0 || !has(&FILE_MODE) {
        return None;
    }
    let opened = OpenFile::at(open_file(result));
    let is_new = copy_field::<u32>(opened.address, &FILE_MODE) & CREATED != 0;
    (is_new && caller::wants_file(&opened.inode)).then(|| opened.owner())
}

/// The chosen mount where the path begins. Read after the call, when the kernel has read the path, too: so its page is there.
#[inline(always)]
fn mount_of_path(nr: u64, regs: *const u8) -> Option<Owner> {
    let names_folder = matches!(nr, nr::RENAMEAT | nr::RENAMEAT2 | nr::MKDIRAT | nr::UNLINKAT);
    let first: u64 = load(regs, pt_regs::DI);
    let path = if names_folder { load(regs, pt_regs::SI) } else { first };
    if copy_user::<u8>(path)? == b'/' {
        return None;
    }
    let dev = if names_folder && first as i32 != CURRENT_FOLDER {
        OpenFile::at(open_file(first)).inode.dev
    } else {
        current_folder_mount()
    };
    caller::wants_mount(dev).then(|| Owner { owner_dev: dev, ..Owner::default() })
}

/// The device of the super block that the current folder lies on; 0 if unknown.
#[inline(always)]
fn current_folder_mount() -> u32 {
    if !has(&TASK_FS) || !has(&FS_PWD_MOUNT) || !has(&MOUNT_SB) {
        return 0;
    }
    let fs: *const u8 = follow(current_task(), &TASK_FS);
    if fs.is_null() {
        return 0;
    }
    let mount: *const u8 = follow(fs, &FS_PWD_MOUNT);
    if mount.is_null() {
        return 0;
    }
    let super_block: *const u8 = follow(mount, &MOUNT_SB);
    if super_block.is_null() { 0 } else { follow(super_block, &SB_DEV) }
}

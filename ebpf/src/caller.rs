//! Whose file I/O is sent. On a host that of the traced processes, whatever the file; in a guest, whose
//! processes nobody chose, that of every process on regular files of the chosen mounts.
//!
//! [`BY_MOUNT`] is a constant to the verifier, so that the host pays nothing for the guest's way.

use aya_ebpf::{
    btf_maps::{HashMap, LruHashMap},
    helpers::bpf_get_current_pid_tgid,
    macros::btf_map,
};
use nestrace_abi::maps::InodeKey;

use crate::{layout::*, owner::Inode, ring};

/// Device numbers of super blocks whose files are wanted.
#[btf_map]
static MOUNTS: HashMap<u32, u32, 1024> = HashMap::new();

/// Images whose events are wanted on a host.
#[btf_map]
static INODES: HashMap<InodeKey, u32, 4096> = HashMap::new();

/// Threads that were seen to begin a call: the number of the recording until the call has ended, then 0.
/// Entries stay, because writing into one costs a tenth of adding and removing it.
#[btf_map]
static IN_CALL: LruHashMap<u32, u32, 16384> = LruHashMap::new();

/// io_uring requests whose submission was sent: the number of the recording.
#[btf_map]
static IN_URING: LruHashMap<u64, u32, 16384> = LruHashMap::new();

/// TS_COMPAT of `thread_info.status`: the system call is one of 32 bits, with numbers of its own.
const COMPAT_CALL: u32 = 2;
/// The type bits of `inode.i_mode`, and a regular file.
const TYPE_BITS: u16 = 0o170_000;
const REGULAR: u16 = 0o100_000;

/// Whether files are chosen by mount, not calls by process.
#[inline(always)]
pub fn by_mount() -> bool {
    BY_MOUNT.load() != 0
}

/// The guest that the current process belongs to if its calls may be wanted: by mount 0, of every
/// process but those that are listed (the agent itself, whose output would beget more of it).
#[inline(always)]
pub fn current() -> Option<u32> {
    if by_mount() {
        return if ring::current_guest().is_none() { Some(0) } else { None };
    }
    ring::current_guest()
}

/// Whether calls on a file with this inode are wanted.
#[inline(always)]
pub fn wants_file(inode: &Inode) -> bool {
    !by_mount() || (inode.mode & TYPE_BITS == REGULAR && wants_mount(inode.dev))
}

/// Whether files of this super block are wanted.
#[inline(always)]
pub fn wants_mount(dev: u32) -> bool {
    // SAFETY: the value is read at once; the map is only changed by the collector.
    unsafe { MOUNTS.get(&dev) }.is_some()
}

/// Whether events of this inode are wanted: of images on a host, of all that lies on the chosen mounts
/// in a guest.
#[inline(always)]
pub fn wants_inode(inode: u64, dev: u32) -> bool {
    if by_mount() {
        return wants_mount(dev);
    }
    let key = InodeKey { inode, dev, pad: 0 };
    // SAFETY: the value is read at once; the map is only changed by the collector.
    unsafe { INODES.get(&key) }.is_some()
}

/// Whether the current system call has numbers other than those of x86-64. Traced QEMUs have not.
#[inline(always)]
pub fn is_compat() -> bool {
    if !by_mount() || !has(&TASK_STATUS) {
        return false;
    }
    follow::<u32>(current_task(), &TASK_STATUS) & COMPAT_CALL != 0
}

/// The current thread's call was sent: its return is wanted.
#[inline(always)]
pub fn begins_call() {
    if !by_mount() {
        return;
    }
    let tid = bpf_get_current_pid_tgid() as u32;
    let recording = ring::recording();
    match IN_CALL.get_ptr_mut(&tid) {
        // SAFETY: only the thread itself comes here for its entry.
        Some(entry) => unsafe { *entry = recording },
        None => {
            let _ = IN_CALL.insert(&tid, &recording, 0);
        }
    }
}

/// Whether the current thread is within a call that was sent. Only by mount.
#[inline(always)]
pub fn is_in_call() -> bool {
    let tid = bpf_get_current_pid_tgid() as u32;
    // SAFETY: the value is read at once.
    by_mount() && unsafe { IN_CALL.get(&tid) }.copied() == Some(ring::recording())
}

/// Whether the return of the current thread's call is wanted.
#[inline(always)]
pub fn ends_call() -> bool {
    if !by_mount() {
        return true;
    }
    let tid = bpf_get_current_pid_tgid() as u32;
    let Some(entry) = IN_CALL.get_ptr_mut(&tid) else { return false };
    // SAFETY: as above.
    let was_sent = unsafe { *entry } == ring::recording();
    // SAFETY: as above.
    unsafe { *entry = 0 };
    was_sent
}

/// This io_uring request's submission was sent: what happens to it is wanted.
#[inline(always)]
pub fn begins_request(request: u64) {
    if by_mount() {
        let _ = IN_URING.insert(&request, &ring::recording(), 0);
    }
}

/// Whether what happens to this io_uring request is wanted.
#[inline(always)]
pub fn knows_request(request: u64) -> bool {
    // SAFETY: the value is read at once.
    !by_mount() || unsafe { IN_URING.get(&request) }.copied() == Some(ring::recording())
}

/// This io_uring request has ended; its address will be another's.
#[inline(always)]
pub fn ends_request(request: u64) {
    if by_mount() {
        let _ = IN_URING.remove(&request);
    }
}

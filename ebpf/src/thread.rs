//! Names of threads, sent once in a recording, and again when a thread has another one.

use aya_ebpf::{
    btf_maps::{Array, LruHashMap},
    helpers::{bpf_get_current_pid_tgid, bpf_get_smp_processor_id},
    macros::btf_map,
};
use nestrace_abi::{Kind, Source};

use crate::{cpu, layout::*, ring};

/// What was sent of a thread: recording, process and name, as one number.
#[btf_map]
static THREADS: LruHashMap<u32, u64, 16384> = LruHashMap::new();

/// By processor: the last thread that was met there and had been sent, as one number, alone in its cache line. Most
/// processors do the I/O of one thread for a while, and a look here costs a fraction of one into [`THREADS`].
#[btf_map]
static LAST_THREAD: Array<[u64; 8], 512> = Array::new();

/// Odd, so that names of up to eight characters all differ: the fraction of the golden ratio, and splitmix64's.
const MIX: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// Sends the current thread's name unless it was sent in this recording. A program that is executed has another name
/// than the one that was read from the disk for it, and a thread's number comes again.
#[inline(always)]
pub fn introduce() {
    let pid_tgid = bpf_get_current_pid_tgid();
    // What follows its 0 is not part of the name, and not always 0.
    let (task, comm) = (current_task(), TASK_COMM.load() as usize);
    let head: u64 = load(task, comm);
    let tail: u64 = load(task, comm + 8);
    let tid = pid_tgid as u32;
    let whose = (pid_tgid ^ u64::from(tid)) | u64::from(ring::recording());
    let sent = head.wrapping_mul(MIX[0]) ^ tail.wrapping_mul(MIX[1]) ^ whose;
    let whole = sent ^ u64::from(tid).wrapping_mul(MIX[0]).rotate_left(32);
    // SAFETY: no preconditions.
    let last = LAST_THREAD.get_ptr_mut(unsafe { bpf_get_smp_processor_id() });
    // SAFETY: the slot is valid for the program's run. One word: whoever interrupts this writes a whole one too.
    if last.is_some_and(|last| unsafe { (*last)[0] } == whole) {
        return;
    }
    cpu::joins(tid);
    // SAFETY: the value is read at once.
    let was_sent = unsafe { THREADS.get(&tid) }.copied() == Some(sent);
    if let Some(last) = last {
        // SAFETY: as above.
        unsafe { (*last)[0] = whole };
    }
    if was_sent {
        return;
    }
    let _ = THREADS.insert(&tid, &sent, 0);
    let mut record = ring::stamp(Kind::Thread);
    record.object = pid_tgid >> 32;
    record.related = head;
    record.offset = tail;
    ring::send(record, Source::Meta);
}

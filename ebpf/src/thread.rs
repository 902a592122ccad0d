//! Names of threads, sent once in a recording, and again when a thread has another one.

use aya_ebpf::{
    btf_maps::LruHashMap,
    helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid},
    macros::btf_map,
};
use nestrace_abi::{Kind, Source};

use crate::ring;

/// What was sent of a thread: recording, process and name, as one number.
#[btf_map]
static THREADS: LruHashMap<u32, u64, 16384> = LruHashMap::new();

/// Odd, so that names of up to eight characters all differ: the fraction of the golden ratio, and splitmix64's.
const MIX: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9];

/// Sends the current thread's name unless it was sent in this recording. A program that is executed has another name
/// than the one that was read from the disk for it, and a thread's number comes again.
#[inline(always)]
pub fn introduce() {
    let pid_tgid = bpf_get_current_pid_tgid();
    let Ok(comm) = bpf_get_current_comm() else { return };
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = comm;
    let head = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    let tail = u64::from_le_bytes([i, j, k, l, m, n, o, p]);
    let tid = pid_tgid as u32;
    let whose = (pid_tgid ^ u64::from(tid)) | u64::from(ring::recording());
    let sent = head.wrapping_mul(MIX[0]) ^ tail.wrapping_mul(MIX[1]) ^ whose;
    // SAFETY: the value is read at once.
    if unsafe { THREADS.get(&tid) }.copied() == Some(sent) {
        return;
    }
    let _ = THREADS.insert(&tid, &sent, 0);
    let mut record = ring::stamp(Kind::Thread);
    record.object = pid_tgid >> 32;
    record.related = head;
    record.offset = tail;
    ring::send(record, Source::Meta);
}

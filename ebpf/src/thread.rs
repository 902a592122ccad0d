//! Names of threads, sent once for each thread in a recording.

use aya_ebpf::{
    btf_maps::LruHashMap,
    helpers::{bpf_get_current_comm, bpf_get_current_pid_tgid},
    macros::btf_map,
};
use nestrace_abi::{Kind, Source};

use crate::ring;

/// The recording in which a thread's name was sent.
#[btf_map]
static THREADS: LruHashMap<u32, u32, 16384> = LruHashMap::new();

/// Sends the current thread's name unless it was sent in this recording.
#[inline(always)]
pub fn introduce() {
    let pid_tgid = bpf_get_current_pid_tgid();
    let tid = pid_tgid as u32;
    let recording = ring::recording();
    // SAFETY: the value is read at once.
    if unsafe { THREADS.get(&tid) }.copied() == Some(recording) {
        return;
    }
    let _ = THREADS.insert(&tid, &recording, 0);
    let Ok(comm) = bpf_get_current_comm() else { return };
    let mut record = ring::stamp(Kind::Thread);
    record.object = pid_tgid >> 32;
    let [a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p] = comm;
    record.related = u64::from_le_bytes([a, b, c, d, e, f, g, h]);
    record.offset = u64::from_le_bytes([i, j, k, l, m, n, o, p]);
    ring::send(record, Source::Meta);
}

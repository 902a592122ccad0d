//! Sums instead of records: a histogram of each disk, operation and layer, which one update a request changes. Nothing
//! leaves the kernel but what the collector reads once an interval.

use core::intrinsics::{AtomicOrdering, atomic_cxchg, atomic_xadd};
use core::ptr::{read_volatile, write_volatile};

use aya_ebpf::{
    btf_maps::{Array, HashMap},
    helpers::bpf_ktime_get_ns,
    macros::btf_map,
};
use nestrace_abi::{
    Source,
    flags::op,
    histogram::{BUCKETS, bucket_of},
    layout::SUMMING_FROM_START,
    maps::{Began, InodeKey, IoKey, SUM_OPS, SUM_PLACES, SUM_POOL_PLACES, Sum, io_kind, sum_op},
};

use crate::{
    block::{self, OPERATION},
    done::MMAPABLE,
    layout::*,
    owner::Inode,
    ring,
};

/// The collector says how many there are.
#[btf_map]
static SUMS: Array<Sum, 1, MMAPABLE> = Array::new();

#[btf_map]
static SUM_BACKENDS: HashMap<IoKey, u32, 4096> = HashMap::new();

#[btf_map]
static SUM_POOL: Array<u64, { SUM_POOL_PLACES + 1 }, MMAPABLE> = Array::new();

#[btf_map]
static SUM_IMAGES: HashMap<InodeKey, u32, 4096> = HashMap::new();

#[btf_map]
static SUM_BEGAN: HashMap<IoKey, Began, 16384> = HashMap::new();

#[btf_map]
static SUMS_SINCE: Array<u64, 1> = Array::new();

/// bpf_map_update_elem does not replace an element.
const BPF_NOEXIST: u64 = 1;

/// How often a program tries to get a place of the pool of its own, while others do.
const MAX_TRIES: u32 = 64;

/// REQ_OP_* of the kernel, the same from 5.10 to 7.3.
mod req_op {
    pub const READ: u32 = 0;
    pub const WRITE: u32 = 1;
    pub const FLUSH: u32 = 2;
    pub const DISCARD: u32 = 3;
    pub const SECURE_ERASE: u32 = 5;
    pub const WRITE_ZEROES: u32 = 9;
}

/// `enum BlockAcctType` of QEMU.
mod acct {
    pub const READ: u64 = 1;
    pub const WRITE: u64 = 2;
    pub const FLUSH: u64 = 3;
    pub const UNMAP: u64 = 4;
}

/// Whether the probes sum. A constant to the verifier, so that the arms of the other way are pruned.
#[inline(always)]
pub fn on() -> bool {
    SUMMING.load() != 0
}

/// When the latency of a request begins that was started and issued at these times. `start_ns` is 0 where the queue keeps no
/// time.
#[inline(always)]
fn latency_begins(start_ns: u64, issued_ns: u64) -> u64 {
    let is_from_start = SUMMING.load() == SUMMING_FROM_START;
    if is_from_start && start_ns != 0 && start_ns < issued_ns { start_ns } else { issued_ns }
}

#[inline(always)]
fn now_ns() -> u64 {
    // SAFETY: no preconditions.
    unsafe { bpf_ktime_get_ns() }
}

/// The place of an operation in the first layer of a slot.
#[inline(always)]
fn place(slot: u32, operation: u32) -> u32 {
    slot.wrapping_mul(SUM_PLACES as u32).wrapping_add(operation)
}

/// Adds one that has ended.
#[inline(always)]
fn add(place: u32, bytes: u64, ns: u64) {
    let Some(sum) = SUMS.get_ptr_mut(place) else {
        ring::count_drop(Source::Meta);
        return;
    };
    let bucket = bucket_of(ns);
    // The verifier does not follow how the bucket was made.
    if bucket >= BUCKETS {
        return;
    }
    // SAFETY: fields of a value of the map, which is valid for the program's run; others change them at once, hence atomic.
    unsafe {
        if bytes != 0 {
            atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(&raw mut (*sum).bytes, bytes);
        }
        atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(&raw mut (*sum).sum_ns, ns);
        let bucket = (&raw mut (*sum).buckets).cast::<u64>().add(bucket);
        atomic_xadd::<u64, u64, { AtomicOrdering::Relaxed }>(bucket, 1);
        // Of two that are the longest so far at once, one may be forgotten; the histogram has both.
        if read_volatile(&raw const (*sum).max_ns) < ns {
            write_volatile(&raw mut (*sum).max_ns, ns);
        }
    }
}

/// The operation of a request; `None` of one that moves nothing of a disk's data (a passed through command, a zone's).
#[inline(always)]
fn operation_of(request: *const u8) -> Option<u32> {
    match follow::<u32>(request, &RQ_CMD_FLAGS) & OPERATION {
        req_op::READ => Some(sum_op::READ),
        req_op::WRITE => Some(sum_op::WRITE),
        req_op::FLUSH => Some(sum_op::FLUSH),
        req_op::DISCARD | req_op::SECURE_ERASE | req_op::WRITE_ZEROES => Some(sum_op::DISCARD),
        _ => None,
    }
}

/// Where a request that is issued now will be summed.
#[inline(always)]
pub fn place_of_request(request: *const u8) -> Option<u32> {
    let slot = ring::value_of_device(block::request_disk(request))?;
    Some(place(slot, operation_of(request)?))
}

/// The stamp of a request's beginning and that of its D are of two clocks of the kernel's, which may differ by as much while
/// the kernel corrects one.
const CLOCKS_DIFFER_NS: u64 = 1_000_000;

/// Whether a request that was issued at this time had begun before.
#[inline(always)]
fn began_before(start_ns: u64, issued_ns: u64) -> bool {
    start_ns < issued_ns.wrapping_add(CLOCKS_DIFFER_NS)
}

/// A request is issued that is in flight already: it was put back into its queue, or its last end reached no program.
#[inline(always)]
pub fn begins_again(request: *const u8, issued_ns: u64) {
    if has(&RQ_START) && !began_before(follow(request, &RQ_START), issued_ns) {
        ring::count_drop(Source::Block);
    }
}

/// A request has completed that was remembered with its place.
#[inline(always)]
pub fn request_ends(request: *const u8, place: u32, bytes: u32, issued_ns: u64, ended_ns: u64) {
    // 0 where the queue keeps no time.
    let start_ns: u64 = if has(&RQ_START) { follow(request, &RQ_START) } else { 0 };
    if !began_before(start_ns, issued_ns) {
        // What is remembered is an earlier use of the request. Neither its end reached a program nor the D of this one.
        ring::count_drop(Source::Block);
        ring::count_drop(Source::Block);
        return;
    }
    add(place, u64::from(bytes), ended_ns.wrapping_sub(latency_begins(start_ns, issued_ns)));
    if start_ns != 0 {
        add(place.wrapping_add(SUM_OPS as u32), 0, issued_ns.saturating_sub(start_ns));
    }
}

/// A request has completed that was not remembered: one that began before, the end of an empty flush, or one that is lost.
#[inline(always)]
pub fn unknown_request(request: *const u8) {
    if place_of_request(request).is_none() || !has(&RQ_START) {
        return;
    }
    let Some(since) = SUMS_SINCE.get(0).copied() else { return };
    let has_data = follow::<u32>(request, &RQ_LEN) != 0;
    if has_data && follow::<u64>(request, &RQ_START) > since {
        ring::count_drop(Source::Block);
    }
}

#[inline(always)]
fn begin(key: &IoKey, bytes: u64, place: u32, guest: u32, source: Source) {
    let began = Began { ts_ns: now_ns(), bytes, place, guest };
    // One that is there already has ended without a program that saw it; QEMU may also forget one of its own.
    let flags = if matches!(source, Source::File) { BPF_NOEXIST } else { 0 };
    if SUM_BEGAN.insert(key, &began, flags).is_err() {
        ring::count_drop(source);
        if flags != 0 {
            let _ = SUM_BEGAN.insert(key, &began, 0);
        }
    }
}

/// What had begun, which is forgotten.
#[inline(always)]
fn take(key: &IoKey) -> Option<Began> {
    // SAFETY: the value is read at once.
    let began = unsafe { SUM_BEGAN.get(key) }.copied()?;
    let _ = SUM_BEGAN.remove(key);
    Some(began)
}

#[inline(always)]
fn end(key: &IoKey, bytes: Option<u64>) {
    if let Some(began) = take(key) {
        add(began.place, bytes.unwrap_or(began.bytes), now_ns().wrapping_sub(began.ts_ns));
    }
}

/// The slot of a BlockBackend: its own, or one of the pool where it is new.
#[inline(always)]
fn slot_of_backend(stats: u64, guest: u32) -> Option<u32> {
    let key = IoKey { address: stats, guest, kind: io_kind::BACKEND };
    // SAFETY: the value is read at once.
    if let Some(slot) = unsafe { SUM_BACKENDS.get(&key) } {
        return Some(*slot);
    }
    let slot = (taken_from_pool()? - 1) as u32;
    let _ = SUM_BACKENDS.insert(&key, &slot, 0);
    Some(slot)
}

/// Puts this into a word that others change at once; whether it was still the word that was seen.
#[inline(always)]
fn replace(word: *mut u64, seen: u64, by: u64) -> bool {
    // SAFETY: the callers' words are values of maps, which are valid for the program's run.
    unsafe { atomic_cxchg::<u64, { AtomicOrdering::Relaxed }, { AtomicOrdering::Relaxed }>(word, seen, by).1 }
}

/// A slot and 1 of the pool.
#[inline(always)]
fn taken_from_pool() -> Option<u64> {
    let next = SUM_POOL.get_ptr_mut(SUM_POOL_PLACES as u32)?;
    let mut tries = 0;
    while tries < MAX_TRIES {
        // SAFETY: the map's value; volatile, because others change it at once.
        let at = unsafe { read_volatile(next) };
        if replace(next, at, at.wrapping_add(1)) {
            let place = SUM_POOL.get_ptr_mut(at as u32 % SUM_POOL_PLACES as u32)?;
            // SAFETY: as above.
            let there = unsafe { read_volatile(place) };
            // The collector takes a slot back now and then.
            return (there != 0 && replace(place, there, 0)).then_some(there);
        }
        tries += 1;
    }
    None
}

/// QEMU begins to account a request.
#[inline(always)]
pub fn qemu_begins(stats: u64, cookie: u64, bytes: u64, kind: u64) {
    if !ring::open() {
        return;
    }
    let Some(guest) = ring::current_guest() else { return };
    let operation = match kind {
        acct::READ => sum_op::READ,
        acct::WRITE => sum_op::WRITE,
        acct::FLUSH => sum_op::FLUSH,
        acct::UNMAP => sum_op::DISCARD,
        _ => return,
    };
    let Some(slot) = slot_of_backend(stats, guest) else {
        ring::count_drop(Source::Qemu);
        return;
    };
    let key = IoKey { address: cookie, guest, kind: io_kind::REQUEST };
    begin(&key, bytes, place(slot, operation), guest, Source::Qemu);
}

/// QEMU has accounted a request; a failed one is not summed, as QEMU does not count it among the others.
#[inline(always)]
pub fn qemu_ends(cookie: u64, has_failed: bool) {
    if !ring::open() {
        return;
    }
    let Some(guest) = ring::current_guest() else { return };
    let key = IoKey { address: cookie, guest, kind: io_kind::REQUEST };
    if has_failed {
        let _ = SUM_BEGAN.remove(&key);
    } else {
        end(&key, None);
    }
}

/// Where I/O of QEMU's on this file is summed.
#[inline(always)]
fn place_of_file_io(inode: &Inode, guest: u32, operation: u8) -> Option<u32> {
    let operation = match operation {
        op::READ => sum_op::READ,
        op::WRITE => sum_op::WRITE,
        op::FSYNC | op::FDATASYNC | op::SYNC_FILE_RANGE => sum_op::FLUSH,
        op::FALLOCATE => sum_op::DISCARD,
        _ => return None,
    };
    let key = InodeKey { inode: inode.number, dev: inode.dev, pad: guest };
    // SAFETY: the value is read at once.
    let slot = unsafe { SUM_IMAGES.get(&key) }.copied()?;
    Some(place(slot, operation))
}

/// QEMU begins I/O on a file.
#[inline(always)]
fn file_io_begins(key: &IoKey, inode: &Inode, guest: u32, operation: u8) {
    if let Some(place) = place_of_file_io(inode, guest, operation) {
        begin(key, 0, place, guest, Source::File);
    }
}

/// Bytes that an I/O has moved, by what it returned; nothing where that is an error. Of a sync it is 0.
#[inline(always)]
fn moved(result: i64) -> u64 {
    if result > 0 { result.cast_unsigned() } else { 0 }
}

#[inline(always)]
fn call_key(tid: u32) -> IoKey {
    IoKey { address: u64::from(tid), guest: 0, kind: io_kind::CALL }
}

/// The current thread begins a system call on a file.
#[inline(always)]
pub fn call_begins(tid: u32, inode: &Inode, guest: u32, operation: u8) {
    file_io_begins(&call_key(tid), inode, guest, operation);
}

/// It has returned.
#[inline(always)]
pub fn call_ends(tid: u32, result: i64) {
    end(&call_key(tid), Some(moved(result)));
}

#[inline(always)]
fn uring_key(request: u64) -> IoKey {
    IoKey { address: request, guest: 0, kind: io_kind::URING }
}

/// A request of io_uring is submitted.
#[inline(always)]
pub fn uring_begins(request: u64, inode: &Inode, guest: u32, operation: u8) {
    file_io_begins(&uring_key(request), inode, guest, operation);
}

/// It has completed.
#[inline(always)]
pub fn uring_ends(request: u64, result: i64) {
    end(&uring_key(request), Some(moved(result)));
}

/// At its end the guest is not known: where two QEMUs have control blocks at the same address, the image distinguishes them.
#[inline(always)]
fn aio_key(block: u64, inode: u64) -> IoKey {
    IoKey { address: block ^ inode.rotate_left(48), guest: 0, kind: io_kind::AIO }
}

/// A control block of native aio is submitted.
#[inline(always)]
pub fn aio_begins(block: u64, inode: &Inode, guest: u32, operation: u8) {
    file_io_begins(&aio_key(block, inode.number), inode, guest, operation);
}

/// It has completed.
#[inline(always)]
pub fn aio_ends(block: u64, inode: u64, result: i64) {
    end(&aio_key(block, inode), Some(moved(result)));
}

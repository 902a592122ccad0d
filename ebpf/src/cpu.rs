//! Where the threads that carry I/O have a processor, and where they wait for one.
//!
//! Carriers are the threads that the collector names (those of QEMU) and every thread that touches what is recorded: it joins
//! when its name is sent ([`thread`](crate::thread)). The scheduler's tracepoints are every thread's; of others they cost a
//! look into an array.
//!
//! Both run with interrupts off, so nothing interrupts or preempts these programs.

use aya_ebpf::{
    btf_maps::{Array, LruHashMap},
    helpers::bpf_get_current_pid_tgid,
    macros::{btf_map, btf_tracepoint},
    programs::BtfTracePointContext,
};
use nestrace_abi::{Kind, Source, flags::thread_state, maps::CARRIER_FILTER_SLOTS};

use crate::{layout::*, ring};

/// Threads that carry I/O, also of earlier recordings.
#[btf_map]
static CARRIERS: LruHashMap<u32, u32, 16384> = LruHashMap::new();

/// Not 0 where a thread with these low bits may be in [`CARRIERS`]: a look here is a few instructions.
#[btf_map]
static CARRIER_FILTER: Array<u32, CARRIER_FILTER_SLOTS> = Array::new();

/// `TASK_INTERRUPTIBLE` and `TASK_UNINTERRUPTIBLE` of `include/linux/sched.h`, and what makes the latter an idle one.
const INTERRUPTIBLE: u32 = 1;
const UNINTERRUPTIBLE: u32 = 2;
const NOLOAD: u32 = 0x400;

/// This thread carries I/O from now on. The idle task never does.
#[inline(always)]
pub fn joins(tid: u32) {
    if tid == 0 {
        return;
    }
    let _ = CARRIERS.insert(&tid, &1, 0);
    if let Some(slot) = CARRIER_FILTER.get_ptr_mut(tid & (CARRIER_FILTER_SLOTS as u32 - 1)) {
        // SAFETY: the slot is valid for the program's run; all write the same.
        unsafe { *slot = 1 };
    }
}

#[inline(always)]
fn carries(tid: u32) -> bool {
    let slot = CARRIER_FILTER.get(tid & (CARRIER_FILTER_SLOTS as u32 - 1));
    // SAFETY: only the presence of the entry is looked at.
    tid != 0 && slot.is_some_and(|slot| *slot != 0) && unsafe { CARRIERS.get(&tid) }.is_some()
}

/// The processor goes from the current thread to another one.
#[btf_tracepoint(function = "sched_switch")]
pub fn sched_switch(ctx: BtfTracePointContext) -> i32 {
    let next: *const u8 = ctx.arg(2);
    let next_tid: u32 = follow(next, &TASK_PID);
    let leaves = carries(bpf_get_current_pid_tgid() as u32);
    let comes = carries(next_tid);
    if !(leaves || comes) || !ring::open() {
        return 0;
    }
    let mut record = ring::stamp(Kind::Switch);
    record.object = u64::from(next_tid);
    record.dev = u32::from(leaves) | u32::from(comes) << 1;
    record.sub = state_left(&ctx);
    let other = if leaves { next } else { current_task() };
    record.related = load(other, TASK_COMM.load() as usize);
    record.offset = load(other, TASK_COMM.load() as usize + 8);
    ring::send(record, Source::Cpu);
    0
}

/// What the current thread does without the processor.
#[inline(always)]
fn state_left(ctx: &BtfTracePointContext) -> u8 {
    // A thread that is preempted on its way to sleep has not gone to sleep.
    if ctx.arg::<u64>(0) as u8 != 0 {
        return thread_state::RUNNABLE;
    }
    // An argument since 5.18 (fa2c3254d7cf, 9c2136be0878): the thread may have been woken since, on another processor.
    let state = match SWITCH_STATE.load() {
        0 => follow(current_task(), &TASK_STATE),
        _ => ctx.arg::<u64>(3) as u32,
    };
    if state == 0 {
        thread_state::RUNNABLE
    } else if state & INTERRUPTIBLE != 0 || state & (UNINTERRUPTIBLE | NOLOAD) == UNINTERRUPTIBLE | NOLOAD {
        thread_state::ASLEEP
    } else if state & UNINTERRUPTIBLE != 0 {
        thread_state::UNINTERRUPTIBLE
    } else {
        thread_state::STOPPED
    }
}

/// A thread that sleeps is woken; of one that does not the kernel sends nothing.
#[btf_tracepoint(function = "sched_waking")]
pub fn sched_waking(ctx: BtfTracePointContext) -> i32 {
    let tid: u32 = follow(ctx.arg(0), &TASK_PID);
    if carries(tid) && ring::open() {
        let mut record = ring::stamp(Kind::Wake);
        record.object = u64::from(tid);
        ring::send(record, Source::Cpu);
    }
    0
}

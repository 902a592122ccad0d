//! Programs that must not be preempted.
//!
//! Since Linux 7.0 a tracepoint's programs can be preempted (`guard(srcu_fast_notrace)` instead of `preempt_notrace` in
//! `include/linux/tracepoint.h`), and may go on with the next program of the tracepoint on another processor. The kernel
//! does not run a program that already runs on this processor: while one is preempted, the events of every other thread there
//! would be skipped. So each program turns preemption off by the kernel's functions for that (6.10, fc7566ad0a82).

use crate::layout::PREEMPTIBLE;

/// A helper that no kernel has; the collector puts the kernel's function in its place, or an instruction that does nothing.
#[inline(always)]
fn call<const MARK: usize>() {
    // SAFETY: what the collector puts there takes no arguments and returns nothing.
    unsafe { core::mem::transmute::<usize, unsafe extern "C" fn()>(MARK)() }
}

/// Runs a program's body with preemption off, where it could be on.
#[inline(always)]
pub fn without(body: impl FnOnce() -> i32) -> i32 {
    call::<{ nestrace_abi::layout::PREEMPT_DISABLE_MARK as usize }>();
    let result = body();
    call::<{ nestrace_abi::layout::PREEMPT_ENABLE_MARK as usize }>();
    result
}

/// Whether a thread may go on with a tracepoint's next program on another processor.
#[inline(always)]
pub fn may_move() -> bool {
    PREEMPTIBLE.load() != 0
}

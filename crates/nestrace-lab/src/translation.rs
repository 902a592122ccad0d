//! How a guest is executed where there is no KVM, and what QEMU's translation does to it.

/// Translation with all of the guest's processors in one thread. With a thread for each, QEMU 7.2 at times keeps
/// a translation of code that another processor has changed meanwhile: a guest that switches a tracepoint on
/// or off then meets the breakpoint of that change for ever (`rcu_preempt self-detected stall`, always at a
/// patched place, in every second run that attached probes under load).
///
/// It has a price: in one thread QEMU translates the guest's memory barriers into nothing, although its own threads read
/// what the guest writes. Once in some hundred thousand interrupts a virtio queue's is lost so: the guest has asked for
/// it and not seen what has just come, QEMU has not seen that it was asked. With 32 reads in flight that QEMU had
/// counted as done, fio waited for ever; as the queue's event index lies behind, no later interrupt comes either. (Of
/// barriers alone c914d46d0a64 in QEMU 8.1 says so; x86's `lock addl` has none there either.)
const ONE_THREAD: &str = "tcg,thread=single";
/// Translation of a single processor, which nobody else changes code under: with its barriers, which QEMU translates
/// where there may be more than one.
const ONE_PROCESSOR: &str = "tcg,thread=multi";

/// `-accel` of a translated guest with so many processors.
pub(crate) fn accel(vcpus: u32) -> &'static str {
    if vcpus == 1 {
        ONE_PROCESSOR
    } else {
        ONE_THREAD
    }
}

/// `-smp`. Where there may be more than one processor, barriers are translated.
pub(crate) fn processors(vcpus: u32) -> String {
    format!("{vcpus},maxcpus={}", vcpus.max(2))
}

/// Whether that is `-accel` of a translated guest.
pub(crate) fn is_translated(accel: &str) -> bool {
    accel.starts_with("tcg")
}

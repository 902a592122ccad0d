//! How a guest is executed where there is no KVM, and what QEMU's translation does to it.

/// Translation with all of the guest's processors in one thread. With a thread for each, QEMU 7.2 at times keeps
/// a translation of code that another processor has changed meanwhile: a guest that switches a tracepoint on
/// or off then meets the breakpoint of that change for ever (`rcu_preempt self-detected stall`, always at a
/// patched place, in every second run that attached probes under load).
///
/// It has a price. Seen: 32 reads in flight in the guest, all of them done by QEMU's count, and fio waiting for ever, about once in
/// three million reads. The explanation: in one thread QEMU translates the guest's memory barriers into nothing
/// (c914d46d0a64 in QEMU 8.1 ends that for barriers, not for x86's `lock addl`), although its own threads read what the
/// guest writes. So a guest can have asked for an interrupt without seeing what has just come, and QEMU not have seen
/// that it was asked; as the queue's event index lies behind then, no later interrupt comes either.
pub(crate) const ONE_THREAD: &str = "tcg,thread=single";
/// Translation for a guest with one processor, so that no other processor changes its code. QEMU translates barriers
/// here, because it expects that there may be more threads.
const ONE_PROCESSOR: &str = "tcg,thread=multi";

/// `-accel` of a translated guest with so many processors.
pub(crate) fn accel(vcpus: u32) -> &'static str {
    if vcpus == 1 {
        ONE_PROCESSOR
    } else {
        ONE_THREAD
    }
}

/// `-icount` of a guest whose clock counts instructions: 2⁰ ns for each. QEMU executes such a guest in one thread only.
pub(crate) const COUNTED: &str = "shift=0,sleep=on";

/// Its `-cpu`. To copy a byte with `rep movsb` counts as an instruction, which no processor takes for it: without these
/// features the kernel copies words.
pub(crate) const COUNTED_CPU: &str = "max,-erms,-fsrm";

/// `-smp`. Where there may be more than one processor, barriers are translated.
pub(crate) fn processors(vcpus: u32) -> String {
    format!("{vcpus},maxcpus={}", vcpus.max(2))
}

/// Whether that is `-accel` of a translated guest.
pub(crate) fn is_translated(accel: &str) -> bool {
    accel.starts_with("tcg")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_processor_keeps_its_barriers() {
        // A thread of its own, and a machine that may have two.
        assert_eq!(
            (accel(1), processors(1).as_str()),
            ("tcg,thread=multi", "1,maxcpus=2")
        );
        assert_eq!(
            (accel(2), processors(2).as_str()),
            ("tcg,thread=single", "2,maxcpus=2")
        );
        assert!(is_translated(accel(1)) && is_translated(accel(2)) && !is_translated("kvm"));
    }
}

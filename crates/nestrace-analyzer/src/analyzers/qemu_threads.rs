//! The threads of each guest's QEMU: what they are, and what they did.

use nestrace_trace::manifest;

use crate::follow::cpu::CpuStates;
use crate::model::threads::Threads;
use crate::result::analysis::{QemuThread, QemuThreads, RanInstead};

/// Names of those who ran instead.
const MAX_NAMES: usize = 16;

/// The entry of `qemu_threads[]` for the guest with this number; `None` where no thread of it had an event.
pub(super) fn of_guest(
    guest: &manifest::Guest,
    index: u32,
    states: &CpuStates,
    names: &Threads,
) -> Option<QemuThreads> {
    let tids = states.threads_of(index, names);
    if tids.is_empty() {
        return None;
    }
    let thread = |tid: u32| {
        let known = guest.threads.iter().find(|thread| thread.tid == tid);
        let vcpu = known.and_then(|thread| thread.vcpu);
        let iothread = known.and_then(|thread| thread.iothread.clone());
        let role = match tid {
            _ if vcpu.is_some() => "vcpu",
            _ if iothread.is_some() => "iothread",
            tid if tid == guest.pid => "main",
            _ => "other",
        };
        let named = || {
            let of_proc = known.map(|thread| thread.name.clone());
            of_proc.or_else(|| Some(names.get(tid)?.name.clone()))
        };
        QemuThread {
            tid,
            name: iothread.or_else(named).unwrap_or_default(),
            role,
            vcpu,
            cpu: states.in_all(tid).unwrap_or_default(),
        }
    };
    let ran_instead = states.ran_instead(index, names).into_iter();
    let ran_instead = ran_instead.map(|(name, runnable_ns)| RanInstead { name, runnable_ns });
    Some(QemuThreads {
        guest: guest.name.clone(),
        threads: tids.into_iter().map(thread).collect(),
        ran_instead: ran_instead.take(MAX_NAMES).collect(),
    })
}

//! Running on one processor for a moment.

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// Where the thread may run; dropping it gives that back.
pub struct Affinity {
    before: Option<CpuSet>,
}

impl Affinity {
    /// Remembers what it is now.
    pub fn save() -> Self {
        Self {
            before: sched_getaffinity(Pid::from_raw(0)).ok(),
        }
    }

    /// Moves to a processor; `false` where that is not allowed or it is offline. The kernel writes no
    /// files for an offline processor.
    pub fn move_to(&self, cpu: usize) -> bool {
        let mut only = CpuSet::new();
        only.set(cpu).is_ok() && sched_setaffinity(Pid::from_raw(0), &only).is_ok()
    }
}

impl Drop for Affinity {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = sched_setaffinity(Pid::from_raw(0), before);
        }
    }
}

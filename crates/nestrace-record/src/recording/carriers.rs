//! The threads of QEMU that are known before they touch any I/O: its processors, its main loop, its iothreads.

use nestrace_probes::{ProbeError, load::Probes};

use crate::guest::process::thread_ids;

/// Sends the switches of all threads that these processes have now. Later ones join when they touch recorded I/O.
pub(super) fn add(probes: &mut Probes, pids: impl Iterator<Item = u32>) -> Result<(), ProbeError> {
    for tid in pids.flat_map(thread_ids) {
        probes.add_carrier(tid)?;
    }
    Ok(())
}

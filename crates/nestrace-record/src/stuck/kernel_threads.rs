//! Kernel threads that are blocked: journals, write-back, loop devices' workers.

use std::collections::BTreeMap;
use std::fs;

use nestrace_probes::proc_file;
use nestrace_stuck::facts::{HostFacts, ThreadFacts};

use super::threads::{self, Thread};

/// Blocked kernel threads that are kept.
const MAX_BLOCKED: usize = 256;
/// `PF_KTHREAD`.
const KERNEL_THREAD: u64 = 0x20_0000;
/// `meminfo`.
const MAX_MEMINFO: usize = 64 << 10;

/// Those that are blocked now.
pub(super) fn blocked() -> BTreeMap<u32, Thread> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return BTreeMap::new();
    };
    let pids = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    pids.filter_map(|pid| {
        let thread = threads::read(&format!("/proc/{pid}"))?;
        let is_blocked = thread.state == 'D' && thread.flags & KERNEL_THREAD != 0;
        is_blocked.then_some((pid, thread))
    })
    .take(MAX_BLOCKED)
    .collect()
}

/// Those that were blocked before, and have not run since; and how much memory waits for write-back.
pub(super) fn facts(before: &BTreeMap<u32, Thread>) -> HostFacts {
    let still = before.iter().filter_map(|(&pid, before)| {
        let folder = format!("/proc/{pid}");
        let now = threads::read(&folder)?;
        let is_still = now.state == 'D' && now.ran == before.ran;
        is_still.then(|| ThreadFacts {
            pid,
            tid: pid,
            name: now.name,
            state: "D".to_owned(),
            wait_channel: threads::wait_channel(&folder),
            ..ThreadFacts::default()
        })
    });
    let meminfo = proc_file::read("/proc/meminfo", MAX_MEMINFO);
    let meminfo = meminfo.map(|text| text.text()).unwrap_or_default();
    HostFacts {
        kernel_threads: still.collect(),
        dirty: kib(&meminfo, "Dirty:"),
        writeback: kib(&meminfo, "Writeback:"),
    }
}

/// A line of `meminfo`, in bytes.
fn kib(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    let n: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    n.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn meminfo() {
        let text = "MemTotal:   100 kB\nDirty:      12 kB\nWriteback:   0 kB\nWritebackTmp: 7 kB\n";
        assert_eq!(kib(text, "Dirty:"), Some(12 << 10));
        assert_eq!(kib(text, "Writeback:"), Some(0));
        assert_eq!(kib(text, "Other:"), None);
    }
}

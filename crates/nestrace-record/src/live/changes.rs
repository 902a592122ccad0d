//! Notices that a guest came or went, and that one opened or closed a file: then it is worth looking at the machine anew,
//! which asks monitors and takes a second.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{Hash, Hasher};
use std::os::unix::ffi::OsStrExt;

use nestrace_probes::proc_file::MAX_DESCRIPTORS;

use crate::guest::process::{has_qemu_name, start_of};

/// A process that was just forked runs its parent's program: it is looked at so often before it counts as no QEMU.
const LOOKS: u8 = 4;

/// What was seen at the last look.
#[derive(Default)]
pub(super) struct Changes {
    /// Processes that are no QEMU, as far as is known: how often they were looked at.
    others: BTreeMap<u32, u8>,
    /// QEMUs: what they have open.
    qemus: BTreeMap<(u32, u64), u64>,
}

impl Changes {
    /// Whether something has changed since the last look.
    pub fn look(&mut self) -> bool {
        let pids: BTreeSet<u32> = fs::read_dir("/proc")
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
            .collect();
        self.others.retain(|pid, _| pids.contains(pid));
        let mut qemus = BTreeMap::new();
        for pid in pids {
            let looks = self.others.get(&pid).copied().unwrap_or(0);
            if looks >= LOOKS {
                continue;
            }
            match start_of(pid).filter(|_| has_qemu_name(pid)) {
                Some(start_ticks) => {
                    self.others.remove(&pid);
                    qemus.insert((pid, start_ticks), open_files(pid));
                }
                None => {
                    self.others.insert(pid, looks + 1);
                }
            }
        }
        let have_changed = qemus != self.qemus;
        self.qemus = qemus;
        have_changed
    }
}

/// A number for the files that a process has open; sockets and the like are left out.
fn open_files(pid: u32) -> u64 {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"));
    let entries = entries.into_iter().flatten().flatten();
    let links = entries
        .take(MAX_DESCRIPTORS)
        .filter_map(|entry| fs::read_link(entry.path()).ok())
        .filter(|link| link.is_absolute());
    // In any order: QEMU may reopen a file under another number.
    links
        .map(|link| {
            let mut hasher = DefaultHasher::new();
            link.as_os_str().as_bytes().hash(&mut hasher);
            hasher.finish()
        })
        .fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_opened_is_noticed() {
        let pid = std::process::id();
        let before = open_files(pid);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert_ne!(open_files(pid), before);
        drop(file);
        assert_eq!(open_files(pid), before);
    }
}

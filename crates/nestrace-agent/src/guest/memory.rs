//! The guest's memory, from procfs.

use std::fs;

use nestrace_trace::manifest::GuestMemory;
use nix::unistd::{SysconfVar, sysconf};

/// What loading all probes takes at its peak, with room to spare: 66 to 75 MiB were measured on 6.1 and 48 on 6.12, with two
/// processors. These are the kernel's types as the agent reads them, rings, and what each verifier holds.
const LOADING_BYTES: u64 = 128 << 20;

/// Whether the probes can be loaded without taking memory from the guest's own programs.
///
/// # Errors
/// Why not, in words.
pub fn has_room_for_probes() -> Result<(), String> {
    room_for_probes(now().available_bytes)
}

fn room_for_probes(available_bytes: u64) -> Result<(), String> {
    // An old kernel does not say.
    if available_bytes == 0 || available_bytes >= LOADING_BYTES {
        return Ok(());
    }
    Err(format!(
        "loading the probes takes up to {} MiB of memory, and {} MiB are available",
        LOADING_BYTES >> 20,
        available_bytes >> 20
    ))
}

/// What the kernel says now; 0 for what it does not say.
pub(super) fn now() -> GuestMemory {
    let text = |file: &str| fs::read_to_string(file).unwrap_or_default();
    let page = sysconf(SysconfVar::PAGE_SIZE).ok().flatten();
    of(
        &text("/proc/meminfo"),
        &text("/proc/vmstat"),
        page.map_or(0, i64::unsigned_abs),
    )
}

fn of(meminfo: &str, vmstat: &str, page_bytes: u64) -> GuestMemory {
    GuestMemory {
        total_bytes: number(meminfo, "MemTotal:").saturating_mul(1024),
        available_bytes: number(meminfo, "MemAvailable:").saturating_mul(1024),
        dirty_limit_bytes: number(vmstat, "nr_dirty_threshold").saturating_mul(page_bytes),
        dirty_background_bytes: number(vmstat, "nr_dirty_background_threshold")
            .saturating_mul(page_bytes),
    }
}

/// The number behind a word at the begin of a line.
fn number(text: &str, word: &str) -> u64 {
    let lines = text.lines().map(str::split_ascii_whitespace);
    let mut found = lines.filter_map(|mut words| (words.next()? == word).then(|| words.next())?);
    found
        .next()
        .and_then(|number| number.parse().ok())
        .unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_says_is_in_bytes() {
        let meminfo =
            "MemTotal:         755004 kB\nMemFree:          1 kB\nMemAvailable:     600000 kB\n";
        let vmstat = "nr_dirty 7\nnr_dirty_threshold 100\nnr_dirty_background_threshold 50\n";
        let expected = GuestMemory {
            total_bytes: 755_004 << 10,
            available_bytes: 600_000 << 10,
            dirty_limit_bytes: 100 << 12,
            dirty_background_bytes: 50 << 12,
        };
        assert_eq!(of(meminfo, vmstat, 4096), expected);
        assert_eq!(of("", "nr_dirty_threshold", 4096), GuestMemory::default());
    }

    #[test]
    fn probes_are_loaded_where_there_is_room() {
        assert_eq!(room_for_probes(LOADING_BYTES), Ok(()));
        assert_eq!(room_for_probes(0), Ok(()), "it is not known");
        let reason = room_for_probes(48 << 20).unwrap_err();
        assert!(reason.ends_with("and 48 MiB are available"), "{reason}");
    }

    #[test]
    fn this_machine_has_memory() {
        let now = now();
        assert!(now.total_bytes > now.available_bytes, "{now:?}");
        assert!(
            now.dirty_limit_bytes > now.dirty_background_bytes,
            "{now:?}"
        );
    }
}

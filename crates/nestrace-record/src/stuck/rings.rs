//! What a process' io_uring instances have in flight, from their `fdinfo`.
//!
//! The kernel counts what it took from the submission queue (`CachedSqHead`) and what it completed (`CachedCqTail`, and the
//! completions that found no room). The difference is in flight, as each of QEMU's submissions has one completion; waits for
//! descriptors (`PollList`) are no I/O and are left out. Kernels name these fields so since 5.17; older ones show less, and
//! nothing is said then.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::fs;

use nestrace_probes::proc_file;
use nestrace_stuck::facts::RingFacts;

use crate::topology::open_files;

/// io_uring instances of one process that are looked at; QEMU has one for each thread that serves disks.
const MAX_RINGS: usize = 64;

/// An instance at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ring {
    /// The descriptor.
    pub fd: u32,
    /// Submissions that the kernel took, modulo 2³².
    pub submitted: u32,
    /// Completions, modulo 2³².
    pub completed: u32,
    /// Waits for descriptors.
    pub polls: u32,
}

/// The instances of a process.
#[must_use]
pub fn all(pid: u32) -> Vec<Ring> {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return Vec::new();
    };
    let fds = entries.flatten().take(proc_file::MAX_DESCRIPTORS);
    let is_ring = |entry: &fs::DirEntry| {
        fs::read_link(entry.path()).is_ok_and(|link| link.as_os_str() == open_files::IO_URING)
    };
    fds.filter(is_ring)
        .take(MAX_RINGS)
        .filter_map(|entry| {
            let fd: u32 = entry.file_name().to_str()?.parse().ok()?;
            let info = proc_file::read(
                format!("/proc/{pid}/fdinfo/{fd}"),
                open_files::MAX_RING_FDINFO,
            )
            .ok()?;
            parse(fd, &info.text())
        })
        .collect()
}

/// An instance's `fdinfo`.
#[must_use]
pub fn parse(fd: u32, text: &str) -> Option<Ring> {
    let field = |name: &str| -> Option<u32> {
        let value = text.lines().find_map(|line| line.strip_prefix(name))?;
        value.trim().parse().ok()
    };
    let list = |name| open_files::entries_of(text, name);
    Some(Ring {
        fd,
        submitted: field("CachedSqHead:")?,
        completed: field("CachedCqTail:")?
            .wrapping_add(u32::try_from(list("CqOverflowList:")).unwrap_or(0)),
        polls: u32::try_from(list("PollList:")).unwrap_or(0),
    })
}

impl Ring {
    /// Requests in flight; 0 where the counts cannot be those of single completions.
    const fn in_flight(self) -> u64 {
        let n = self.submitted.wrapping_sub(self.completed);
        // A submission with several completions makes the difference negative.
        if n > u32::MAX / 2 {
            return 0;
        }
        (n as u64).saturating_sub(self.polls as u64)
    }
}

/// Instances that both samples have.
#[must_use]
pub fn facts(before: &[Ring], now: &[Ring]) -> Vec<RingFacts> {
    let of = |now: &Ring| {
        let before = before.iter().find(|before| before.fd == now.fd)?;
        Some(RingFacts {
            fd: now.fd,
            in_flight_before: before.in_flight(),
            in_flight: now.in_flight(),
            completed: u64::from(now.completed.wrapping_sub(before.completed)),
        })
    };
    now.iter().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INFO: &str = "pos:\t0\nflags:\t02000002\nSqMask:\t0x7f\nSqHead:\t38\nSqTail:\t38\nCachedSqHead:\t40\nCqMask:\t0xff\n\
        CqHead:\t30\nCqTail:\t30\nCachedCqTail:\t30\nSQEs:\t0\nCQEs:\t0\nUserFiles:\t0\nPollList:\n  op=6, task_works=0\n\
        CqOverflowList:\n  user_data=1, res=0, flags=0\n  user_data=2, res=0, flags=0\nNAPI:\tdisabled\n";

    #[test]
    fn an_instance() {
        let ring = parse(9, INFO).unwrap();
        assert_eq!((ring.submitted, ring.completed, ring.polls), (40, 32, 1));
        assert_eq!(ring.in_flight(), 7);
        assert_eq!(parse(9, "pos:\t0\nSqHead:\t3\n"), None);
    }

    #[test]
    fn counts_that_wrap() {
        let ring = |submitted, completed| Ring {
            fd: 1,
            submitted,
            completed,
            polls: 0,
        };
        assert_eq!(ring(3, u32::MAX - 1).in_flight(), 5);
        assert_eq!(ring(3, 5).in_flight(), 0);
        let facts = facts(&[ring(5, u32::MAX)], &[ring(9, 4)]);
        assert_eq!((facts[0].in_flight_before, facts[0].in_flight), (6, 5));
        assert_eq!(facts[0].completed, 5);
    }
}

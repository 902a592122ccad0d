//! What of a disk waited through the whole time between the samples.

use crate::facts::{DiskFacts, GuestFacts, RingFacts, ThreadFacts};

/// I/O that waits.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiting<'a> {
    /// Threads that are blocked in the kernel for it.
    pub(super) threads: Vec<&'a ThreadFacts>,
    /// Requests that QEMU has and that it had before, while none completed.
    pub(super) requests: Option<u64>,
    /// Requests are in flight and others complete.
    pub(super) goes_on: bool,
    /// Time since the disk's last completion, in nanoseconds.
    pub(super) idle_ns: Option<u64>,
    /// Time between the samples.
    pub(super) interval_ns: u64,
}

impl<'a> Waiting<'a> {
    /// What waits of a disk.
    pub(super) fn of_disk(interval_ns: u64, guest: &'a GuestFacts, disk: &DiskFacts) -> Self {
        let has_one_disk = guest.disks.len() == 1;
        let is_own = |thread: &&ThreadFacts| match &thread.disk {
            Some(name) => *name == disk.name,
            None => has_one_disk || is_only_waiting(guest, disk),
        };
        let threads = blocked(interval_ns, guest).filter(is_own).collect();
        let n_completed = disk.completed.map(|counts| counts.all());
        let has_some = has_some(disk);
        let requests = match n_completed {
            // A queue of several disks says nothing of one of them.
            Some(0) if has_some && !disk.is_shared_queue => disk.in_flight,
            // What QEMU does by itself, such as a block job, is in no queue of the guest's.
            Some(0) | None => rings(guest, disk, has_one_disk),
            Some(_) => None,
        };
        Self {
            threads,
            requests,
            goes_on: has_some && n_completed.is_some_and(|n| n > 0),
            idle_ns: disk.idle_ns,
            interval_ns,
        }
    }

    /// Blocked threads that no disk explains: of several disks it is not known for which they wait.
    pub(super) fn of_rest(interval_ns: u64, guest: &'a GuestFacts, explained: &[u32]) -> Self {
        let is_left = |thread: &&ThreadFacts| !explained.contains(&thread.tid);
        Self {
            threads: blocked(interval_ns, guest).filter(is_left).collect(),
            interval_ns,
            ..Self::default()
        }
    }

    /// Whether anything waits while nothing completes.
    pub(super) fn is_stuck(&self) -> bool {
        self.requests.is_some() || (!self.threads.is_empty() && !self.goes_on)
    }

    /// The thread that waits longest.
    pub(super) fn oldest(&self) -> Option<&'a ThreadFacts> {
        let mut threads = self.threads.iter();
        let first = threads.next()?;
        let oldest = threads.fold(first, |oldest, thread| {
            if thread.asleep_ns > oldest.asleep_ns {
                thread
            } else {
                oldest
            }
        });
        Some(oldest)
    }
}

/// Whether requests were in flight at both samples.
fn has_some(disk: &DiskFacts) -> bool {
    let is_some = |n: Option<u64>| n.is_some_and(|n| n > 0);
    is_some(disk.in_flight_before) && is_some(disk.in_flight)
}

/// Whether of all disks of the guest only this one has requests that wait: then threads of io_uring, which name no file, work
/// for it.
fn is_only_waiting(guest: &GuestFacts, disk: &DiskFacts) -> bool {
    let waits =
        |disk: &DiskFacts| has_some(disk) && disk.completed.is_some_and(|counts| counts.all() == 0);
    let mut others = guest.disks.iter().filter(|other| other.name != disk.name);
    waits(disk) && !others.any(waits)
}

/// Whether a thread is blocked for a disk that is not known.
pub(super) fn has_unknown(interval_ns: u64, guest: &GuestFacts) -> bool {
    blocked(interval_ns, guest).any(|thread| thread.disk.is_none())
}

/// Threads that were blocked for the whole time. A thread that slept less than that was blocked at both samples by chance.
fn blocked(interval_ns: u64, guest: &GuestFacts) -> impl Iterator<Item = &ThreadFacts> {
    let is_long = move |thread: &&ThreadFacts| {
        // The clocks of two processors differ a little.
        let least = interval_ns.saturating_sub(interval_ns / 10);
        thread.state == "D" && thread.asleep_ns.is_none_or(|ns| ns >= least)
    };
    guest.threads.iter().filter(is_long)
}

/// What the io_uring instances hold, where that can only be this disk's.
fn rings(guest: &GuestFacts, disk: &DiskFacts, has_one_disk: bool) -> Option<u64> {
    let may_be_own = disk.aio.as_deref() == Some("io_uring") && has_one_disk;
    if !may_be_own {
        return None;
    }
    let is_stuck =
        |ring: &&RingFacts| ring.in_flight_before > 0 && ring.in_flight > 0 && ring.completed == 0;
    let stuck = guest.rings.iter().filter(is_stuck);
    let n = stuck.fold(0u64, |sum, ring| sum.saturating_add(ring.in_flight));
    (n > 0).then_some(n)
}

//! Which of several disks that look alike a device of the guest is: its requests tell.
//!
//! Each read and each write of a device is one request of its disk at QEMU, and lies inside D to C by the
//! clock. Where the host's recording is whole, a request that exactly one disk has therefore excludes all
//! other disks. One that several have (mirrored writes) tells nothing, and one that none has (its sizes were
//! lost on the way) neither.
//!
//! "Has not" can only be said of what has been read: a request votes once both streams lie well behind its
//! C, so that of a mirror the half that is slower has been seen too.

use std::collections::VecDeque;

use super::pending::{DiskKey, Pending};
use super::request::{GuestRequest, HostRequest, OpClass};
use super::timeline::Timeline;
use crate::model::clocks::{GuestNs, HostNs};

/// Requests that one disk alone has to have.
const VOTES: u64 = 4;
/// For each request that another disk alone has, so many have to be on the elected one: a request with a
/// wrong size from the guest is no proof.
const AGAINST_ONE: u64 = 64;
/// Of the requests, at most one in so many may be on no disk: else something else is missing.
const NOWHERE: u64 = 8;
/// Equal requests of one disk that are looked through for one vote; where more wait, nothing is learnt.
const LOOKED_THROUGH: usize = 2048;

/// The requests with known disks.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// Those that ended before this were handed over: guest's clock.
    pub guest_before_ns: GuestNs,
    /// QEMU's that ended before this were handed over: host's clock.
    pub host_before_ns: HostNs,
    /// From here on the host's recording is whole: host's clock.
    pub host_from_ns: HostNs,
}

/// What the requests of one device say.
#[derive(Clone, Debug, Default)]
pub(super) struct Election {
    /// Requests from the front of those that are held that have voted.
    asked: usize,
    voted: u64,
    nowhere: u64,
    /// Disks with the number of requests that they alone have.
    only: Vec<(u32, u64)>,
}

impl Election {
    /// The oldest of those that are held is given up.
    pub(super) fn oldest_gone(&mut self) {
        self.asked = self.asked.saturating_sub(1);
    }

    /// Asks the requests that can be asked by now.
    pub(super) fn ask(
        &mut self,
        choice: &[u32],
        held: &VecDeque<GuestRequest>,
        (pending, timeline): (&Pending, &Timeline),
        seen: Seen,
    ) {
        while let Some(request) = held.get(self.asked) {
            let bands = timeline.band(request.issued_ns);
            let bands = bands.zip(timeline.band(request.completed_ns));
            let Some((issued, completed)) = bands else {
                return;
            };
            let earliest_ns = request.issued_ns.bound_on_host(issued.hi_ns);
            let latest_ns = request.completed_ns.bound_on_host(completed.lo_ns);
            if request.completed_ns > seen.guest_before_ns
                || latest_ns > seen.host_before_ns.bound()
            {
                return;
            }
            self.asked += 1;
            let data = matches!(request.key.class, OpClass::Read | OpClass::Write);
            if data && earliest_ns >= seen.host_from_ns.bound() {
                self.vote(choice, request, pending, timeline);
            }
        }
    }

    fn vote(
        &mut self,
        choice: &[u32],
        request: &GuestRequest,
        pending: &Pending,
        timeline: &Timeline,
    ) {
        let (mut having, mut which) = (0, 0);
        for disk in choice {
            let mut alike = pending.hosts_with(DiskKey::new(*disk, request.key));
            let mut looked = alike.by_ref().take(LOOKED_THROUGH);
            if looked.any(|host: &HostRequest| timeline.admits(request, host)) {
                (having, which) = (having + 1, *disk);
            } else if alike.next().is_some() {
                return;
            }
        }
        self.voted += 1;
        match having {
            0 => self.nowhere += 1,
            1 => match self.only.iter_mut().find(|(disk, _)| *disk == which) {
                Some((_, n)) => *n += 1,
                None => self.only.push((which, 1)),
            },
            _ => {}
        }
    }

    /// The disk that the device is.
    pub(super) fn elected(&self, choice: &[u32]) -> Option<u32> {
        let possible = self.only.iter().filter(|(disk, _)| choice.contains(disk));
        let (disk, best) = *possible.max_by_key(|(_, n)| *n)?;
        let others: u64 = self.only.iter().map(|(_, n)| n).sum::<u64>() - best;
        let certain = best >= VOTES
            && others.saturating_mul(AGAINST_ONE) <= best
            && self.nowhere.saturating_mul(NOWHERE) <= self.voted;
        certain.then_some(disk)
    }
}

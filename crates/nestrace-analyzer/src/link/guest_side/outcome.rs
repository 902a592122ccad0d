//! What the pairing has decided of requests, and what it leaves open.

use super::direct::Read;
use super::disk::DiskCounts;
use super::from_qemu::QemuLinks;
use crate::link::chains::{Join, Link};
use crate::link::clock::{ClockSummary, Outcome, Paired};
use crate::model::clocks::{GuestNs, HostNs};
use crate::result::unlinked::UnlinkedReason;

/// What waits for decisions on requests.
pub(super) struct Waiting<'a> {
    pub join: &'a mut Join,
    pub disks: &'a mut [DiskCounts],
}

impl QemuLinks {
    /// Decides what can be decided, with both streams read so far.
    pub(super) fn decide(&mut self, read: Read, waiting: &mut Waiting<'_>) {
        self.link_directly(read);
        self.pairing.advance(read.guest_ns, read.host_ns);
        self.take_outcomes(waiting);
        self.decide_directly(read, waiting);
    }

    /// Both streams have ended: decides what is left.
    pub(super) fn finish(&mut self, waiting: &mut Waiting<'_>) -> ClockSummary {
        let read = Read {
            guest_ns: GuestNs::MAX,
            host_ns: HostNs::MAX,
            end: true,
        };
        self.link_directly(read);
        self.pairing.advance(read.guest_ns, read.host_ns);
        let clock = self.pairing.finish();
        self.take_outcomes(waiting);
        self.decide_directly(read, waiting);
        self.check_early_pairs(true, waiting.disks);
        clock
    }

    fn take_outcomes(&mut self, waiting: &mut Waiting<'_>) {
        while let Some(outcome) = self.pairing.next_outcome() {
            if let Some(direct) = &mut self.direct {
                direct.outcome(&outcome, &mut self.memory);
                continue;
            }
            match outcome {
                Outcome::Paired(paired) => {
                    self.check_memory(&paired, waiting.disks);
                    let link = self.served.remove(&paired.host).map(|served| Link {
                        served,
                        offset_ns: paired.offset_ns,
                        bound_ns: paired.band.bound_ns(),
                        stretched: paired.stretched,
                    });
                    waiting
                        .join
                        .decide(paired.guest, link.ok_or(UnlinkedReason::NoMatch));
                }
                Outcome::Unpaired(unpaired) => {
                    self.pages.remove(&unpaired.guest);
                    waiting
                        .join
                        .decide(unpaired.guest, Err(unpaired.reason.into()));
                }
                Outcome::Unclaimed(host) => {
                    self.unclaimed.extend(self.served.remove(&host));
                }
            }
        }
    }

    /// Goes on with links to file I/O, before the clock is asked.
    fn link_directly(&mut self, read: Read) {
        if let Some(direct) = &mut self.direct {
            direct.work(read, &mut self.pairing, &mut self.memory);
        }
    }

    /// Decides on links to file I/O, after the clock was asked.
    fn decide_directly(&mut self, read: Read, waiting: &mut Waiting<'_>) {
        let Some(direct) = &mut self.direct else {
            return;
        };
        direct.decide(read, &self.pairing, &self.memory);
        for decided in direct.decided.drain(..) {
            let disk = waiting.disks.get_mut(decided.device as usize);
            if let (Some(disk), Some(agreement)) = (disk, decided.agreement) {
                disk.chains.memory_check.count(agreement);
            }
            waiting.join.decide(decided.serial, decided.link);
        }
        self.unclaimed.append(&mut direct.unclaimed);
    }

    /// Asks the guest's memory whether a pair is right.
    fn check_memory(&mut self, paired: &Paired, disks: &mut [DiskCounts]) {
        let page = self.pages.remove(&paired.guest);
        let (Some((page, device)), Some(served)) = (page, self.served.get(&paired.host)) else {
            return;
        };
        let agreement = self.memory.check(page, served.buffer, device);
        let disk = disks.get_mut(device as usize);
        if let (Some(disk), Some(agreement)) = (disk, agreement) {
            disk.chains.memory_check.count(agreement);
        }
        self.check_early_pairs(false, disks);
    }

    /// Pairs from before the guest's memory was known.
    fn check_early_pairs(&mut self, is_end: bool, disks: &mut [DiskCounts]) {
        for (device, agreement) in self.memory.early(is_end) {
            if let Some(disk) = disks.get_mut(device as usize) {
                disk.chains.memory_check.count(agreement);
            }
        }
    }
}

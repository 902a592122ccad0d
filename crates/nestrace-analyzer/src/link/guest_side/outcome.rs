//! What the pairing has decided of requests, and what it leaves open.

use super::Session;
use super::direct::Read;
use crate::link::chains::Link;
use crate::link::clock::{Outcome, Paired};
use crate::result::unlinked::UnlinkedReason;

impl Session {
    pub(super) fn take_outcomes(&mut self) {
        while let Some(outcome) = self.pairing.next_outcome() {
            if let Some(direct) = &mut self.direct {
                direct.outcome(&outcome, &mut self.memory);
                continue;
            }
            match outcome {
                Outcome::Paired(paired) => {
                    self.check_memory(&paired);
                    let link = self.served.remove(&paired.host).map(|served| Link {
                        served,
                        offset_ns: paired.offset_ns,
                        bound_ns: paired.band.bound_ns(),
                        stretched: paired.stretched,
                    });
                    self.join
                        .decide(paired.guest, link.ok_or(UnlinkedReason::NoMatch));
                }
                Outcome::Unpaired(unpaired) => {
                    self.pages.remove(&unpaired.guest);
                    self.join
                        .decide(unpaired.guest, Err(unpaired.reason.into()));
                }
                Outcome::Unclaimed(host) => {
                    self.unclaimed.extend(self.served.remove(&host));
                }
            }
        }
    }

    /// Goes on with links to file I/O, before the clock is asked.
    pub(super) fn link_directly(&mut self, read: Read) {
        if let Some(direct) = &mut self.direct {
            direct.work(read, &mut self.pairing, &mut self.memory);
        }
    }

    /// Decides on links to file I/O, after the clock was asked.
    pub(super) fn decide_directly(&mut self, read: Read) {
        let Some(direct) = &mut self.direct else {
            return;
        };
        direct.decide(read, &self.pairing, &self.memory);
        for decided in direct.decided.drain(..) {
            let disk = self.disks.get_mut(decided.device as usize);
            if let (Some(disk), Some(agreement)) = (disk, decided.agreement) {
                disk.chains.memory_check.count(agreement);
            }
            self.join.decide(decided.serial, decided.link);
        }
        self.unclaimed.append(&mut direct.unclaimed);
    }

    /// Asks the guest's memory whether a pair is right.
    fn check_memory(&mut self, paired: &Paired) {
        let page = self.pages.remove(&paired.guest);
        let (Some((page, device)), Some(served)) = (page, self.served.get(&paired.host)) else {
            return;
        };
        let agreement = self.memory.check(page, served.buffer, device);
        let disk = self.disks.get_mut(device as usize);
        if let (Some(disk), Some(agreement)) = (disk, agreement) {
            disk.chains.memory_check.count(agreement);
        }
        self.check_early_pairs(false);
    }

    /// Pairs from before the guest's memory was known.
    pub(super) fn check_early_pairs(&mut self, is_end: bool) {
        for (device, agreement) in self.memory.early(is_end) {
            if let Some(disk) = self.disks.get_mut(device as usize) {
                disk.chains.memory_check.count(agreement);
            }
        }
    }

    /// Why what has no decision at the end has none.
    pub(super) fn reason_of_open(&self) -> UnlinkedReason {
        if self.reasons.lost_so_far || self.reasons.lost_sometime {
            UnlinkedReason::LostEvents
        } else {
            UnlinkedReason::AfterEnd
        }
    }
}

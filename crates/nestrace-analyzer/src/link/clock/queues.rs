//! Which virtqueue a guest's flushes go by.
//!
//! A hardware queue of the guest's block layer has one request for its flushes (`blk_flush_queue.flush_rq`) and sends it
//! again and again, and the driver gives each hardware queue a virtqueue of its own. So the address of that request and
//! QEMU's virtqueue are two names of one queue. They are learned from flushes that were alone in flight; from then on they
//! tell flushes of several queues apart that are in flight together.

use super::request::{GuestRequest, HostRequest};
use crate::model::pointer::PointerMap;

/// So many flushes have to show that two names are of one queue, and none may show another.
const LEARNED: u32 = 3;
/// Queues of one guest that are distinguished.
const MAX_QUEUES: usize = 1024;

/// A device and the request that one of its queues flushes with.
type Name = (u32, u64);

/// What flushes have shown.
#[derive(Clone, Copy, Debug)]
struct Shown<T> {
    is: T,
    flushes: u32,
    /// Some have shown another one.
    contradicted: bool,
}

impl<T: PartialEq> Shown<T> {
    const fn new(is: T) -> Self {
        Self {
            is,
            flushes: 0,
            contradicted: false,
        }
    }

    fn add(&mut self, is: &T) {
        self.contradicted |= self.is != *is;
        self.flushes = self.flushes.saturating_add(1);
    }

    const fn learned(&self) -> Option<&T> {
        if self.flushes >= LEARNED && !self.contradicted {
            Some(&self.is)
        } else {
            None
        }
    }
}

/// The queues of one guest, by both names.
#[derive(Debug, Default)]
pub(super) struct Queues {
    lanes: PointerMap<Name, Shown<u32>>,
    names: PointerMap<u32, Shown<Name>>,
}

impl Queues {
    /// Two requests are one, and nothing but their key and the clock says so.
    pub(super) fn learn(&mut self, guest: &GuestRequest, host: &HostRequest) {
        let Some((name, lane)) = names(guest, host) else {
            return;
        };
        let is_known = self.lanes.contains_key(&name) && self.names.contains_key(&lane);
        let has_room = self.lanes.len() < MAX_QUEUES && self.names.len() < MAX_QUEUES;
        if is_known || has_room {
            let shown = self.lanes.entry(name);
            shown.or_insert(Shown::new(lane)).add(&lane);
            let shown = self.names.entry(lane);
            shown.or_insert(Shown::new(name)).add(&name);
        }
    }

    /// Whether the two are of different queues.
    pub(super) fn rule_out(&self, guest: &GuestRequest, host: &HostRequest) -> bool {
        let Some((name, lane)) = names(guest, host) else {
            return false;
        };
        let is_one = |name: &Name, lane: &u32| {
            self.lane_of(name) == Some(lane) && self.name_of(lane) == Some(name)
        };
        let its_lane = self.lane_of(&name).filter(|its| is_one(&name, its));
        let its_name = self.name_of(&lane).filter(|its| is_one(its, &lane));
        its_lane.is_some_and(|its| *its != lane) || its_name.is_some_and(|its| *its != name)
    }

    fn lane_of(&self, name: &Name) -> Option<&u32> {
        self.lanes.get(name).and_then(Shown::learned)
    }

    fn name_of(&self, lane: &u32) -> Option<&Name> {
        self.names.get(lane).and_then(Shown::learned)
    }

    /// A request has no partner: perhaps its queue is another one by now.
    pub(super) fn unlearn(&mut self, guest: &GuestRequest) {
        let name = (guest.device, guest.flushed_with);
        if guest.flushed_with != 0
            && let Some(shown) = self.lanes.remove(&name)
        {
            self.names.remove(&shown.is);
        }
    }

    /// The clock is in doubt, and so is all that followed from it.
    pub(super) fn forget(&mut self) {
        *self = Self::default();
    }
}

fn names(guest: &GuestRequest, host: &HostRequest) -> Option<(Name, u32)> {
    let known = guest.flushed_with != 0 && host.lane != HostRequest::ANY_LANE;
    known.then_some(((guest.device, guest.flushed_with), host.lane))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::clock::{Key, OpClass};
    use crate::model::clocks::{GuestNs, HostNs};

    const KEY: Key = Key {
        class: OpClass::Flush,
        offset: 0,
        bytes: 0,
    };

    fn flushes(device: u32, flushed_with: u64, lane: u32) -> (GuestRequest, HostRequest) {
        let guest = GuestRequest {
            serial: 0,
            device,
            key: KEY,
            buffer: 0,
            may_be_alone: false,
            lane: GuestRequest::ANY_LANE,
            flushed_with,
            issued_ns: GuestNs(0),
            completed_ns: GuestNs(9),
        };
        let host = HostRequest {
            serial: 0,
            disk: 0,
            key: KEY,
            buffer: 0,
            lane,
            start_ns: HostNs(1),
            end_ns: HostNs(2),
        };
        (guest, host)
    }

    fn taught(pairs: &[(u32, u64, u32)]) -> Queues {
        let mut queues = Queues::default();
        for (device, flushed_with, lane) in pairs {
            let (guest, host) = flushes(*device, *flushed_with, *lane);
            queues.learn(&guest, &host);
        }
        queues
    }

    fn rules_out(queues: &Queues, (device, flushed_with, lane): (u32, u64, u32)) -> bool {
        let (guest, host) = flushes(device, flushed_with, lane);
        queues.rule_out(&guest, &host)
    }

    #[test]
    fn a_queue_that_is_known_by_both_names_is_no_other() {
        let queues = taught(&[(0, 0xa, 5); 3]);
        assert!(!rules_out(&queues, (0, 0xa, 5)));
        // By either name.
        assert!(rules_out(&queues, (0, 0xa, 6)));
        assert!(rules_out(&queues, (0, 0xb, 5)));
        assert!(rules_out(&queues, (1, 0xa, 5)), "of another device");
        // Of these nothing is known.
        assert!(!rules_out(&queues, (0, 0xb, 6)));
        assert!(!rules_out(&queues, (0, 0, 6)));
        assert!(!rules_out(&queues, (0, 0xa, HostRequest::ANY_LANE)));
    }

    #[test]
    fn a_few_flushes_or_such_that_contradict_each_other_teach_nothing() {
        for pairs in [
            &[(0, 0xa, 5); 2][..],
            &[(0, 0xa, 5), (0, 0xa, 5), (0, 0xa, 5), (0, 0xa, 6)],
            &[(0, 0xa, 5), (0, 0xb, 5), (0, 0xa, 5), (0, 0xa, 5)],
        ] {
            let queues = taught(pairs);
            assert!(!rules_out(&queues, (0, 0xb, 5)), "{pairs:?}");
        }
        for forget in [
            |queues: &mut Queues| queues.forget(),
            |queues: &mut Queues| queues.unlearn(&flushes(0, 0xa, 0).0),
        ] {
            let mut queues = taught(&[(0, 0xa, 5); 9]);
            forget(&mut queues);
            assert!(!rules_out(&queues, (0, 0xa, 6)));
            assert!(!rules_out(&queues, (0, 0xb, 5)));
        }
    }

    #[test]
    fn what_a_guest_makes_us_keep_is_bounded() {
        let pairs: Vec<(u32, u64, u32)> = (1..5_000).map(|n| (0, n, n as u32)).collect();
        let queues = taught(&pairs);
        assert_eq!(
            (queues.lanes.len(), queues.names.len()),
            (MAX_QUEUES, MAX_QUEUES)
        );
    }
}

//! What is said of each guest request, once nothing can change it.

use super::corridor::exchange;
use super::pairing::Pairing;
use super::pending::State;
use super::request::{Band, GuestRequest, HostRequest, Outcome, Paired, UnpairedReason};
use crate::model::clocks::{GuestNs, HostNs};

impl Pairing {
    /// Reports one guest request, and those that are decided with it.
    pub(super) fn report(&mut self, number: u64, settled_before_ns: GuestNs) {
        let Some(entry) = self.ties.pending.guests.get(number) else {
            return;
        };
        match entry.state {
            State::Done => {}
            State::Tied(host) => self.confirm(number, host),
            State::Waiting => self.last_try(number, settled_before_ns),
        }
    }

    /// Reports a pair, unless exchanges that came later forbid it.
    fn confirm(&mut self, number: u64, host_number: u64) {
        let entry = self.ties.pending.guests.get(number);
        let exchange = entry.is_some_and(|entry| entry.exchange);
        let guest = entry.map(|entry| entry.request);
        let host = self
            .ties
            .pending
            .hosts
            .get(host_number)
            .map(|entry| entry.request);
        let Some((guest, host)) = guest.zip(host) else {
            return;
        };
        self.ties.pending.drop_guest(number);
        self.ties.pending.drop_host(host_number);
        match self.ties.timeline.confirms(&guest, &host) {
            Some((at_issue, at_completion)) => {
                let paired = Paired {
                    exchange,
                    ..pair(&guest, &host, at_issue, at_completion)
                };
                self.tally.linked(&guest, &host, &paired);
                self.ties
                    .timeline
                    .reported(&guest, &host, paired.band, exchange);
                self.outcomes.push_back(Outcome::Paired(paired));
            }
            None => {
                self.tally.rejected += 1;
                self.unpaired(guest.serial, UnpairedReason::OutsideClockBound);
                self.outcomes.push_back(Outcome::Unclaimed(host.serial));
            }
        }
    }

    /// With the band from both sides in time, a request that was not certain may be.
    fn last_try(&mut self, number: u64, settled_before_ns: GuestNs) {
        let resolved = self.ties.resolve(number, settled_before_ns);
        for pair in &resolved.pairs {
            // Too late for the band of its neighbours: some have been reported.
            self.ties.accept(pair.guest, pair.host, false);
        }
        let short = self.ties.host_lost && resolved.guests.len() > resolved.hosts.len();
        let reason = if short {
            UnpairedReason::LostEvents
        } else {
            UnpairedReason::Ambiguous
        };
        for guest in resolved.guests {
            self.give_up(guest, reason);
        }
        for host in resolved.hosts {
            if let Some(entry) = self.ties.pending.hosts.get(host) {
                let serial = entry.request.serial;
                self.outcomes.push_back(Outcome::Unclaimed(serial));
                self.ties.pending.drop_host(host);
            }
        }
        let Some(entry) = self.ties.pending.guests.get(number) else {
            return;
        };
        match entry.state {
            State::Tied(host) => self.confirm(number, host),
            State::Waiting => {
                let reason = self.why_alone(number);
                let contradicts = reason == UnpairedReason::OutsideClockBound;
                let expected = !entry.request.may_be_alone;
                self.tally.rejected += u64::from(contradicts && expected);
                self.give_up(number, reason);
            }
            State::Done => {}
        }
    }

    fn give_up(&mut self, number: u64, reason: UnpairedReason) {
        if let Some(entry) = self.ties.pending.guests.get(number) {
            let serial = entry.request.serial;
            self.unpaired(serial, reason);
            match self.ties.served_until(number) {
                Some(until) => self.ties.pending.give_up_guest(number, until),
                None => self.ties.pending.drop_guest(number),
            }
        }
    }

    /// Why no host request fits.
    fn why_alone(&self, number: u64) -> UnpairedReason {
        let Some(entry) = self.ties.pending.guests.get(number) else {
            return UnpairedReason::NoMatch;
        };
        let guest = entry.request;
        let issued = self.ties.timeline.band(guest.issued_ns);
        let Some((issued, completed)) = issued.zip(self.ties.timeline.band(guest.completed_ns))
        else {
            // No offset was found that so many requests agree on.
            return UnpairedReason::OutsideClockBound;
        };
        let host_end_ns = if self.start.host_end_ns > HostNs(0) {
            self.start.host_end_ns
        } else if self.host_ns == HostNs::MAX {
            self.last_host_ns
        } else {
            HostNs::MAX
        };
        let before = guest.issued_ns.bound_on_host(issued.hi_ns);
        let after = guest.completed_ns.bound_on_host(completed.lo_ns);
        if before < self.start.host_live_ns.bound() {
            UnpairedReason::BeforeStart
        } else if after > host_end_ns.bound() {
            UnpairedReason::AfterEnd
        } else if self.ties.host_lost {
            UnpairedReason::LostEvents
        } else if self.ties.pending.alike(number).1 > 0 {
            UnpairedReason::OutsideClockBound
        } else {
            UnpairedReason::NoMatch
        }
    }
}

/// A pair with the offset that fits it best.
fn pair(guest: &GuestRequest, host: &HostRequest, at_issue: Band, at_completion: Band) -> Paired {
    let band = Band {
        lo_ns: at_issue.lo_ns.min(at_completion.lo_ns),
        hi_ns: at_issue.hi_ns.max(at_completion.hi_ns),
    };
    let (lo_ns, hi_ns) = exchange(guest, host);
    let stretched = lo_ns > hi_ns;
    let offset_ns = if stretched {
        at_issue.middle_ns().max(lo_ns)
    } else {
        at_issue.middle_ns().clamp(lo_ns, hi_ns)
    };
    Paired {
        guest: guest.serial,
        host: host.serial,
        offset_ns,
        band,
        stretched,
        exchange: false,
    }
}

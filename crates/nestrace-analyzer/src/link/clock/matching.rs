//! Matching guest requests to the host requests that they can only be.

use super::cluster::{self, Known, Resolved};
use super::partner::Partner;
use super::pending::Pending;
use super::queues::Queues;
use super::request::{GuestRequest, HostRequest};
use super::timeline::Timeline;
use crate::model::clocks::{GuestNs, HostBound};

/// With so many equal requests waiting it is looked at once whether only one fits.
const FEW: u32 = 32;

/// The requests of both sides that wait, and the clock that says which of them may be one.
#[derive(Debug)]
pub(super) struct Matching {
    pub(super) pending: Pending,
    pub(super) timeline: Timeline,
    pub(super) queues: Queues,
    /// The host's requests are not complete: what only follows from their being so is not certain.
    pub(super) host_lost: bool,
}

impl Matching {
    /// Matching one request and whoever becomes certain with it.
    pub(super) fn tie(&mut self, number: u64, before_ns: GuestNs) -> Partner {
        if let Some(host) = self.only_one(number) {
            // Nothing has narrowed the band since it said so.
            self.accept_if(number, host, |_, _, _| true);
            return Partner::Certain;
        }
        let resolved = self.resolve(number, before_ns);
        for pair in &resolved.pairs {
            self.accept(pair.guest, pair.host, pair.exchange);
        }
        if resolved.pairs.iter().any(|pair| pair.guest == number) {
            Partner::Certain
        } else if resolved.guests.contains(&number) {
            Partner::Ambiguous
        } else {
            if let Some(entry) = self.pending.guests.get(number) {
                self.queues.unlearn(&entry.request);
            }
            Partner::Miss
        }
    }

    /// The only host request that fits, if no other guest request fits that one.
    fn only_one(&self, number: u64) -> Option<u64> {
        let alike = self.pending.alike(number);
        if alike.1 == 0 || alike.0.max(alike.1) > FEW {
            return None;
        }
        let guest = &self.pending.guests.get(number)?.request;
        let hosts = self.pending.hosts_like(number);
        let window = self.timeline.window(guest);
        let mut fitting = hosts.filter(|(_, host)| {
            let admitted = match window {
                Some(window) => window.holds(host),
                None => self.timeline.admits(guest, host),
            };
            admitted && !self.queues.rule_out(guest, host)
        });
        let (number_of_host, host) = fitting.next()?;
        let fits = |other: &GuestRequest| {
            let asked = (guest, window);
            !self.timeline.rules_out(asked, other, host)
                && self.timeline.admits(other, host)
                && !self.queues.rule_out(other, host)
        };
        let mut guests = self.pending.guests_like(number);
        let alone = fitting.next().is_none()
            && !(self.host_lost && self.pending.may_be_given_up(number, host))
            && guests.all(|(other, request)| other == number || !fits(request));
        alone.then_some(number_of_host)
    }

    /// The latest time at which a host request that waits and may be this one can have started; `None` if
    /// there is none.
    pub(super) fn served_until(&self, number: u64) -> Option<HostBound> {
        let guest = &self.pending.guests.get(number)?.request;
        let completed = self.timeline.band(guest.completed_ns)?;
        let few = self.pending.alike(number).1 <= FEW;
        let fits = |(_, host): (u64, &HostRequest)| self.timeline.admits(guest, host);
        let some = !few || self.pending.hosts_like(number).any(fits);
        some.then(|| guest.completed_ns.bound_on_host(completed.lo_ns))
    }

    pub(super) fn resolve(&self, number: u64, before_ns: GuestNs) -> Resolved {
        let settled = |guest: &GuestRequest| guest.completed_ns <= before_ns;
        if self.pending.alike(number).1 == 0 {
            return Resolved::default();
        }
        cluster::resolve(
            Known {
                pending: &self.pending,
                timeline: &self.timeline,
                queues: &self.queues,
            },
            number,
            settled,
            !self.host_lost,
        )
    }

    /// Matching two; the pair narrows the band if it is an exchange and the band still lets it be: what was certain may have
    /// become impossible with the pairs before it.
    pub(super) fn accept(&mut self, guest: u64, host: u64, exchange: bool) {
        self.accept_if(guest, host, |this, guest, host| {
            exchange && this.timeline.admits(guest, host)
        });
    }

    fn accept_if(
        &mut self,
        guest: u64,
        host: u64,
        narrows: impl Fn(&Self, &GuestRequest, &HostRequest) -> bool,
    ) {
        let both = self
            .pending
            .guests
            .get(guest)
            .zip(self.pending.hosts.get(host));
        let requests = both.map(|(guest, host)| (guest.request, host.request));
        let exchange = requests.filter(|(guest, host)| narrows(self, guest, host));
        if let Some((guest, host)) = exchange {
            self.timeline.accept(&guest, &host);
            self.queues.learn(&guest, &host);
        }
        self.pending.tie(guest, host, exchange.is_some());
    }
}

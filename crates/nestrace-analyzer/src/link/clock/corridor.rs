//! The band of one piece of a clock: what all exchanges together leave possible.

use super::envelope::{Envelope, loss_ns};
use super::request::{Band, GuestRequest, HostRequest};
use crate::model::clocks::{GuestNs, HostBound};

/// `bound(t)`: the intersection over exchanges of `[lo_i, hi_i]`, widened by ρ for the time between.
///
/// Each exchange bounds from below at D (the start was not before D) and from above at C (the end was
/// not after C), each at its own time, so that long requests bound as well as short ones.
#[derive(Clone, Debug)]
pub(super) struct Corridor {
    rho_ppm: u64,
    /// Lower bounds.
    lo: Envelope,
    /// Upper bounds, negated.
    hi: Envelope,
}

/// Where on the host's clock the partner of a guest request has to lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    /// Earliest start.
    pub from_ns: HostBound,
    /// Latest end.
    pub to_ns: HostBound,
    /// Longest time from start to end.
    pub longest_ns: i64,
}

impl Window {
    /// Whether this host request lies in it.
    pub(super) fn holds(self, host: &HostRequest) -> bool {
        host.start_ns.bound() >= self.from_ns
            && host.end_ns.bound() <= self.to_ns
            && host.length_ns() <= self.longest_ns
    }

    /// Whether `host` cannot be inside `other`, from what is known of `of`, whose window this is: over the time between the
    /// two the band changes by no more than ρ allows. `false` says nothing.
    pub(super) fn rules_out(
        self,
        rho_ppm: u64,
        of: &GuestRequest,
        other: &GuestRequest,
        host: &HostRequest,
    ) -> bool {
        let hi_ns = of.issued_ns.minus_bound(self.from_ns);
        let lo_ns = of.completed_ns.minus_bound(self.to_ns);
        let hi_lost = loss_ns(rho_ppm, of.issued_ns.abs_diff(other.issued_ns));
        let lo_lost = loss_ns(rho_ppm, of.completed_ns.abs_diff(other.completed_ns));
        let (at_start, at_end) = exchange(other, host);
        at_start > hi_ns.saturating_add(hi_lost) || at_end < lo_ns.saturating_sub(lo_lost)
    }

    /// What lies in both.
    pub(super) fn and(self, other: Self) -> Self {
        Self {
            from_ns: self.from_ns.max(other.from_ns),
            to_ns: self.to_ns.min(other.to_ns),
            longest_ns: self.longest_ns.min(other.longest_ns),
        }
    }
}

/// The guest's D minus the host's start, and C minus the end.
pub(super) const fn exchange(guest: &GuestRequest, host: &HostRequest) -> (i64, i64) {
    (
        guest.issued_ns.minus(host.start_ns),
        guest.completed_ns.minus(host.end_ns),
    )
}

/// Longest host request that a guest request can hold while its clock runs on, nanoseconds: the offset at D and at C
/// may differ by what ρ allows.
pub(super) const fn longest_ns(rho_ppm: u64, guest: &GuestRequest) -> i64 {
    let length_ns = guest.completed_ns.since(guest.issued_ns);
    let lost_ns = loss_ns(rho_ppm, length_ns);
    length_ns.cast_signed().saturating_add(lost_ns)
}

impl Corridor {
    pub(super) const fn new(rho_ppm: u64) -> Self {
        Self {
            rho_ppm,
            lo: Envelope::new(rho_ppm),
            hi: Envelope::new(rho_ppm),
        }
    }

    /// Whether no exchange has been taken.
    pub(super) fn is_empty(&self) -> bool {
        self.lo.is_empty()
    }

    /// The bound at a time of the guest's clock; `None` before the first exchange.
    pub(super) fn at(&self, guest_ns: GuestNs) -> Option<Band> {
        Some(Band {
            lo_ns: self.lo.at(guest_ns.0)?,
            hi_ns: self.hi.at(guest_ns.0)?.saturating_neg(),
        })
    }

    /// Whether an exchange agrees with itself.
    pub(super) fn possible(&self, guest: &GuestRequest, host: &HostRequest) -> bool {
        host.length_ns() <= longest_ns(self.rho_ppm, guest)
    }

    /// The host requests whose exchange with this guest request agrees with all others.
    pub(super) fn window(&self, guest: &GuestRequest) -> Window {
        let hi_ns = self.hi.at(guest.issued_ns.0).map(i64::saturating_neg);
        let lo_ns = self.lo.at(guest.completed_ns.0);
        Window {
            from_ns: hi_ns.map_or(HostBound(i64::MIN), |hi_ns| {
                guest.issued_ns.bound_on_host(hi_ns)
            }),
            to_ns: lo_ns.map_or(HostBound(i64::MAX), |lo_ns| {
                guest.completed_ns.bound_on_host(lo_ns)
            }),
            longest_ns: longest_ns(self.rho_ppm, guest),
        }
    }

    /// Whether an exchange agrees with all others. Accepting only such ones keeps the band open at every
    /// time: `lo_i - rho |t_i - t_j| <= hi_j` holds for all pairs.
    pub(super) fn admits(&self, guest: &GuestRequest, host: &HostRequest) -> bool {
        self.window(guest).holds(host)
    }

    /// Takes an exchange that [`Self::admits`] admitted.
    pub(super) fn accept(&mut self, guest: &GuestRequest, host: &HostRequest) {
        let (lo_ns, hi_ns) = exchange(guest, host);
        self.lo.push(guest.issued_ns.0, lo_ns);
        self.hi.push(guest.completed_ns.0, -hi_ns);
    }

    /// Takes an interval at a time, as if an exchange had said so.
    pub(super) fn assume(&mut self, guest_ns: GuestNs, band: Band) {
        self.lo.push(guest_ns.0, band.lo_ns);
        self.hi.push(guest_ns.0, band.hi_ns.saturating_neg());
    }

    /// Drops what only times before `guest_ns` need.
    pub(super) fn forget_before(&mut self, guest_ns: GuestNs) {
        self.lo.forget_before(guest_ns.0);
        self.hi.forget_before(guest_ns.0);
    }
}

#[cfg(test)]
mod tests {
    use super::super::request::{Key, OpClass};
    use super::*;
    use crate::model::clocks::HostNs;
    use proptest::prelude::*;

    const KEY: Key = Key {
        class: OpClass::Flush,
        offset: 0,
        bytes: 0,
    };

    fn guest(issued_ns: u64, length_ns: u64) -> GuestRequest {
        GuestRequest {
            issued_ns: GuestNs(issued_ns),
            completed_ns: GuestNs(issued_ns + length_ns),
            buffer: 0,
            may_be_alone: false,
            flushed_with: 0,
            lane: GuestRequest::ANY_LANE,
            serial: 0,
            device: 0,
            key: KEY,
        }
    }

    proptest! {
        #[test]
        fn what_is_ruled_out_does_not_fit(
            taken in prop::collection::vec((0u64..2_000_000_000, -300_000i64..0, 1i64..300_000), 1..40),
            of in (0u64..2_000_000_000, 0u64..1_000_000),
            other in (0u64..2_000_000_000, 0u64..1_000_000),
            away in 0u64..1_600_000,
            length in 0u64..500_000,
            rho_ppm in prop_oneof![0u64..2_000, 0u64..400_000],
        ) {
            let mut corridor = Corridor::new(rho_ppm);
            for (at_ns, lo_ns, hi_ns) in taken {
                corridor.assume(GuestNs(at_ns), Band { lo_ns, hi_ns });
            }
            // About where the other is: whether it fits is decided by the bounds.
            let start = (other.0 + away).saturating_sub(800_000);
            let (of, other) = (guest(of.0, of.1), guest(other.0, other.1));
            let host = HostRequest {
                serial: 0,
                disk: 0,
                key: KEY,
                buffer: 0,
                lane: HostRequest::ANY_LANE,
                start_ns: HostNs(start),
                end_ns: HostNs(start + length),
            };
            if corridor.window(&of).rules_out(rho_ppm, &of, &other, &host) {
                prop_assert!(!corridor.window(&other).holds(&host));
            }
        }
    }
}

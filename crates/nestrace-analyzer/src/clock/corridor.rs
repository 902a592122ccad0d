//! The band of one piece of a clock: what all exchanges together leave possible.

use super::envelope::{Envelope, loss_ns};
use super::request::{Band, GuestRequest, HostRequest};

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

/// The guest's D minus the host's start, and C minus the end.
pub(super) const fn exchange(guest: &GuestRequest, host: &HostRequest) -> (i64, i64) {
    (
        guest.issued_ns.cast_signed() - host.start_ns.cast_signed(),
        guest.completed_ns.cast_signed() - host.end_ns.cast_signed(),
    )
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
    pub(super) fn at(&self, guest_ns: u64) -> Option<Band> {
        Some(Band {
            lo_ns: self.lo.at(guest_ns)?,
            hi_ns: self.hi.at(guest_ns)?.saturating_neg(),
        })
    }

    /// Whether an exchange agrees with itself: the offset at D and at C may differ by what ρ allows.
    pub(super) fn possible(&self, guest: &GuestRequest, host: &HostRequest) -> bool {
        let (lo_ns, hi_ns) = exchange(guest, host);
        let lost_ns = loss_ns(self.rho_ppm, guest.completed_ns - guest.issued_ns);
        lo_ns.saturating_sub(lost_ns) <= hi_ns
    }

    /// Whether an exchange agrees with all others. Accepting only such ones keeps the band open at every
    /// time: `lo_i - rho |t_i - t_j| <= hi_j` holds for all pairs.
    pub(super) fn admits(&self, guest: &GuestRequest, host: &HostRequest) -> bool {
        let (lo_ns, hi_ns) = exchange(guest, host);
        self.hi
            .at(guest.issued_ns)
            .is_none_or(|hi| lo_ns <= hi.saturating_neg())
            && self.lo.at(guest.completed_ns).is_none_or(|lo| hi_ns >= lo)
            && self.possible(guest, host)
    }

    /// Takes an exchange that [`Self::admits`] admitted.
    pub(super) fn accept(&mut self, guest: &GuestRequest, host: &HostRequest) {
        let (lo_ns, hi_ns) = exchange(guest, host);
        self.lo.push(guest.issued_ns, lo_ns);
        self.hi.push(guest.completed_ns, -hi_ns);
    }

    /// Takes an interval at a time, as if an exchange had said so.
    pub(super) fn assume(&mut self, guest_ns: u64, band: Band) {
        self.lo.push(guest_ns, band.lo_ns);
        self.hi.push(guest_ns, band.hi_ns.saturating_neg());
    }

    /// Drops what only times before `guest_ns` need.
    pub(super) fn forget_before(&mut self, guest_ns: u64) {
        self.lo.forget_before(guest_ns);
        self.hi.forget_before(guest_ns);
    }
}

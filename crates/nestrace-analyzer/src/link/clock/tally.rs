//! What the clock counts over the whole recording.

use super::corridor::exchange;
use super::request::{GuestRequest, HostRequest, Paired};
use crate::measure::histogram::Histogram;

/// Devices whose operations are distinguished.
const DEVICES: usize = 64;

/// Counts over the whole recording.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub rejected: u64,
    pub violations: u64,
    pub bounds: Histogram,
    /// Operations of each device that have had partners.
    known: Vec<u8>,
    any_known: bool,
}

impl Tally {
    fn place(request: &GuestRequest) -> (usize, u8) {
        let device = usize::try_from(request.device).unwrap_or(DEVICES);
        (device.min(DEVICES), 1 << request.key.class as u8)
    }

    /// A request of this kind has a partner.
    pub(super) fn seen(&mut self, request: &GuestRequest) {
        let (device, class) = Self::place(request);
        if self.known.len() <= device {
            self.known.resize(device + 1, 0);
        }
        self.known[device] |= class;
        self.any_known = true;
    }

    /// Whether any request has had a partner.
    pub(super) const fn any_known(&self) -> bool {
        self.any_known
    }

    /// Whether requests of this kind have partners: QEMU does not account for all of them.
    pub(super) fn expected(&self, request: &GuestRequest) -> bool {
        let (device, class) = Self::place(request);
        !self.any_known
            || self
                .known
                .get(device)
                .is_some_and(|known| known & class != 0)
    }

    pub(super) fn linked(&mut self, guest: &GuestRequest, host: &HostRequest, paired: &Paired) {
        self.bounds.record(paired.band.bound_ns());
        // Impossible by construction; counted all the same.
        let (lo_ns, hi_ns) = exchange(guest, host);
        let wrong = lo_ns > paired.band.hi_ns || hi_ns < paired.band.lo_ns;
        self.violations += u64::from(wrong);
    }
}

//! The clock as the result shows it.

use super::corridor::exchange;
use super::pairing::Pairing;
use super::request::{GuestRequest, HostRequest, Paired};
use super::trail::{Point, Trail};
use super::trails::LISTED;
use crate::measure::histogram::Histogram;
use crate::result::analysis::{Clock, ClockPiece, ErrorBound};

/// Devices whose operations are distinguished.
const DEVICES: usize = 64;

/// Counts over the whole recording.
#[derive(Debug, Default)]
pub(super) struct Tally {
    pub rejected: u64,
    violations: u64,
    bounds: Histogram,
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

impl Pairing {
    pub(super) fn result(&self) -> Clock {
        let trails: Vec<&Trail> = self.timeline.trails().collect();
        let longest = trails.iter().max_by_key(|trail| trail.duration_ns());
        let reference = longest.and_then(|trail| trail.best());
        Clock {
            guest: self.start.guest.clone(),
            stream: self.start.stream.clone(),
            method: String::from(if trails.is_empty() {
                "none"
            } else {
                "io_exchanges"
            }),
            reference_unix_ns: reference.and_then(|point| self.unix_ns(point)),
            offset_ns: reference.map(|point| point.band.middle_ns()),
            drift_ppm: longest.and_then(|trail| trail.drift_ppm()),
            error_bound_ns: ErrorBound {
                p50: self.tally.bounds.quantile(0.5),
                max: self.tally.bounds.dist().max,
            },
            pairs: self.timeline.exchanges(),
            rejected: self.tally.rejected,
            violations: self.tally.violations,
            pieces: self.timeline.n_pieces(),
            stretches: trails
                .iter()
                .take(LISTED)
                .filter_map(|trail| self.stretch(trail))
                .collect(),
        }
    }

    /// Host's wall clock at a point; `None` where its start is not known.
    fn unix_ns(&self, point: Point) -> Option<u64> {
        if self.start.host_start_unix_ns == 0 {
            return None;
        }
        let host_ns = point
            .guest_ns
            .saturating_add_signed(point.band.middle_ns().saturating_neg());
        let after = i128::from(host_ns) - i128::from(self.start.host_start_ns);
        let unix = i128::from(self.start.host_start_unix_ns) + after;
        u64::try_from(unix).ok()
    }

    fn stretch(&self, trail: &Trail) -> Option<ClockPiece> {
        let first = trail.first()?;
        let offset_ns = first.band.middle_ns();
        let after_start = |guest_ns: u64| {
            guest_ns
                .saturating_add_signed(offset_ns.saturating_neg())
                .saturating_sub(self.start.host_start_ns)
        };
        Some(ClockPiece {
            from_ns: after_start(first.guest_ns),
            to_ns: after_start(trail.last_ns()),
            offset_ns,
            drift_ppm: trail.drift_ppm(),
        })
    }
}

//! Where a piece's band was, in bounded memory: for offset and drift in the result.

use super::request::Band;
use crate::model::clocks::GuestNs;

/// Points that are kept; when they are full, every two become one and stand for twice the time.
const POINTS: usize = 512;
/// Time that a point stands for at first, nanoseconds.
const FIRST_STRIDE_NS: u64 = 1 << 20;
/// A drift is reported if the band leaves it less than this to each side.
const DRIFT_KNOWN_TO_PPM: f64 = 100.0;

/// The narrowest band of a stretch of time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    pub guest_ns: GuestNs,
    pub band: Band,
}

/// One piece's points.
#[derive(Debug, Default)]
pub(super) struct BandHistory {
    points: Vec<Point>,
    stride_ns: u64,
    last_ns: GuestNs,
}

impl BandHistory {
    pub(super) fn is_empty(&self) -> bool {
        self.points.is_empty()
    }

    /// Nothing is noted any more.
    pub(super) fn shrink(&mut self) {
        self.points.shrink_to_fit();
    }

    pub(super) fn note(&mut self, guest_ns: GuestNs, band: Band) {
        self.last_ns = self.last_ns.max(guest_ns);
        let point = Point { guest_ns, band };
        let stride_ns = self.stride_ns.max(FIRST_STRIDE_NS);
        match self.points.last_mut() {
            Some(last) if guest_ns.0 / stride_ns <= last.guest_ns.0 / stride_ns => {
                *last = narrower(*last, point);
            }
            _ => self.points.push(point),
        }
        if self.points.len() >= POINTS {
            self.halve(stride_ns * 2);
        }
    }

    fn halve(&mut self, mut stride_ns: u64) {
        while self.points.len() >= POINTS {
            self.stride_ns = stride_ns;
            let mut kept: Vec<Point> = Vec::with_capacity(POINTS);
            for point in self.points.drain(..) {
                match kept.last_mut() {
                    Some(last) if point.guest_ns.0 / stride_ns <= last.guest_ns.0 / stride_ns => {
                        *last = narrower(*last, point);
                    }
                    _ => kept.push(point),
                }
            }
            self.points = kept;
            stride_ns = stride_ns.saturating_mul(2);
        }
    }

    /// First point.
    pub(super) fn first(&self) -> Option<Point> {
        self.points.first().copied()
    }

    /// The point with the narrowest band.
    pub(super) fn best(&self) -> Option<Point> {
        self.points
            .iter()
            .copied()
            .min_by_key(|point| (point.band.bound_ns(), point.guest_ns))
    }

    /// Last time of the guest's clock.
    pub(super) const fn last_ns(&self) -> GuestNs {
        self.last_ns
    }

    /// Guest's time from first to last link.
    pub(super) fn duration_ns(&self) -> u64 {
        self.first()
            .map_or(0, |first| self.last_ns.since(first.guest_ns))
    }

    /// How much faster the guest's clock runs, parts per million: from the narrowest band of the first
    /// third to that of the last. `None` where the widths of these leave it more than ±100 ppm.
    pub(super) fn drift_ppm(&self) -> Option<f64> {
        let third = self.points.len().div_ceil(3);
        let narrowest = |points: &[Point]| {
            points
                .iter()
                .copied()
                .min_by_key(|point| point.band.bound_ns())
        };
        let a = narrowest(&self.points[..third])?;
        let b = narrowest(&self.points[self.points.len() - third..])?;
        let guest_ns = Some(b.guest_ns.since(a.guest_ns)).filter(|ns| *ns > 0)? as f64;
        let gained_ns = b.band.middle_ns().checked_sub(a.band.middle_ns())? as f64;
        let unknown_ns = (a.band.bound_ns() + b.band.bound_ns()) as f64;
        // The host's time that passed: the drift is against the host's clock.
        let host_ns = guest_ns - gained_ns;
        let known = host_ns > 0.0 && unknown_ns / host_ns * 1e6 <= DRIFT_KNOWN_TO_PPM;
        known.then(|| gained_ns / host_ns * 1e6)
    }
}

fn narrower(a: Point, b: Point) -> Point {
    if b.band.bound_ns() < a.band.bound_ns() {
        b
    } else {
        a
    }
}

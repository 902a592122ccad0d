//! The clock as the result shows it.

use super::band_history::{BandHistory, Point};
use super::ended_pieces::LISTED;
use super::start::ClockStart;
use super::tally::Tally;
use super::timeline::Timeline;
use crate::model::clocks::GuestNs;
use crate::result::analysis::{Clock, ClockMethod, ClockPiece, ErrorBound};

/// What the result says of a clock is made of these.
pub(super) struct ClockReport<'a> {
    pub start: &'a ClockStart,
    pub timeline: &'a Timeline,
    pub tally: &'a Tally,
}

impl ClockReport<'_> {
    pub(super) fn clock(&self) -> Clock {
        let histories: Vec<&BandHistory> = self.timeline.histories().collect();
        let longest = histories.iter().max_by_key(|history| history.duration_ns());
        let reference = longest.and_then(|history| history.best());
        Clock {
            guest: self.start.guest.clone(),
            stream: self.start.stream.clone(),
            method: if histories.is_empty() {
                ClockMethod::None
            } else {
                ClockMethod::IoExchanges
            },
            reference_unix_ns: reference.and_then(|point| self.unix_ns(point)),
            offset_ns: reference.map(|point| point.band.middle_ns()),
            drift_ppm: longest.and_then(|history| history.drift_ppm()),
            error_bound_ns: ErrorBound {
                p50: self.tally.bounds.quantile(0.5),
                max: self.tally.bounds.dist().max,
            },
            pairs: self.timeline.exchanges(),
            rejected: self.tally.rejected,
            violations: self.tally.violations,
            pieces: self.timeline.n_pieces(),
            stretches: histories
                .iter()
                .take(LISTED)
                .filter_map(|history| self.stretch(history))
                .collect(),
        }
    }

    /// Host's wall clock at a point; `None` where its start is not known.
    fn unix_ns(&self, point: Point) -> Option<u64> {
        if self.start.host_start_unix_ns == 0 {
            return None;
        }
        let host_ns = point.guest_ns.on_host(point.band.middle_ns());
        let after = i128::from(host_ns.0) - i128::from(self.start.host_start_ns.0);
        let unix = i128::from(self.start.host_start_unix_ns) + after;
        u64::try_from(unix).ok()
    }

    fn stretch(&self, history: &BandHistory) -> Option<ClockPiece> {
        let first = history.first()?;
        let offset_ns = first.band.middle_ns();
        let after_start =
            |guest_ns: GuestNs| guest_ns.on_host(offset_ns).since(self.start.host_start_ns);
        Some(ClockPiece {
            from_ns: after_start(first.guest_ns),
            to_ns: after_start(history.last_ns()),
            offset_ns,
            drift_ppm: history.drift_ppm(),
        })
    }
}

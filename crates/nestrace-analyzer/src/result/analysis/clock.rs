//! `clocks[]`.

use serde::Serialize;

use crate::result::word::words;

/// How a guest's clock lies to the host's, as far as the I/O itself proves it.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Clock {
    /// Guest's name.
    pub guest: String,
    /// Stream of the guest that it is the clock of.
    pub stream: String,
    /// `io_exchanges`, or `none` where nothing tells how the clocks lie.
    pub method: ClockMethod,
    /// Host's `CLOCK_REALTIME` at which `offset_ns` holds; `None` where the host's recording does not say it.
    pub reference_unix_ns: Option<u64>,
    /// Guest's `CLOCK_MONOTONIC` minus the host's at the reference: the middle of the band; `None` without any.
    pub offset_ns: Option<i64>,
    /// How much faster the guest's clock runs, parts per million, over the longest piece.
    pub drift_ppm: Option<f64>,
    /// Half the width of the band.
    pub error_bound_ns: ErrorBound,
    /// Exchanges that the band was made from.
    pub pairs: u64,
    /// Exchanges that contradicted the band and were not used.
    pub rejected: u64,
    /// Linked requests whose order on the two clocks is impossible.
    pub violations: u64,
    /// Stretches with a continuous clock: a pause or a step ends one.
    pub pieces: u64,
    /// These stretches, the first 1,000 of them.
    pub stretches: Vec<ClockPiece>,
}

words! {
    /// How a guest's clock was found.
    #[derive(Default)]
    #[non_exhaustive]
    pub enum ClockMethod {
        /// From the order of the I/O on both sides.
        IoExchanges = "io_exchanges",
        /// It was not found.
        #[default]
        None = "none",
    }
}

/// Half the width of a clock's band, over the linked requests; `None` without any.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ErrorBound {
    /// Median.
    pub p50: Option<u64>,
    /// Largest.
    pub max: Option<u64>,
}

/// A stretch of a clock.
#[derive(Clone, Copy, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ClockPiece {
    /// From this time after the start of the recording.
    pub from_ns: u64,
    /// To this time.
    pub to_ns: u64,
    /// Middle of the band at `from_ns`.
    pub offset_ns: i64,
    /// Drift within the piece; `null` where it is too short to tell.
    pub drift_ppm: Option<f64>,
}

//! Why a flight recorder wrote what it had kept.

use serde::{Deserialize, Serialize};

use super::Loss;

/// Why a flight recorder wrote this recording, and when. The recording begins before that moment:
/// [`Manifest::start_mono_ns`](super::Manifest::start_mono_ns) is when the oldest event came that was kept.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct Flight {
    /// What made it write.
    pub cause: FlightCause,
    /// The host's `CLOCK_MONOTONIC` at that moment, nanoseconds.
    pub mono_ns: u64,
    /// How long before that moment it keeps events, nanoseconds. Where its memory was full, the recording begins later.
    pub before_ns: u64,
    /// How long after that moment it was to record, nanoseconds.
    pub after_ns: u64,
    /// The condition as the recorder understood it, if it had one.
    pub expression: Option<String>,
    /// The comparisons of the condition at that moment, from left to right.
    pub readings: Vec<FlightReading>,
    /// What had been lost before the recording begins: `Loss` events count from the recorder's start.
    pub lost_before: Vec<Loss>,
}

/// What made a flight recorder write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FlightCause {
    /// The condition held.
    #[default]
    Condition,
    /// Somebody sent the signal SIGUSR1.
    Signal,
    /// The file of `--until-file` appeared.
    File,
    /// Something that a newer release added.
    #[serde(other)]
    Other,
}

/// One comparison of a flight recorder's condition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(not(feature = "literals"), non_exhaustive)]
pub struct FlightReading {
    /// `p50`, `p99`, `max`, `mean`, `count`, `rate` or `oldest`.
    pub statistic: String,
    /// `read`, `write`, `flush`, `discard` or `any`.
    pub op: String,
    /// `guest`, `qemu`, `file_io`, `host_queue` or `device`.
    pub layer: String,
    /// `>`, `>=`, `<` or `<=`.
    pub relation: String,
    /// The limit: nanoseconds, of `count` requests, of `rate` requests a second.
    pub limit: f64,
    /// The value, in the same unit; `None` where there was no request.
    pub value: Option<f64>,
    /// The window in nanoseconds; 0: that moment.
    pub window_ns: u64,
    /// Whether it held.
    pub holds: bool,
}

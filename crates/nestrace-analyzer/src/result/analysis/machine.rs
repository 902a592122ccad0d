//! The block layer of one machine as a whole, as btt looks at it.

use super::block::{Active, ActivePeriods, FirstSeeks, Way};
use super::device::Device;
use crate::result::loss_counts::LossCounts;

/// The block layer of one machine.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BlockAnalysis {
    /// The first event of I/O: times in [`Active`] count from it.
    pub start_ns: u64,
    /// In the order in which they appeared.
    pub devices: Vec<BlockDevice>,
    /// By name.
    pub processes: Vec<BlockProcess>,
    /// Devices that have requests, taken together.
    pub all: Way,
    /// Devices without requests (dm, md), taken together.
    pub all_stacked: Way,
    /// Time in which any device had work.
    pub active: ActivePeriods,
    /// When anything was queued and completed.
    pub activity: Active,
    /// What the stream itself says was dropped.
    pub losses: LossCounts,
}

/// A device in a [`BlockAnalysis`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BlockDevice {
    /// Major and minor number.
    pub number: (u32, u32),
    /// It has no requests (dm, md).
    pub stacked: bool,
    /// Everything that `devices[]` has; `figures`, `stats.histograms` and sizes at Q and D only if they were asked for
    /// ([`BlockOptions::figures`](crate::analyzers::block_analyzer::BlockOptions::figures)).
    pub device: Device,
    /// Its first I/O as a seek from sector 0, which btt counts.
    pub first_seek: FirstSeeks,
    /// When something was queued and completed.
    pub activity: Active,
}

/// A process in a [`BlockAnalysis`].
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct BlockProcess {
    /// Its name up to a slash.
    pub name: String,
    /// On devices that have requests.
    pub way: Way,
    /// On devices without (dm, md).
    pub stacked: Way,
    /// When it queued, and when something was completed while it ran.
    pub activity: Active,
}

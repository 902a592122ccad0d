//! What a recording has come to, while it runs and at its end.

use std::path::PathBuf;
use std::time::Duration;

use nestrace_trace::manifest::{Loss, Notice};

/// Counters for the live line on a terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Events written or waiting to be.
    pub events: u64,
    /// Requests completed by the devices.
    pub ios: u64,
    /// Events dropped for want of room.
    pub lost: u64,
    /// Bytes of the streams on disk, of a flight recorder those in memory.
    pub bytes: u64,
    /// Events from inside the guests.
    pub guest_events: u64,
    /// Agents that are live.
    pub agents: usize,
}

/// What a recording came to.
#[derive(Clone, Debug)]
pub struct Summary {
    /// The bundle; of a flight recorder, the last one.
    pub path: PathBuf,
    /// The bundles of a flight recorder; `None` of any other recording.
    pub flown: Option<Vec<PathBuf>>,
    /// Why a flight recorder could not write a bundle that it had to.
    pub failed: Option<String>,
    /// Totals.
    pub counters: Counters,
    /// From the first event wanted to the last.
    pub duration: Duration,
    /// As in the manifest.
    pub end_reason: String,
    /// As in the manifest.
    pub notices: Vec<Notice>,
    /// As in the manifest: what was lost, requests too long to follow too.
    pub losses: Vec<Loss>,
}

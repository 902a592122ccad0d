//! What plots are drawn from, beside the numbers: curves and series of few points, whatever the
//! recording's length. Not part of the JSON.

use crate::result::cdf::Cdf;
use crate::result::dist::Dist;
use crate::result::series::Series;
use crate::result::sums::{DepthSums, DeviceSums};

/// Curves and series of one device.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct DeviceFigures {
    /// Where the times of a guest's device lie in the recording: an agent begins later than the recorder,
    /// and its clock stands still in a pause. Empty for devices of the host.
    pub timeline: Vec<TimePiece>,
    /// Q to C of reads, nanoseconds.
    pub q2c_read: Cdf,
    /// Q to C of writes, nanoseconds.
    pub q2c_write: Cdf,
    /// Q to the end of writes, nanoseconds: as Q2C, with the flush after the data where there was one. It is
    /// what the submitter waited for, and what chains last.
    pub to_end_write: Cdf,
    /// The same as a distribution.
    pub to_end_write_ns: Dist,
    /// Writes whose end came later than that of their data.
    pub flushed_after: u64,
    /// D to C of reads, nanoseconds.
    pub d2c_read: Cdf,
    /// D to C of writes, nanoseconds.
    pub d2c_write: Cdf,
    /// Q to D of data bios, nanoseconds.
    pub q2d: Cdf,
    /// Sectors of data bios at Q.
    pub queued_sectors: Cdf,
    /// Sectors of data requests at D.
    pub issued_sectors: Cdf,
    /// Sectors from each data request at D to the next one; 0 where they touch.
    pub seek_sectors: Cdf,
    /// First and last sector (exclusive) that a data request touched.
    pub touched: Option<(u64, u64)>,
    /// A sample of the data requests at D, in the order of time.
    pub addresses: Vec<Address>,
    /// Of how many data requests [`Self::addresses`] is a sample.
    pub addresses_of: u64,
    /// Latency by time.
    pub latency: Vec<LatencySlot>,
    /// Requests at the device by time.
    pub depth: Vec<DepthSlot>,
    /// Length of each of [`Self::latency`], nanoseconds.
    pub latency_step_ns: u64,
    /// Sums by time, for comparisons.
    pub series: Series<DeviceSums>,
    /// The same of the requests at the device.
    pub depth_series: Series<DepthSums>,
}

/// A stretch in which a device's times and the recording's go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TimePiece {
    /// From this time of the device on; of the first piece, before it too.
    pub from_ns: u64,
    /// What is to be added for the time after the start of the recording.
    pub ahead_ns: i64,
}

impl DeviceFigures {
    /// A time of the device ([`Address::at_ns`], `from_ns`, …) after the start of the recording, seconds.
    #[must_use]
    pub fn recording_s(&self, device_ns: u64) -> f64 {
        self.recording_ns(device_ns) as f64 / 1e9
    }

    /// The same in nanoseconds.
    pub(crate) fn recording_ns(&self, device_ns: u64) -> u64 {
        let place = self
            .timeline
            .partition_point(|piece| piece.from_ns <= device_ns);
        let piece = self.timeline.get(place.saturating_sub(1));
        let ahead_ns = piece.map_or(0, |piece| piece.ahead_ns);
        device_ns.saturating_add_signed(ahead_ns)
    }
}

/// Where one request went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Address {
    /// After the start of the recording, on the device's own clock.
    pub at_ns: u64,
    /// First sector.
    pub sector: u64,
    /// A write or a discard.
    pub is_write: bool,
}

/// Q to C (D to C in a light recording) of what ended in a stretch of time; percentiles within 3 %.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LatencySlot {
    /// Its beginning after the start of the recording.
    pub from_ns: u64,
    /// Data I/Os that ended.
    pub n: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
}

/// Requests between D and C in a stretch of time. Between two of them nothing changes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct DepthSlot {
    /// Its first D or C after the start of the recording.
    pub from_ns: u64,
    /// Its last D or C.
    pub until_ns: u64,
    /// Mean in between.
    pub mean: f64,
    /// Most at once.
    pub max: u64,
    /// From its end to the beginning of the next.
    pub then: u64,
}

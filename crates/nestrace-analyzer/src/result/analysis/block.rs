//! `devices[].stats`: what btt and vscsiStats say of a device, and the block layer of one machine as a
//! whole ([`BlockAnalysis`]).

use serde::Serialize;

use super::parts::Parts;
use crate::result::dist::Dist;

/// What is said of a device beyond its latencies.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Stats {
    /// Sizes in sectors of 512 bytes.
    pub request_sectors: Sizes,
    /// Bios and pieces of bios for one request: (Q + X) / D. `None` without a request.
    pub merge_ratio: Option<f64>,
    /// Plugging.
    pub plug: Plug,
    /// What waited at each Q.
    pub at_queue: AtQueue,
    /// When requests with data were at the device.
    pub active: ActivePeriods,
    /// Q to D of each bio.
    pub q2d: Q2d,
    /// What Q2C is made of.
    pub path_ns: Path,
    /// By the process that queued.
    pub processes: Vec<Process>,
    /// Histograms as `vscsiStats` has them.
    pub histograms: Histograms,
}

/// Summed times of bios that were queued, issued and completed here, each along the way of its last piece:
/// the parts add up to Q2C whatever was split. (`latency_ns.q2g` and `g2i` have a sample for each piece.)
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Path {
    /// Queued to request allocated.
    pub q2g: u64,
    /// Allocated to inserted.
    pub g2i: u64,
    /// Allocated to issued, where nothing was inserted.
    pub g2d: u64,
    /// Inserted to issued.
    pub i2d: u64,
    /// Queued to merged.
    pub q2m: u64,
    /// Merged to issued.
    pub m2d: u64,
    /// Queued to issued, where the event between was not recorded.
    pub q2d: u64,
    /// Issued to completed.
    pub d2c: u64,
    /// All of it.
    pub q2c: u64,
}

/// Sizes of I/O in sectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Sizes {
    /// Bios with data at Q.
    pub queued: Dist,
    /// Requests with data at D; one that was put back counts again.
    pub issued: Dist,
    /// Completions with data: a request that completes in parts has several.
    pub completed: Dist,
}

/// Plugging of a queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Plug {
    /// U that ended a plug; one that the recording's end cut off counts.
    pub unplugs: u64,
    /// UT that ended a plug.
    pub timer_unplugs: u64,
    /// Share of the time from the first I/O to the last in which the queue was plugged.
    pub plugged_share: Option<f64>,
    /// Requests of a U.
    pub requests_per_unplug: Option<f64>,
    /// Requests of a UT.
    pub requests_per_timer_unplug: Option<f64>,
}

/// What waited for its D when another bio was queued ("active requests at Q").
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct AtQueue {
    /// Bios with data at Q, and requests that were put back.
    pub n: u64,
    /// Bios and pieces of bios that had neither been issued nor merged.
    pub mean: Option<f64>,
    /// Most of them.
    pub max: u64,
}

/// Periods with at least one request with data between D and C.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ActivePeriods {
    /// Periods; those that touch are one.
    pub n: u64,
    /// Their sum.
    pub active_ns: u64,
    /// The rest, from the start of the recording to the last C.
    pub idle_ns: u64,
    /// `active_ns / n`.
    pub mean_active_ns: Option<f64>,
    /// `idle_ns / (n − 1)`; `None` for less than two periods.
    pub mean_idle_ns: Option<f64>,
    /// `active_ns` of both.
    pub active_share: Option<f64>,
}

/// Q to D.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Q2d {
    /// One sample a bio, to the D of its last piece.
    pub ns: Dist,
    /// Bios below each of [`Q2d::LIMITS_MS`], and the rest.
    pub below_ms: [u64; 10],
}

impl Q2d {
    /// Upper limits of all but the last of `below_ms`, milliseconds.
    pub const LIMITS_MS: [u64; 9] = [5, 10, 25, 50, 75, 100, 250, 500, 1000];
}

/// The values that occurred most often.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Modes {
    /// How often each of them.
    pub count: u64,
    /// How many there are.
    pub n: u64,
    /// The first 16 of them, ascending.
    pub values: Vec<u64>,
    /// `false` where there were more different values than are counted at once (16,384): `count` is then a
    /// lower bound.
    pub exact: bool,
}

impl Default for Modes {
    fn default() -> Self {
        Self {
            count: 0,
            n: 0,
            values: Vec::new(),
            exact: true,
        }
    }
}

/// What one process queued.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Process {
    /// Its name, up to a slash (`kworker/0:1` is `kworker`): processes of one name are one.
    pub name: String,
    /// Bios with data.
    pub queued: u64,
    /// Their bytes.
    pub bytes: u64,
    /// From its Q to its next Q.
    pub q2q: Dist,
    /// The parts of its bios' way.
    pub latency_ns: Parts,
}

/// Histograms by operation. A bin counts what is above the edge before and not above its own; the last
/// one, which has no edge, the rest.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Histograms {
    /// Upper edges.
    pub edges: Edges,
    /// Over the whole recording.
    pub all: ByOp,
    /// Length of each of `over_time`.
    pub step_ns: u64,
    /// The same by time.
    pub over_time: Vec<Slot>,
}

/// Upper edges of bins.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Edges {
    /// Bytes of a bio.
    pub length_bytes: &'static [i64],
    /// Sectors from the end of the bio before to the start of this one; 0 is sequential.
    pub seek_sectors: &'static [i64],
    /// I/Os that had not ended when this one was queued.
    pub outstanding: &'static [i64],
    /// Q to C, microseconds.
    pub latency_us: &'static [i64],
    /// From the Q before, microseconds.
    pub interarrival_us: &'static [i64],
}

impl Edges {
    /// Those of `vscsiStats`.
    pub const ALL: Self = Self {
        length_bytes: &[
            512, 1024, 2048, 4095, 4096, 8191, 8192, 16_383, 16_384, 32_768, 49_152, 65_535,
            65_536, 81_920, 131_072, 262_144, 524_288,
        ],
        seek_sectors: &[
            -500_000, -50_000, -5000, -500, -128, -64, -32, -16, -8, -6, -4, -2, -1, 0, 1, 2, 4, 6,
            8, 16, 32, 64, 128, 500, 5000, 50_000, 500_000,
        ],
        outstanding: &[1, 2, 4, 6, 8, 12, 16, 20, 24, 28, 32, 64],
        latency_us: &[1, 10, 100, 500, 1000, 5000, 15_000, 30_000, 50_000, 100_000],
        interarrival_us: &[1, 10, 100, 500, 1000, 5000, 15_000, 30_000, 50_000, 100_000],
    };
}

impl Default for Edges {
    fn default() -> Self {
        Self::ALL
    }
}

/// A stretch of time.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Slot {
    /// Its beginning after the start of the recording.
    pub from_ns: u64,
    /// Requests with data at D that do not begin where the one before ended.
    pub seeks: u64,
    /// By operation.
    #[serde(flatten)]
    pub by_op: ByOp,
}

/// By operation; `None` where there was none.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct ByOp {
    /// Reads.
    pub read: Option<OpHistograms>,
    /// Writes.
    pub write: Option<OpHistograms>,
    /// Discards.
    pub discard: Option<OpHistograms>,
    /// Flushes without data: they have neither length nor place.
    pub flush: Option<OpHistograms>,
}

/// Histograms of one operation.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct OpHistograms {
    /// Bios queued.
    pub queued: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bios that ended.
    pub ended: u64,
    /// Summed Q to C of those.
    pub q2c_ns: u64,
    /// By [`Edges::length_bytes`].
    pub length: Vec<u64>,
    /// By [`Edges::seek_sectors`], from the bio before.
    pub seek: Vec<u64>,
    /// By [`Edges::seek_sectors`], the least distance to any of the last 16 bios.
    pub seek_of_16: Vec<u64>,
    /// By [`Edges::outstanding`].
    pub outstanding: Vec<u64>,
    /// By [`Edges::latency_us`].
    pub latency: Vec<u64>,
    /// By [`Edges::interarrival_us`]; from a bio of any operation.
    pub interarrival: Vec<u64>,
}

/// The first I/O of a sequence as a seek from sector 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FirstSeek {
    /// Its first sector.
    pub distance: u64,
    /// Median of all distances, this one included.
    pub median: u64,
}

/// The first I/O of each sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FirstSeeks {
    /// At Q.
    pub q2q: Option<FirstSeek>,
    /// At D.
    pub d2d: Option<FirstSeek>,
}

/// Q to Q and the parts of the way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Way {
    /// From a Q to the next one on any device.
    pub q2q: Dist,
    /// The rest.
    pub parts: Parts,
}

/// Begin and end of stretches without a gap of 0.1 s.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Active {
    /// Q.
    pub queued: Vec<(u64, u64)>,
    /// C.
    pub completed: Vec<(u64, u64)>,
}

/// One bio, or a piece of one that was split, at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Io {
    /// `MAJOR << 20 | MINOR`.
    pub dev: u32,
    /// Q, of the whole bio.
    pub queued: Step,
    /// G; of a piece that is only a part of what was queued, its own extent.
    pub got: Option<Step>,
    /// I.
    pub inserted: Option<Step>,
    /// M or F.
    pub merged: Option<Step>,
    /// D.
    pub issued: Step,
    /// C.
    pub completed: Step,
}

/// A step of an I/O: when, and what of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Step {
    /// On the clock of the events.
    pub ts_ns: u64,
    /// First sector.
    pub sector: u64,
    /// Sectors.
    pub sectors: u64,
}

/// A row of the table as `iostat -x` has it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct IostatRow {
    /// `MAJOR << 20 | MINOR`.
    pub dev: u32,
    /// End of the interval, on the clock of the events.
    pub until_ns: u64,
    /// How long it is.
    pub lasted_ns: u64,
    /// Bios merged into requests: reads and writes.
    pub merged: [u64; 2],
    /// Requests with data completed: reads and writes.
    pub completed: [u64; 2],
    /// Sectors of those.
    pub sectors: [u64; 2],
    /// Bios with data that ended, and their summed Q to C.
    pub ended: u64,
    /// Summed Q to C.
    pub q2c_ns: u64,
    /// Sum of bios in flight × time.
    pub in_flight_ns: u128,
    /// Time with a request at the device.
    pub busy_ns: u64,
}

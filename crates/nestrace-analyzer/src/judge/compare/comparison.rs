//! The result: typed values that serialize to the JSON of `docs/json.md`, schema `nestrace-comparison/1`.

use serde::Serialize;

use crate::result::analysis::{CallFile, CallOperation, Severity, Side};
use crate::result::compared::{IoOperation, MetricLayer, Unit};

/// Name and major version of the JSON form.
pub const SCHEMA: &str = "nestrace-comparison/1";

/// What two recordings say side by side. Differences are B − A, ratios B ÷ A.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Comparison {
    /// Name and major version of this form: [`SCHEMA`].
    #[cfg_attr(feature = "schema", schemars(extend("const" = SCHEMA)))]
    pub schema: &'static str,
    /// The first recording.
    pub a: Recording,
    /// The second recording.
    pub b: Recording,
    /// How intervals are made.
    pub method: Method,
    /// Disks of guests that both have, most I/O first.
    pub disks: Vec<DiskPair>,
    /// Block devices that both have and that are not among the disks: those below disks, then the rest,
    /// most bytes first.
    pub devices: Vec<DevicePair>,
    /// Calls of the guests' programs that both have, by program, file and operation: those with the most time first, 32
    /// at most. `null` where they are not known in both; `calls_why_none` says why.
    pub calls: Option<Vec<CallPair>>,
    /// Why calls are not compared; `null` where they are.
    pub calls_why_none: Option<String>,
    /// Programs with a file and an operation that are in no pair of `calls`.
    pub calls_left: Both<u64>,
    /// What only one of them has, or what could not be matched.
    pub unmatched: Vec<Unmatched>,
    /// What is to be known before the numbers are believed.
    pub caveats: Vec<String>,
}

/// Something of A and the same of B.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Both<T> {
    /// Of the first recording.
    pub a: T,
    /// Of the second recording.
    pub b: T,
}

impl<T: Copy> Both<T> {
    /// The same of each.
    pub(super) fn map<U>(self, of: impl Fn(T) -> U) -> Both<U> {
        Both {
            a: of(self.a),
            b: of(self.b),
        }
    }
}

/// One of the recordings.
#[derive(Clone, Debug, Default, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Recording {
    /// As the caller named it.
    pub path: String,
    /// From its start to its end.
    pub duration_ns: u64,
    /// Events read, of all streams.
    pub events: u64,
    /// Events dropped.
    pub lost: u64,
    /// Whether it was not closed, or its end could not be read.
    pub truncated: bool,
    /// What is missing of it, in words; nothing where it is whole.
    #[serde(skip)]
    pub missing: Vec<String>,
    /// `full` or `light`; `null` where nothing tells it.
    pub detail: Option<String>,
    /// Why none of its values is judged; `null` where they are.
    pub distrusted: Option<String>,
    /// Guests whose own values are not judged: those of their block layer, and the segments that begin there.
    pub distrusted_guests: Vec<DistrustedGuest>,
}

/// A guest whose stream lost too much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DistrustedGuest {
    /// Its name.
    pub guest: String,
    /// Why.
    pub why: String,
}

/// How intervals are made.
#[derive(Clone, Copy, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Method {
    /// `circular_block_bootstrap`.
    pub name: &'static str,
    /// Draws of each recording.
    pub draws: usize,
    /// Part of such intervals that hold the true difference.
    pub confidence: f64,
    /// Where the random numbers begin.
    pub seed: u64,
    /// Blocks of independent stretches without which nothing is said.
    pub least_blocks: usize,
    /// Values that were judged, parts of latencies among them.
    pub judged: usize,
    /// How many of them would seem to differ by chance if nothing did.
    pub by_chance: f64,
}

/// A disk of a guest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DiskName {
    /// The guest.
    pub guest: String,
    /// The disk in QEMU; empty where it is not known.
    pub disk: String,
    /// The guest's name of the disk; `null` where nothing was recorded inside it.
    pub guest_device: Option<String>,
    /// The host's device that most of its I/O went to.
    pub host_device: Option<String>,
    /// Format of its image, and the host's file system that it lies on.
    pub image: Option<String>,
}

/// How two things were found to be the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Matched {
    /// They have one name.
    Name,
    /// There was only one left on each side.
    OnlyOne,
    /// As many on each side: they stand at the same place.
    Order,
    /// They lie below the same disks.
    Disk,
}

/// A disk in both recordings.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DiskPair {
    /// In each.
    #[serde(flatten)]
    pub names: Both<DiskName>,
    /// Why they are taken for the same.
    pub matched: Matched,
    /// Values in both.
    pub metrics: Vec<Metric>,
    /// Where the difference of latency lies, by operation.
    pub explanations: Vec<Explanation>,
    /// Findings that are in one only, or much stronger in one.
    pub findings: Vec<FindingPair>,
    /// Places in `Analysis::devices` of the guest's device.
    #[serde(skip)]
    pub guest_places: Option<Both<usize>>,
    /// Places in `Analysis::devices` of the host's device.
    #[serde(skip)]
    pub host_places: Option<Both<usize>>,
}

/// A block device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DeviceName {
    /// `host` or `guest`.
    pub side: Side,
    /// The guest, for one of its devices.
    pub guest: Option<String>,
    /// The kernel's name.
    pub name: String,
    /// `MAJ:MIN`.
    pub dev: String,
    /// Active scheduler, where known.
    pub scheduler: Option<String>,
}

/// A device in both recordings.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct DevicePair {
    /// In each.
    #[serde(flatten)]
    pub names: Both<DeviceName>,
    /// Why they are taken for the same.
    pub matched: Matched,
    /// Values in both.
    pub metrics: Vec<Metric>,
    /// Where the difference of latency lies, by operation.
    pub explanations: Vec<Explanation>,
    /// Places in `Analysis::devices`.
    #[serde(skip)]
    pub places: Both<usize>,
}

/// Calls of one operation by one program on one file, in both recordings.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CallPair {
    /// The guest's name in each.
    pub guests: Both<String>,
    /// The program.
    pub process: String,
    /// `read`, `write`, `fsync`, …
    pub op: CallOperation,
    /// The file in each: one path, or where neither has one, one inode of one mount.
    pub files: Both<CallFile>,
    /// Calls.
    pub n: Both<u64>,
    /// Those that waited for no I/O.
    pub without_io: Both<u64>,
    /// `latency_mean` and `latency_p99`.
    pub metrics: Vec<Metric>,
    /// Where the difference of the mean latency lies; `null` where one recording has no linked calls.
    pub explanation: Option<CallExplanation>,
}

/// Where the difference of the mean latency of linked calls lies.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct CallExplanation {
    /// The mean latency of the linked calls.
    pub latency: Metric,
    /// Its segments; their means add up to it.
    pub parts: Vec<Part>,
    /// The part with the largest share, where both it and the latency have changed beyond their spread.
    pub largest: Option<&'static str>,
}

/// What has no counterpart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Unmatched {
    /// Which has it.
    pub only_in: Which,
    /// What it is.
    pub kind: UnmatchedKind,
    /// Its name.
    pub name: String,
    /// Why nothing was taken for the same.
    pub reason: String,
}

/// One of the two recordings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum Which {
    /// The first.
    A,
    /// The second.
    B,
}

/// What has no counterpart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum UnmatchedKind {
    /// A guest.
    Guest,
    /// A disk of a guest.
    Disk,
    /// A block device.
    Device,
}

impl UnmatchedKind {
    /// In a sentence.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Disk => "disk",
            Self::Device => "device",
        }
    }
}

/// How B compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Verdict {
    /// B is lower, whatever the spread.
    Lower,
    /// B is higher, whatever the spread.
    Higher,
    /// Nothing that the spread allows to be said.
    NoDifference,
    /// There is too little for a statement.
    NotEnough,
    /// It cannot be judged: not kept over time, in one recording only, or events were lost.
    NotJudged,
}

impl Verdict {
    /// B is lower or higher.
    #[must_use]
    pub const fn differs(self) -> bool {
        matches!(self, Self::Lower | Self::Higher)
    }

    /// The spread was looked at.
    #[must_use]
    pub const fn is_judged(self) -> bool {
        matches!(self, Self::Lower | Self::Higher | Self::NoDifference)
    }
}

/// Limits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Interval {
    /// Of B − A.
    pub difference: [f64; 2],
    /// Of B ÷ A; `null` where A may be 0.
    pub ratio: Option<[f64; 2]>,
}

/// One value in both recordings.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Metric {
    /// Where it was measured: `guest` (the guest's block layer), `qemu`, `segment` (of linked bios or calls), `call` (of
    /// the guest's programs), `amplification`, `device`.
    pub layer: MetricLayer,
    /// `read`, `write`, `discard`, `flush`; `null` for all together, and for calls.
    pub operation: Option<IoOperation>,
    /// `q2c_mean`, `q2c_p99`, `per_second`, …
    pub name: &'static str,
    /// `ns`, `bytes`, `bytes_per_second`, `per_second`, `share`, `ratio`, `count`.
    pub unit: Unit,
    /// In A; `null` where it was not recorded or is not defined.
    pub a: Option<f64>,
    /// In B.
    pub b: Option<f64>,
    /// B − A.
    pub difference: Option<f64>,
    /// B ÷ A; `null` where A is 0.
    pub ratio: Option<f64>,
    /// Where the true difference lies; `null` where that is not known.
    pub interval: Option<Interval>,
    /// Samples.
    pub n: Both<u64>,
    /// What can be said.
    pub verdict: Verdict,
    /// Why there is no verdict.
    pub why: Option<String>,
}

/// Where the difference of a mean latency lies.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Explanation {
    /// `read`, `write`, `discard`, `flush`.
    pub operation: IoOperation,
    /// What the parts are.
    pub method: ExplainedBy,
    /// The latency that is explained.
    pub latency: Metric,
    /// Its parts; their means add up to it.
    pub parts: Vec<Part>,
    /// The part with the largest share, where both it and the latency have changed beyond their spread.
    pub largest: Option<&'static str>,
}

/// What a latency is split into.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ExplainedBy {
    /// Segments of linked bios, from the guest to the device.
    Segments,
    /// Q2D and D2C.
    QueueAndDevice,
}

/// A part of a latency.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Part {
    /// Its mean over all I/Os, those without it included.
    #[serde(flatten)]
    pub mean: Metric,
    /// Part of the latency's difference that is its own; negative where it went the other way. `null` where
    /// the latency does not differ.
    pub share_of_difference: Option<f64>,
}

/// A finding of either recording.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FindingPair {
    /// The rule.
    pub id: &'static str,
    /// What happened, in a line, in the recording in which it is stronger.
    pub title: String,
    /// What is at stake in A, 0 to 1; `null` where the rule did not fire.
    pub a: Option<f64>,
    /// The same in B.
    pub b: Option<f64>,
    /// Where it is, or is stronger.
    pub kind: FoundIn,
    /// By what is at stake in the recording in which it is stronger.
    pub severity: Severity,
    /// What the other recording lacks to judge; `null` where it was judged.
    pub unjudged: Option<&'static str>,
}

/// Where a finding is, or is stronger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "snake_case")]
pub enum FoundIn {
    /// In A only.
    OnlyA,
    /// In B only.
    OnlyB,
    /// In both, stronger in A.
    StrongerA,
    /// In both, stronger in B.
    StrongerB,
}

impl FoundIn {
    /// In one of them only.
    #[must_use]
    pub const fn is_only(self) -> bool {
        matches!(self, Self::OnlyA | Self::OnlyB)
    }
}

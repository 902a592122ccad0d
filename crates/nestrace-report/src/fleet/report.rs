//! The result: what `nestrace fleet report --format json` prints.

use serde::Serialize;

/// What `schema` says.
pub const SCHEMA: &str = "nestrace-fleet/1";
/// Rows of a list, the most important first.
pub const MAX_ROWS: usize = 50;
/// Rows of `findings`: more than there are rules and severities, so all of them; a data set can have others' rows too.
pub const MAX_FINDINGS: usize = 500;

/// What many recordings say together. A disk is a device in a guest of a host; time is what guests' requests waited.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct FleetReport {
    /// `nestrace-fleet/1`.
    pub schema: &'static str,
    /// The folder.
    pub data_set: String,
    /// Recordings with any I/O.
    pub recordings: u64,
    /// Hosts that they are of.
    pub hosts: u64,
    /// Disks of guests that were recorded from inside.
    pub disks: u64,
    /// Start of the first recording, nanoseconds since 1970; `None` if no start is known.
    pub first_unix_ns: Option<i64>,
    /// Start of the last one.
    pub last_unix_ns: Option<i64>,
    /// How long all recordings together are.
    pub duration_ns: u64,
    /// Events that were lost in all of them.
    pub lost: u64,
    /// Recordings that lost events.
    pub recordings_with_losses: u64,
    /// Files that could not be read: no figure has anything of them. The first ones.
    pub left_out: Vec<LeftOut>,
    /// How many there are.
    pub n_left_out: u64,
    /// The worst disks by the 99th percentile, by operation.
    pub worst_disks: Vec<DiskWait>,
    /// Latencies by what disks run on, the slowest first.
    pub kinds: Vec<KindWait>,
    /// Where the time of the data requests of all disks went that were followed to the host.
    pub segments: Vec<FleetSegment>,
    /// The rules that fired, those first whose advice would help most disks.
    pub findings: Vec<FleetFinding>,
    /// Hosts on which the host itself made guests wait longest.
    pub noisy_hosts: Vec<NoisyHost>,
    /// Disks that are slower than their peers, the most certain first.
    pub outliers: Vec<Outlier>,
    /// Disks and operations that were compared with their peers.
    pub compared: u64,
    /// What became slower.
    pub changes: Changes,
}

impl Default for FleetReport {
    fn default() -> Self {
        Self {
            schema: SCHEMA,
            data_set: String::new(),
            recordings: 0,
            hosts: 0,
            disks: 0,
            first_unix_ns: None,
            last_unix_ns: None,
            duration_ns: 0,
            lost: 0,
            recordings_with_losses: 0,
            left_out: Vec::new(),
            n_left_out: 0,
            worst_disks: Vec::new(),
            kinds: Vec::new(),
            segments: Vec::new(),
            findings: Vec::new(),
            noisy_hosts: Vec::new(),
            outliers: Vec::new(),
            compared: 0,
            changes: Changes::default(),
        }
    }
}

/// A file that could not be read.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct LeftOut {
    /// Its name from the data set's folder on.
    pub file: String,
    /// What is wrong with it.
    pub reason: String,
}

/// What the guest waited for a disk's requests, over all recordings.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct DiskWait {
    /// Host.
    pub host: String,
    /// Guest.
    pub guest: String,
    /// The guest's name of the disk.
    pub device: String,
    /// `read`, `write`, `discard`, `flush`.
    pub op: String,
    /// Requests.
    pub n: u64,
    /// Their summed latency.
    pub sum_ns: u64,
    /// Their mean latency.
    pub mean_ns: f64,
    /// Percentiles: the bound of a bucket, at most 6.3 % above the value.
    pub p50_ns: u64,
    /// The 90th.
    pub p90_ns: u64,
    /// The 99th.
    pub p99_ns: u64,
    /// The 99.9th.
    pub p999_ns: u64,
}

/// What disks run on. `-`: unknown.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Kind {
    /// Kernel of the host.
    pub host_kernel: String,
    /// QEMU's version.
    pub qemu_version: String,
    /// File system that the image lies on.
    pub host_fs: String,
    /// QEMU's cache mode.
    pub cache: String,
    /// `virtio-blk`, …
    pub bus: String,
}

/// What guests waited on disks of a kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct KindWait {
    /// The kind.
    #[serde(flatten)]
    pub kind: Kind,
    /// Operation.
    pub op: String,
    /// Disks.
    pub disks: u64,
    /// Requests.
    pub n: u64,
    /// Their summed latency.
    pub sum_ns: u64,
    /// Their mean latency.
    pub mean_ns: f64,
}

/// A part of the way of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FleetSegment {
    /// As in `chains[].segments` of an analysis.
    pub segment: String,
    /// Time in it.
    pub ns: u64,
    /// Part of all time.
    pub share: f64,
}

/// A rule that fired.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct FleetFinding {
    /// Rule.
    pub id: String,
    /// `high`, `medium`, `low`, `info`.
    pub severity: String,
    /// Recordings in which it fired.
    pub recordings: u64,
    /// Disks that have it.
    pub disks: u64,
    /// Part of all disks.
    pub share: f64,
    /// What it explains of a disk's latency, the mean; `None` if unknown.
    pub time_share: Option<f64>,
    /// Time that guests waited because of it, by `time_share` of each disk that was followed to the host.
    pub waited_ns: Option<f64>,
    /// What to do: the advice of one of the recordings; empty if names were left out of the data set.
    pub advice: Vec<String>,
}

/// A host.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct NoisyHost {
    /// Host.
    pub host: String,
    /// Guests' disks that were followed to it.
    pub disks: u64,
    /// Data requests of these.
    pub n: u64,
    /// Their summed latency.
    pub sum_ns: u64,
    /// Part of it that passed in the host's file system, queue and device.
    pub host_ns: u64,
    /// The same as a share.
    pub host_share: f64,
    /// Bytes of the host's devices for a byte of the guests'; `None` if either is unknown.
    pub amplification: Option<f64>,
}

/// A disk that is slower than its peers: disks of the same kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Outlier {
    /// Host.
    pub host: String,
    /// Guest.
    pub guest: String,
    /// The guest's name of the disk.
    pub device: String,
    /// Operation.
    pub op: String,
    /// What it and its peers run on.
    #[serde(flatten)]
    pub kind: Kind,
    /// Requests.
    pub n: u64,
    /// Their mean latency.
    pub mean_ns: f64,
    /// Median of the peers' mean latencies.
    pub peers_ns: f64,
    /// How many peers there are, itself among them.
    pub peers: u64,
    /// Robust standard deviations between the logarithms of both.
    pub z: f64,
    /// The part of such outliers that chance alone makes, over all that were compared (Benjamini and Hochberg's q).
    pub q: f64,
}

/// Two periods of seven days.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Changes {
    /// End of the last period, nanoseconds since 1970: the newest minute in the data set. `None` if no time is known.
    pub until_unix_ns: Option<i64>,
    /// Disks and operations that have enough requests in both.
    pub compared: u64,
    /// Median ratio of the mean latencies, last to before; `None` where nothing was compared.
    pub median_ratio: Option<f64>,
    /// Disks that became slower than the others did, the most certain first.
    pub slower: Vec<Slower>,
}

/// A disk that became slower.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Slower {
    /// Host.
    pub host: String,
    /// Guest.
    pub guest: String,
    /// The guest's name of the disk.
    pub device: String,
    /// Operation.
    pub op: String,
    /// Requests in the period before.
    pub n_before: u64,
    /// Requests in the last one.
    pub n_last: u64,
    /// Mean latency before.
    pub mean_before_ns: f64,
    /// Mean latency last.
    pub mean_last_ns: f64,
    /// Last to before.
    pub ratio: f64,
    /// Robust standard deviations of its logarithm from all disks' median.
    pub z: f64,
    /// As of outliers.
    pub q: f64,
}

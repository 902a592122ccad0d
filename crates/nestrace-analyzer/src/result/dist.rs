//! What is reported of a distribution.

use serde::{Deserialize, Serialize};

/// What is reported of a distribution. With `n` = 0 the other values are not knowable: `None`. So are the quantiles where
/// [`BlockOptions::figures`](crate::analyzers::block_analyzer::BlockOptions::figures) are left out and only sums are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Dist {
    /// Number of samples.
    pub n: u64,
    /// Sum of all samples, exact.
    pub sum: u64,
    /// Smallest sample, exact.
    pub min: Option<u64>,
    /// Mean, rounded to the nearest integer from the exact sum.
    pub mean: Option<u64>,
    /// Median (nearest rank), within 0.1 %.
    pub p50: Option<u64>,
    /// 90th percentile, within 0.1 %.
    pub p90: Option<u64>,
    /// 99th percentile, within 0.1 %.
    pub p99: Option<u64>,
    /// 99.9th percentile, within 0.1 %.
    pub p999: Option<u64>,
    /// Largest sample, exact.
    pub max: Option<u64>,
}

//! Typed values: what an analysis says, and what it is counted in.

pub mod analysis;
pub(crate) mod cdf;
pub(crate) mod compared;
pub(crate) mod dist;
pub(crate) mod latencies;
pub(crate) mod loss_counts;
pub(crate) mod read_write;
pub(crate) mod segments;
pub(crate) mod series;
pub(crate) mod side;
pub(crate) mod sums;
pub mod units;
pub(crate) mod unlinked;
pub mod verdict;
pub(crate) mod word;

//! Typed values: what an analysis says, and what it is counted in.

pub mod analysis;
pub(crate) mod loss_counts;
pub mod units;
pub(crate) mod unlinked;

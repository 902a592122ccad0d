//! What the numbers mean: findings, comparisons, the verdict.

pub mod compare;
pub(crate) mod findings;
pub mod incomplete;
pub(crate) mod verdict;

//! Histograms, series and meters: numbers of what the layers above see.

pub(crate) mod at_device;
pub(crate) mod block_stats;
pub(crate) mod depth;
pub(crate) mod device;
pub(crate) mod figures;
pub mod histogram;
pub(crate) mod over_time;
pub(crate) mod overlap;
pub(crate) mod seek;
pub(crate) mod series;
pub(crate) mod users;

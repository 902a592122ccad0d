//! Histograms, series and meters: numbers of what the layers above see.
//!
//! Times are those of the machine that is measured, whichever it is: `u64` nanoseconds of its own clock.

pub(crate) mod at_device;
pub(crate) mod block_stats;
pub(crate) mod clues;
pub(crate) mod collects;
pub(crate) mod depth;
pub(crate) mod device;
pub(crate) mod figures;
pub(crate) mod file_meter;
pub(crate) mod frequent;
pub mod histogram;
pub(crate) mod intervals;
pub(crate) mod layers_over_time;
pub(crate) mod machine;
pub(crate) mod over_time;
pub(crate) mod overlap;
pub(crate) mod parts;
pub(crate) mod seek;
pub(crate) mod series;
pub(crate) mod users;

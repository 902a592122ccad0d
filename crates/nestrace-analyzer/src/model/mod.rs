//! What the layers share: spans, identities, and maps for what is in flight.

pub(crate) mod actor;
pub(crate) mod aio_key;
pub(crate) mod call;
pub(crate) mod chain;
pub(crate) mod clocks;
pub(crate) mod data_path;
pub(crate) mod file_io_span;
pub(crate) mod ids;
pub(crate) mod operation;
pub(crate) mod owner;
pub(crate) mod places;
pub(crate) mod plausible;
pub(crate) mod pointer;
pub(crate) mod span;
pub(crate) mod spare;
pub(crate) mod stacking;
pub(crate) mod threads;

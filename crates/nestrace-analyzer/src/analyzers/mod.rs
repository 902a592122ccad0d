//! One pass over a recording or a capture, and its result.

pub(crate) mod amplification;
pub(crate) mod analyzer;
pub(crate) mod block_analyzer;
pub(crate) mod data_path;
pub(crate) mod finish;
pub(crate) mod names;
pub(crate) mod options;
pub(crate) mod recording;

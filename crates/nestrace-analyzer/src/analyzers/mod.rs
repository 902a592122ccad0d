//! One pass over a recording or a capture, and its result.

pub(crate) mod amplification;
pub(crate) mod analyzer;
pub(crate) mod block_analyzer;
mod call_listener;
mod clues;
pub(crate) mod data_path;
pub(crate) mod finish;
pub(crate) mod flight;
mod jobs;
pub(crate) mod names;
pub(crate) mod options;
mod pressure;
mod qemu_threads;
pub(crate) mod recording;

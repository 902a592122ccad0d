//! Recordings of guests that have an agent, and what their analyses must say.

pub mod chains;
pub mod counts;
pub mod pairs;
pub mod recording;

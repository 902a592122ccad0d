//! From rings to a stream of events: drain, put in order, translate.

pub mod merge;
pub mod translate;

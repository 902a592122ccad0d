//! Mapping images.
pub mod namespace;

//! Mapping images.

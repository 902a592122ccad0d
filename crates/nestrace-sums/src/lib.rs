//! What each disk and each device does now: sums that the kernel keeps, one update a request.
//!
//! `nestrace-record` reads the sums once an interval and gives a [`Snapshot`](snapshot::Snapshot). The difference of two
//! snapshots is a line of `nestrace top --batch` ([`interval`]), or rows of its table ([`rows`], [`text`]). `nestrace serve`
//! exports the last snapshot as text ([`metrics`]) or as protobuf with native histograms ([`protobuf`]). Pure: values in, values out.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

pub mod interval;
pub mod metrics;
mod native;
pub mod protobuf;
pub mod rows;
mod series;
pub mod snapshot;
pub mod text;

/// The buckets of the histograms.
pub use nestrace_abi::histogram;

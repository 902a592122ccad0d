//! The bundle format of nestrace: what a recording is, as values and as bytes.
//!
//! Sits above `nestrace-abi` (what an event means) and below everything that reads or writes a
//! recording. It takes bytes (`Read`, `Write`, `Seek`) and never opens a path or reads a clock.

pub mod event;
pub mod manifest;

pub use event::Event;
pub use manifest::Manifest;
pub use nestrace_abi::{Kind, Source, end_io, flags};

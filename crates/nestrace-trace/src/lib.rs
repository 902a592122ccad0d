//! The bundle format of nestrace: what a recording is, as values and as bytes.
//!
//! Sits above `nestrace-abi` (what an event means) and below everything that reads or writes a
//! recording. It takes bytes (`Read`, `Write`, `Seek`) and never opens a path or reads a clock.

mod batch;
pub mod bundle;
pub mod columns;
pub mod diagnostic;
pub mod event;
mod events;
pub mod index;
mod input;
mod layout;
pub mod manifest;
mod message;
pub mod order;
pub mod reader;
pub mod schema;
pub mod writer;

pub use batch::Batch;
pub use columns::Columns;
pub use diagnostic::{Diagnostic, DiagnosticKind};
pub use event::Event;
pub use events::Events;
pub use manifest::{Manifest, ManifestError};
pub use nestrace_abi::{Kind, Source, end_io, flags};
pub use order::TimeOrdered;
pub use reader::{OpenError, StreamReader};
pub use writer::{StreamWriter, WriteError, Written};

//! The bundle format of nestrace: what a recording is, as values and as bytes.
//!
//! Sits above `nestrace-abi` (what an event means) and below everything that reads or writes a
//! recording. It takes bytes (`Read`, `Write`, `Seek`) and never opens a path or reads a clock.
//! `docs/format.md` describes the bytes.
//!
//! ```
//! use nestrace_trace::{Event, Kind, StreamReader, StreamWriter, TimeOrdered};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut writer = StreamWriter::new(Vec::new(), Vec::new())?;
//! writer.push(&Event { ts_ns: 2, kind: Kind::Issue as u8, ..Event::default() })?;
//! writer.push(&Event { ts_ns: 1, kind: Kind::Queue as u8, ..Event::default() })?;
//! writer.finish()?;
//!
//! let (stream, index) = writer.into_inner();
//! let mut reader = StreamReader::new(std::io::Cursor::new(stream), Some(&index[..]))?;
//! let kinds: Vec<_> = TimeOrdered::new(reader.events()).filter_map(|event| event.kind()).collect();
//! assert_eq!(kinds, [Kind::Queue, Kind::Issue]);
//! assert!(reader.is_closed() && reader.diagnostics().is_empty());
//! # Ok(())
//! # }
//! ```
//!
//! # Constraints
//!
//! - Input is hostile: no byte of it makes a reader panic, loop, or ask for more memory than a batch
//!   needs. Arrow's own reader does panic on damaged bytes, so only its flatbuffer types are used.
//! - Damage gives data and a list of [`Diagnostic`]s. Only what is no recording at all, or one of a
//!   newer major version, is an error.
//! - One batch in memory at a time; an index is read as the stream is.

pub mod address;
mod batch;
pub mod bundle;
pub mod calendar;
pub mod columns;
pub mod device_number;
pub mod diagnostic;
pub mod event;
mod events;
pub mod image_map;
pub mod index;
mod input;
pub mod manifest;
mod message;
pub mod order;
mod printable;
pub mod reader;
pub mod redact;
pub mod repair;
pub mod ring;
pub mod salvage;
pub mod schema;
mod stored_schema;
pub mod writer;

pub use batch::Batch;
pub use columns::Columns;
pub use diagnostic::{Damage, Diagnostic, DiagnosticKind};
pub use event::Event;
pub use events::Events;
pub use image_map::ImageMap;
pub use manifest::{Manifest, ManifestError};
pub use nestrace_abi::{Kind, Source, end_io, flags};
pub use order::TimeOrdered;
pub use printable::{is_printable, printable, printable_lines, shell_word};
pub use reader::{OpenError, StreamReader};
pub use ring::{StreamCopy, StreamRing};
pub use writer::{StreamWriter, WriteError, Written};

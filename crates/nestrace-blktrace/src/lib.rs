//! Reads and writes what `blktrace` writes: one file `NAME.blktrace.N` for each processor; reads dumps of
//! `blkparse -d` as well, which are the same records in one file.
//!
//! A file is a sequence of records without a header: 48 bytes ([`Trace`]), then a payload whose length
//! the record names. Everything is in the byte order of the machine that wrote it, which the magic
//! number at the start of every record tells. Version 7 is what every kernel since 2.6.17 writes;
//! version 8 (64 bytes, Linux 6.19) is what one writes that was asked for it.
//!
//! The times are absolute: `ktime_get()`, the kernel's `CLOCK_MONOTONIC`, as BPF's clock is. `blkparse`
//! shows them less that of its first record. (Before 2.6.25 they were those of the processor's own clock,
//! and no better than that.)
//!
//! [`Reader`] reads a file, [`Capture`] all files of a capture as one stream of [`nestrace_trace::Event`]s, whose times
//! are left as they are. [`take_native`] takes records from bytes as they come out of the relay files of a running trace.
//! [`Records`] and [`Writer`] are the way back.
//!
//! Sits above `nestrace-trace`, whose events it makes. It takes bytes (`Read`, `Write`) and opens no file.
//!
//! ```
//! use nestrace_blktrace::{Action, Reader};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let capture: &[u8] = include_bytes!(concat!(
//! #     env!("CARGO_MANIFEST_DIR"), "/../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0"));
//! let mut reader = Reader::new(capture)?;
//! let issued = reader.by_ref().filter(|trace| trace.action() == Some(Action::Issue)).count();
//! assert_eq!(issued, 34);
//! assert!(reader.diagnostics().is_empty());
//! # Ok(())
//! # }
//! ```

mod action;
mod capture;
mod events;
mod plausible;
mod reader;
mod records;
mod sequence;
mod trace;
mod writer;

pub use action::{Action, Notify, category};
pub use capture::{Capture, Outline};
pub use events::{event, thread, wall_clock};
pub use reader::{OpenError, Reader};
pub use records::Records;
pub use trace::{Front, RECORD_BYTES, RECORD_BYTES_V8, Remap, Trace, Version, take_native};
pub use writer::Writer;

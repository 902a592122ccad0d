//! Reads what `blktrace` writes: one file `NAME.blktrace.N` for each processor.
//!
//! A file is a sequence of records without a header: 48 bytes ([`Trace`]), then a payload whose length
//! the record names. Everything is in the byte order of the machine that wrote it, which the magic
//! number at the start of every record tells. Only version 7, which every kernel since 2.6.17 writes,
//! is read.
//!
//! The times are the kernel's `CLOCK_MONOTONIC`; `blkparse` shows them less that of its first record.
//!
//! ```
//! use nestrace_trace::blktrace::{Action, Reader};
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
mod reader;
mod trace;

pub use action::{Action, Notify, category};
pub use reader::{OpenError, Reader};
pub use trace::{RECORD_BYTES, Remap, Trace};

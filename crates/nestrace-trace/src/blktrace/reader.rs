//! Takes records off a blktrace file, whatever happened to it.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::io::{self, Read};

use super::trace::{self, ByteOrder, RECORD_BYTES, Trace};
use crate::diagnostic::{Diagnostic, DiagnosticKind, Diagnostics};
use crate::index::read_up_to;

/// Upper 24 bits of the magic number; the lowest 8 are the version.
const MAGIC: u32 = 0x6561_7400;
/// The version that is read.
const VERSION: u32 = 7;

/// A file that is no blktrace file, or a newer one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// It does not begin with a record.
    #[error("read a blktrace file: its first bytes are not those of a record")]
    NotBlktrace,
    /// It begins with a record of another version.
    #[error("read a blktrace file: its records have version {found}, version 7 can be read")]
    Version {
        /// The version.
        found: u32,
    },
    /// The input failed.
    #[error("read a blktrace file")]
    Io(#[from] io::Error),
}

/// Yields the records of one file in the order of the file.
///
/// An empty file is valid: nothing happened on that processor. Bytes that are no record are skipped
/// up to the next magic number and noted in [`Reader::diagnostics`].
#[derive(Debug)]
pub struct Reader<R> {
    input: R,
    order: ByteOrder,
    /// What was read and not yet given out; a whole record unless the input has ended.
    window: [u8; RECORD_BYTES],
    filled: usize,
    /// Offset of the window in the file.
    offset: u64,
    ended: bool,
    diagnostics: Diagnostics,
}

impl<R: Read> Reader<R> {
    /// Reads the first record's magic number.
    ///
    /// # Errors
    /// [`OpenError`] when this is no blktrace file of version 7.
    pub fn new(input: R) -> Result<Self, OpenError> {
        let mut reader = Self {
            input,
            order: ByteOrder::Little,
            window: [0; RECORD_BYTES],
            filled: 0,
            offset: 0,
            ended: false,
            diagnostics: Diagnostics::default(),
        };
        reader.fill()?;
        if reader.filled > 0 {
            reader.order = byte_order(&reader.window)?;
        }
        Ok(reader)
    }

    /// What was wrong with the bytes read so far.
    #[must_use]
    pub fn diagnostics(&self) -> &[Diagnostic] {
        self.diagnostics.as_slice()
    }

    /// Fills the window from where it stands.
    fn fill(&mut self) -> io::Result<()> {
        let Some(room) = self.window.get_mut(self.filled..) else {
            return Ok(());
        };
        let read = read_up_to(&mut self.input, room)?;
        self.filled = self.filled.saturating_add(read);
        Ok(())
    }

    /// Moves on to the next magic number; `false` at the end of the input.
    fn find_record(&mut self) -> io::Result<bool> {
        let (start, mut skipped) = (self.offset, 0_u64);
        while self.filled == RECORD_BYTES && !self.has_magic() {
            self.window.copy_within(1.., 0);
            self.filled = self.filled.saturating_sub(1);
            self.offset = self.offset.saturating_add(1);
            skipped = skipped.saturating_add(1);
            self.fill()?;
        }
        if skipped > 0 {
            self.note(
                DiagnosticKind::BatchDamaged,
                start,
                skipped,
                "bytes that are no blktrace record",
            );
        }
        if self.filled == RECORD_BYTES {
            return Ok(true);
        }
        if self.filled > 0 {
            self.note(
                DiagnosticKind::Truncated,
                self.offset,
                self.filled as u64,
                "the file ends within a record",
            );
        }
        Ok(false)
    }

    fn has_magic(&self) -> bool {
        let magic = self
            .window
            .first_chunk()
            .map(|bytes| self.order.u32(*bytes));
        magic == Some(MAGIC | VERSION)
    }

    fn read_record(&mut self) -> io::Result<Option<Trace>> {
        if !self.find_record()? {
            return Ok(None);
        }
        let (mut trace, payload_len) = trace::parse(&self.window, self.order);
        trace.payload.resize(payload_len, 0);
        let read = read_up_to(&mut self.input, &mut trace.payload)?;
        if read < payload_len {
            let bytes = (RECORD_BYTES as u64).saturating_add(read as u64);
            self.note(
                DiagnosticKind::Truncated,
                self.offset,
                bytes,
                "the file ends within a record",
            );
            return Ok(None);
        }
        trace.split_cgroup();
        let length = (RECORD_BYTES as u64).saturating_add(payload_len as u64);
        self.offset = self.offset.saturating_add(length);
        self.filled = 0;
        self.fill()?;
        Ok(Some(trace))
    }

    fn note(&mut self, kind: DiagnosticKind, offset: u64, bytes: u64, message: &str) {
        let message = message.to_owned();
        self.diagnostics.push(Diagnostic {
            kind,
            offset,
            bytes,
            rows_lost: None,
            message,
        });
    }
}

impl<R: Read> Iterator for Reader<R> {
    type Item = Trace;

    fn next(&mut self) -> Option<Trace> {
        if self.ended {
            return None;
        }
        let trace = self.read_record().unwrap_or_else(|error| {
            let message = format!("the file cannot be read on: {error}");
            self.note(DiagnosticKind::Unreadable, self.offset, 0, &message);
            None
        });
        self.ended = trace.is_none();
        trace
    }
}

/// The byte order in which the first record's magic number reads right.
fn byte_order(record: &[u8; RECORD_BYTES]) -> Result<ByteOrder, OpenError> {
    let bytes = *record.first_chunk().unwrap_or(&[0; 4]);
    for order in [ByteOrder::Little, ByteOrder::Big] {
        let magic = order.u32(bytes);
        if magic & !0xff != MAGIC {
            continue;
        }
        return match magic & 0xff {
            VERSION => Ok(order),
            found => Err(OpenError::Version { found }),
        };
    }
    Err(OpenError::NotBlktrace)
}

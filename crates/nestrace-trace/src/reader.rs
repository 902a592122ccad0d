//! Reads a stream: batch by batch, with its index or without it, whole or damaged.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

mod open_error;

use std::io::{self, Read, Seek};

use crate::batch::{Batch, Decoder};
use crate::diagnostic::{Diagnostic, DiagnosticKind, Diagnostics};
use crate::index::{Entry, EntryKind, Header, IndexReader, Next};
use crate::input::{Input, Walked};
use crate::message::{self, Seal};
use crate::stored_schema::Layout;

pub use open_error::OpenError;

/// Reads a stream of events, one batch at a time.
///
/// Every batch that it gives has a correct checksum: the one in the index, or the one that the
/// batch carries itself. What is damaged, cut off or odd is left out and listed in
/// [`Self::diagnostics`]; it never makes the reader fail, and no input makes it panic or ask for
/// more memory than a batch needs.
pub struct StreamReader<R, I> {
    input: Input<R>,
    index: Option<IndexReader<I>>,
    /// The entry that was read from the index and not yet used.
    entry: Option<Entry>,
    decoder: Decoder,
    /// The metadata of the schema, where a checksum proved it.
    schema: Option<Vec<u8>>,
    diagnostics: Diagnostics,
    /// Stamps outside are not asked for.
    range_ns: (u64, u64),
    /// Offset of the first byte that was not looked at.
    next: u64,
    closed: bool,
    done: bool,
    /// Batches that were left out since this was last asked for.
    gap: Option<Gap>,
}

/// Batches were left out between two that were given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// The earliest and the latest stamp of their events, where the index tells.
    pub times_ns: Option<(u64, u64)>,
}

impl<R: Read + Seek, I: Read> StreamReader<R, I> {
    /// Reads the schema. `index` may be missing.
    ///
    /// # Errors
    /// If it is no stream of nestrace, or one of a newer major version, or cannot be read.
    pub fn new(stream: R, index: Option<I>) -> Result<Self, OpenError> {
        let input = Input::new(stream).map_err(|source| OpenError::Io {
            what: "stream",
            source,
        })?;
        let decoder = Decoder::new(Layout::own()).map_err(|source| OpenError::Io {
            what: "stream",
            source,
        })?;
        let mut reader = Self {
            input,
            index: None,
            entry: None,
            decoder,
            schema: None,
            diagnostics: Diagnostics::default(),
            range_ns: (0, u64::MAX),
            next: 0,
            closed: false,
            done: false,
            gap: None,
        };
        reader.open_index(index)?;
        reader.read_schema()?;
        Ok(reader)
    }

    /// Leaves out batches that lie wholly outside `from_ns..=to_ns`, where the index tells. Events
    /// outside may still come: a batch is never cut.
    #[must_use]
    pub fn within(mut self, from_ns: u64, to_ns: u64) -> Self {
        self.range_ns = (from_ns, to_ns);
        self
    }

    /// What was wrong with the input, as far as it was read.
    #[must_use]
    pub fn diagnostics(&self) -> &[Diagnostic] {
        self.diagnostics.as_slice()
    }

    /// Whether the end of the stream was reached and it had been closed by its writer.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closed
    }

    /// Reads the next batch into `batch`, whose memory is used again; `false` at the end.
    pub fn read_into(&mut self, batch: &mut Batch) -> bool {
        while !self.done {
            match self.step(batch) {
                Ok(true) => return true,
                Ok(false) => {}
                Err(error) => {
                    let message = format!("the stream cannot be read further: {error}");
                    let rest = self.input.len().saturating_sub(self.next);
                    self.report(DiagnosticKind::Unreadable, self.next, rest, None, message);
                    self.done = true;
                }
            }
        }
        false
    }

    /// What was left out since this was last asked for.
    pub(crate) fn take_gap(&mut self) -> Option<Gap> {
        self.gap.take()
    }

    fn left_out(&mut self, times_ns: Option<(u64, u64)>) {
        let known = self.gap.and_then(|gap| gap.times_ns);
        let times_ns = match (known, times_ns) {
            (Some(known), Some(now)) => Some((known.0.min(now.0), known.1.max(now.1))),
            (known, now) => known.or(now),
        };
        self.gap = Some(Gap { times_ns });
    }

    /// The bytes of the batch that was read last: its metadata (without the prefix) and its body.
    pub(crate) fn batch_bytes(&self) -> Option<(&[u8], &[u8])> {
        self.input.parts()
    }

    /// The metadata of the schema as it was written; `None` where this release's was assumed.
    pub(crate) fn schema_bytes(&self) -> Option<&[u8]> {
        self.schema.as_deref()
    }

    fn report(
        &mut self,
        kind: DiagnosticKind,
        offset: u64,
        bytes: u64,
        rows_lost: Option<u64>,
        message: impl Into<String>,
    ) {
        let message = message.into();
        self.diagnostics.push(Diagnostic {
            kind,
            offset,
            bytes,
            rows_lost,
            message,
        });
    }

    fn open_index(&mut self, index: Option<I>) -> Result<(), OpenError> {
        let Some(index) = index else {
            let message = "there is no index; batches are found by their own checksums";
            self.report(DiagnosticKind::IndexMissing, 0, 0, None, message);
            return Ok(());
        };
        let (index, header) = IndexReader::open(index).map_err(|source| OpenError::Io {
            what: "index",
            source,
        })?;
        if header == Header::Usable {
            self.index = Some(index);
        } else {
            let message = "the index has no header that this release knows; it is not used";
            self.report(DiagnosticKind::IndexDamaged, 0, 0, None, message);
        }
        Ok(())
    }

    /// The next usable entry of the index, which stays there until it is taken.
    fn peek_entry(&mut self) -> Option<Entry> {
        while self.entry.is_none() {
            match self.index.as_mut()?.next() {
                Ok(Next::Entry(entry)) if self.is_ahead(&entry) => self.entry = Some(entry),
                Ok(Next::Entry(entry)) => {
                    let message = "an index entry describes no further message of the stream";
                    self.report(DiagnosticKind::IndexDamaged, entry.offset, 0, None, message);
                }
                Ok(Next::Damaged(at)) => {
                    let message = "an index entry is damaged";
                    self.report(DiagnosticKind::IndexDamaged, at, 0, None, message);
                }
                Ok(Next::End) => self.index = None,
                Err(error) => {
                    let message = format!("the index cannot be read further: {error}");
                    self.report(DiagnosticKind::IndexDamaged, 0, 0, None, message);
                    self.index = None;
                }
            }
        }
        self.entry
    }

    fn is_ahead(&self, entry: &Entry) -> bool {
        entry.offset >= self.next
            && entry.length <= message::MAX_MESSAGE
            && entry.length >= message::PREFIX_LEN as u64
            && entry.offset.checked_add(entry.length).is_some()
    }

    /// Reads the first message, the schema. Where only its bytes are damaged, this release's own
    /// columns are assumed: a batch with another number of columns is refused later.
    fn read_schema(&mut self) -> Result<(), OpenError> {
        let io = |source| OpenError::Io {
            what: "stream",
            source,
        };
        let entry = self
            .peek_entry()
            .filter(|e| e.offset == 0 && e.kind == EntryKind::Schema);
        let indexed = entry.is_some() || self.index.is_some();
        if entry.is_some() {
            self.entry = None;
        }
        let begins = self.input.begins_a_message().map_err(io)?;
        if !begins && !indexed {
            return Err(OpenError::NotAStream {
                reason: "it does not begin like an Arrow IPC stream".to_owned(),
            });
        }
        let length = match self.input.read_message(0, self.input.len()).map_err(io)? {
            Walked::Message {
                seal: Seal::Broken, ..
            } => return self.assume_schema(entry),
            Walked::Message { length, .. } => length,
            _ => return self.assume_schema(entry),
        };
        let Some(schema) = self.input.schema() else {
            return self.assume_schema(entry);
        };
        let layout = Layout::of(schema)?;
        if !self.is_schema_proved(entry).map_err(io)? {
            return self.assume_schema(entry);
        }
        self.schema = self.input.parts().map(|(metadata, _)| metadata.to_vec());
        self.next = length;
        self.describe(&layout);
        self.decoder = Decoder::new(layout).map_err(io)?;
        Ok(())
    }

    /// Whether a checksum holds for the schema that was just read: its own, or that of its entry.
    fn is_schema_proved(&mut self, entry: Option<Entry>) -> io::Result<bool> {
        if self.input.seal() == Seal::Intact {
            return Ok(true);
        }
        match entry {
            Some(entry) if entry.length <= self.input.len() => self.input.read_checked(&entry),
            _ => Ok(false),
        }
    }

    fn describe(&mut self, layout: &Layout) {
        for name in &layout.unknown {
            let message = format!("column `{name}` is not known to this release");
            self.report(DiagnosticKind::UnknownColumn, 0, 0, None, message);
        }
        for column in layout
            .missing
            .iter()
            .filter_map(|p| crate::columns::COLUMNS.get(*p))
        {
            let message = format!("column `{}` was not recorded and reads as 0", column.name);
            self.report(DiagnosticKind::MissingColumn, 0, 0, None, message);
        }
    }

    fn assume_schema(&mut self, entry: Option<Entry>) -> Result<(), OpenError> {
        let length = entry.map_or(0, |entry| entry.length).min(self.input.len());
        self.next = length;
        let message = "the schema has no correct checksum; this release's columns are assumed";
        self.report(DiagnosticKind::SchemaDamaged, 0, length, None, message);
        Ok(())
    }

    /// Looks at the next message; `true` if it was a batch and is in `batch`.
    fn step(&mut self, batch: &mut Batch) -> io::Result<bool> {
        match self.peek_entry() {
            Some(entry) if entry.offset == self.next || self.next >= self.input.len() => {
                self.entry = None;
                self.read_indexed(entry, batch)
            }
            Some(entry) => self.walk(entry.offset.min(self.input.len()), batch),
            None => self.walk(self.input.len(), batch),
        }
    }

    /// Reads the message that an entry describes.
    fn read_indexed(&mut self, entry: Entry, batch: &mut Batch) -> io::Result<bool> {
        let rows = u64::from(entry.rows);
        let end = entry.offset.saturating_add(entry.length);
        if end > self.input.len() {
            self.cut_off(entry);
            return Ok(false);
        }
        self.next = end;
        if entry.kind == EntryKind::Batch
            && (entry.last_ts_ns < self.range_ns.0 || entry.first_ts_ns > self.range_ns.1)
        {
            return Ok(false);
        }
        if !self.input.read_checked(&entry)? {
            let message = "a batch has a wrong checksum and was left out";
            let kind = DiagnosticKind::BatchDamaged;
            self.report(kind, entry.offset, entry.length, Some(rows), message);
            if entry.kind == EntryKind::Batch {
                self.left_out(Some((entry.first_ts_ns, entry.last_ts_ns)));
            }
            return Ok(false);
        }
        match entry.kind {
            EntryKind::Batch => Ok(self.decode(entry.offset, entry.length, Some(rows), batch)),
            EntryKind::End => {
                self.close();
                Ok(false)
            }
            EntryKind::Schema | EntryKind::Other(_) => Ok(false),
        }
    }

    /// The stream ends before the end of what `entry` and all after it describe.
    fn cut_off(&mut self, entry: Entry) {
        let mut rows = u64::from(entry.rows);
        while let Some(entry) = self.peek_entry() {
            self.entry = None;
            rows = rows.saturating_add(u64::from(entry.rows));
        }
        let rest = self.input.len().saturating_sub(self.next);
        let message = "the stream is shorter than its index says";
        self.report(
            DiagnosticKind::Truncated,
            self.next,
            rest,
            Some(rows),
            message,
        );
        self.next = self.input.len();
        self.done = true;
    }

    fn close(&mut self) {
        self.closed = true;
        self.done = true;
        let rest = self.input.len().saturating_sub(self.next);
        if rest > 0 {
            let message = "bytes follow the end of the stream";
            self.report(
                DiagnosticKind::TrailingBytes,
                self.next,
                rest,
                None,
                message,
            );
        }
    }

    /// Looks for the next message between here and `limit` without an entry of the index.
    fn walk(&mut self, limit: u64, batch: &mut Batch) -> io::Result<bool> {
        let from = self.next;
        if from >= limit {
            if limit >= self.input.len() {
                self.end_without_marker();
            }
            return Ok(false);
        }
        let first = self.input.read_message(from, limit)?;
        let found = match first {
            Walked::End if from.saturating_add(message::PREFIX_LEN as u64) == self.input.len() => {
                self.next = self.input.len();
                self.close();
                return Ok(false);
            }
            Walked::Message {
                length,
                seal: Seal::Intact,
            } => Some((from, length)),
            _ => self.input.find_sealed(from.saturating_add(8), limit)?,
        };
        let at = found.map_or(limit, |(at, _)| at);
        if at > from {
            self.skipped(from, at, &first);
        }
        let Some((at, length)) = found else {
            self.next = limit;
            return Ok(false);
        };
        self.next = at.saturating_add(length);
        Ok(self.decode(at, length, None, batch))
    }

    /// Reports bytes that hold no message with a correct checksum.
    fn skipped(&mut self, from: u64, to: u64, first: &Walked) {
        let cut = matches!(first, Walked::Short) && to >= self.input.len();
        let (kind, message) = if cut {
            (DiagnosticKind::Truncated, "the stream ends within a batch")
        } else {
            (
                DiagnosticKind::BatchDamaged,
                "bytes without a whole batch were left out",
            )
        };
        self.report(kind, from, to.saturating_sub(from), None, message);
        if !cut {
            self.left_out(None);
        }
    }

    fn end_without_marker(&mut self) {
        self.done = true;
        let message = "the recording was not closed";
        self.report(DiagnosticKind::NotClosed, self.next, 0, None, message);
    }

    /// Decodes the message that the input holds, if it is a batch.
    fn decode(&mut self, at: u64, length: u64, rows: Option<u64>, batch: &mut Batch) -> bool {
        let Some((message, body)) = self.input.message() else {
            return false;
        };
        let Some(header) = message.header_as_record_batch() else {
            return false;
        };
        match self.decoder.decode(header, body, at, batch) {
            Ok(()) => batch.n_rows() > 0,
            Err(reason) => {
                let message = format!("a batch cannot be decoded: {reason}");
                self.report(DiagnosticKind::BatchDamaged, at, length, rows, message);
                self.left_out(None);
                false
            }
        }
    }
}

impl<R: Read + Seek, I: Read> Iterator for StreamReader<R, I> {
    type Item = Batch;

    fn next(&mut self) -> Option<Batch> {
        let mut batch = Batch::default();
        self.read_into(&mut batch).then_some(batch)
    }
}

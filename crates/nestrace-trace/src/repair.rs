//! Copies what is whole of a stream into a new, closed one with an index of its own.
//!
//! A batch is copied as its bytes stand, with the columns that this release does not know and the
//! checksum that it carries: its buffers count from its own body, so it is valid at any place of any
//! stream with the same schema. Nothing is decoded that is then encoded again.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::io::{Cursor, Read, Seek, Write};

use crate::events::marks;
use crate::index::{self, Entry, EntryKind};
use crate::message::{self, Framed};
use crate::{Batch, Event, StreamReader, StreamWriter, WriteError};

/// What was copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Copied {
    /// Batches.
    pub batches: u64,
    /// Events in them.
    pub rows: u64,
}

/// Copies every batch that `reader` still gives, and closes the new stream. `look` sees each of them.
///
/// What is missing afterwards is in the reader's diagnostics ([`crate::Damage`]). Of a stream whose
/// schema is damaged, the new one has this release's, with which its batches were read.
///
/// # Errors
/// If the new stream or its index takes no more bytes.
pub fn copy_whole<R, I, W, X>(
    reader: &mut StreamReader<R, I>,
    stream: W,
    index: X,
    mut look: impl FnMut(&Batch),
) -> Result<Copied, WriteError>
where
    R: Read + Seek,
    I: Read,
    W: Write,
    X: Write,
{
    let mut copy = Copy {
        stream,
        index,
        stream_bytes: 0,
        index_bytes: 0,
    };
    copy.write_index(&index::header())?;
    let schema = match reader.schema_bytes() {
        Some(metadata) => message::framed_again(metadata, &[]),
        None => message::schema_message(),
    };
    let is_own = schema.head == message::schema_message().head;
    copy.write(&schema, &[], &[], EntryKind::Schema)?;
    let mut last_ns = None;
    let (mut batch, mut copied) = (Batch::default(), Copied::default());
    loop {
        let is_more = reader.read_into(&mut batch);
        let next_ns = batch.columns().ts_ns.first().copied();
        // A batch of another release's columns cannot be made.
        if let Some(gap) = reader.take_gap().filter(|_| is_own) {
            copy.write_marks(&marks(gap, last_ns, next_ns.filter(|_| is_more)))?;
        }
        if !is_more {
            break;
        }
        last_ns = batch.columns().ts_ns.last().copied();
        if let Some((metadata, body)) = reader.batch_bytes() {
            let framed = message::framed_again(metadata, body);
            copy.write(&framed, body, batch.columns().ts_ns, EntryKind::Batch)?;
            copied.batches = copied.batches.saturating_add(1);
            copied.rows = copied.rows.saturating_add(batch.n_rows() as u64);
            look(&batch);
        }
    }
    let end = Framed {
        head: message::END_OF_STREAM.to_vec(),
        crc: crc32fast::hash(&message::END_OF_STREAM),
    };
    copy.write(&end, &[], &[], EntryKind::End)?;
    Ok(copied)
}

/// The new stream and its index.
struct Copy<W, X> {
    stream: W,
    index: X,
    stream_bytes: u64,
    index_bytes: u64,
}

impl<W: Write, X: Write> Copy<W, X> {
    /// Writes a batch of marks in the place of what was left out: the new stream does not show it otherwise.
    fn write_marks(&mut self, marks: &[Event]) -> Result<(), WriteError> {
        let mut alone = StreamWriter::new(Vec::new(), Vec::new())?;
        marks.iter().try_for_each(|mark| alone.push(mark))?;
        alone.finish()?;
        let (stream, index) = alone.into_inner();
        let Ok(mut reader) = StreamReader::new(Cursor::new(stream), Some(index.as_slice())) else {
            return Ok(());
        };
        let mut batch = Batch::default();
        if reader.read_into(&mut batch)
            && let Some((metadata, body)) = reader.batch_bytes()
        {
            let framed = message::framed_again(metadata, body);
            self.write(&framed, body, batch.columns().ts_ns, EntryKind::Batch)?;
        }
        Ok(())
    }

    /// Writes a message and the entry that describes it.
    fn write(
        &mut self,
        framed: &Framed,
        body: &[u8],
        ts_ns: &[u64],
        kind: EntryKind,
    ) -> Result<(), WriteError> {
        let offset = self.stream_bytes;
        let written = self
            .stream
            .write_all(&framed.head)
            .and_then(|()| self.stream.write_all(body))
            .and_then(|()| self.stream.flush());
        written.map_err(|source| WriteError::Stream { offset, source })?;
        let length = (framed.head.len() as u64).saturating_add(body.len() as u64);
        self.stream_bytes = offset.saturating_add(length);
        let entry = Entry {
            offset,
            length,
            first_ts_ns: ts_ns.iter().copied().min().unwrap_or(0),
            last_ts_ns: ts_ns.iter().copied().max().unwrap_or(0),
            crc: framed.crc,
            // A batch never has more than 64 Ki.
            rows: u32::try_from(ts_ns.len()).unwrap_or(u32::MAX),
            kind,
        };
        self.write_index(&entry.to_bytes())
    }

    fn write_index(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let offset = self.index_bytes;
        let written = self
            .index
            .write_all(bytes)
            .and_then(|()| self.index.flush());
        written.map_err(|source| WriteError::Index { offset, source })?;
        self.index_bytes = offset.saturating_add(bytes.len() as u64);
        Ok(())
    }
}

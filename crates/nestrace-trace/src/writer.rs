//! Writes a stream and its index.

use std::io::{self, Write};

use zstd::bulk::Compressor;
use zstd::zstd_safe::compress_bound;

use crate::Event;
use crate::columns::{COLUMNS, PendingColumns};
use crate::index::{self, Entry, EntryKind};
use crate::message::{self, Extent, Framed};
use crate::schema::MAX_BATCH_ROWS;

/// Rows that are gathered before they are spread over the columns: 28 KiB, a part of the cache.
const BLOCK_ROWS: usize = 256;

/// Writes events to a stream and describes every batch in its index.
///
/// A batch is written when it has 64 Ki rows, or when the caller asks ([`Self::flush_batch`], every
/// 250 ms while recording). Its bytes go to the stream first and its entry to the index second, so
/// a crash at any byte costs the last batch at most. `Write`rs that buffer are flushed with every
/// batch; unbuffered ones are right here, for each batch is one or two calls.
///
/// An error of the stream or of the index is final: what was written before stays readable, and
/// every later event is counted in [`Self::rows_lost`].
pub struct StreamWriter<W, I> {
    stream: W,
    index: I,
    block: Vec<Event>,
    columns: PendingColumns,
    compressor: Compressor<'static>,
    body: Vec<u8>,
    stream_bytes: u64,
    index_bytes: u64,
    rows_written: u64,
    rows_lost: u64,
    closed: bool,
}

/// Why a stream could not be written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WriteError {
    /// The stream took no more bytes.
    #[error("write the stream at byte {offset}")]
    Stream {
        /// Where the message begins that could not be written.
        offset: u64,
        /// What the writer said.
        source: io::Error,
    },
    /// The index took no more bytes.
    #[error("write the index at byte {offset}")]
    Index {
        /// Where the entry begins that could not be written.
        offset: u64,
        /// What the writer said.
        source: io::Error,
    },
    /// zstd failed.
    #[error("compress column {column} of a batch")]
    Compress {
        /// The column.
        column: &'static str,
        /// What zstd said.
        source: io::Error,
    },
    /// The stream was finished, or failed before.
    #[error("write to a stream that is closed")]
    Closed,
}

/// What a writer has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Written {
    /// Bytes of the stream.
    pub stream_bytes: u64,
    /// Bytes of the index.
    pub index_bytes: u64,
    /// Events in whole batches.
    pub rows: u64,
    /// Events that were refused because of an error.
    pub rows_lost: u64,
}

impl<W: Write, I: Write> StreamWriter<W, I> {
    /// Starts a stream: writes the header of the index, the schema, and the schema's entry.
    ///
    /// # Errors
    /// If either cannot be written or zstd gives no context.
    pub fn new(stream: W, index: I) -> Result<Self, WriteError> {
        let compressor =
            compressor().map_err(|source| WriteError::Compress { column: "", source })?;
        let mut writer = Self {
            stream,
            index,
            block: Vec::with_capacity(BLOCK_ROWS),
            columns: PendingColumns::default(),
            compressor,
            body: Vec::new(),
            stream_bytes: 0,
            index_bytes: 0,
            rows_written: 0,
            rows_lost: 0,
            closed: false,
        };
        writer.write_index(&index::header())?;
        writer.write_message(&message::schema_message(), 0, EntryKind::Schema)?;
        Ok(writer)
    }

    /// Adds an event; writes the batch if it is full.
    ///
    /// # Errors
    /// If the batch could not be written, or the writer failed before.
    #[inline]
    pub fn push(&mut self, event: &Event) -> Result<(), WriteError> {
        self.block.push(*event);
        if self.block.len() < BLOCK_ROWS {
            Ok(())
        } else {
            self.spread_block()
        }
    }

    /// Moves the gathered rows to the columns.
    #[inline(never)]
    fn spread_block(&mut self) -> Result<(), WriteError> {
        if self.closed {
            self.rows_lost += self.block.len() as u64;
            self.block.clear();
            return Err(WriteError::Closed);
        }
        self.columns.append(&self.block);
        self.block.clear();
        if self.pending_rows() + BLOCK_ROWS > MAX_BATCH_ROWS {
            self.write_batch()?;
        }
        Ok(())
    }

    fn pending_rows(&self) -> usize {
        self.columns.ts_ns().len()
    }

    /// Writes the events gathered so far as a batch; returns the bytes that went to the stream (0
    /// if there were none).
    ///
    /// # Errors
    /// If it cannot be written, or the writer failed before.
    pub fn flush_batch(&mut self) -> Result<u64, WriteError> {
        let before = self.stream_bytes;
        self.spread_block()?;
        if self.pending_rows() > 0 {
            self.write_batch()?;
        }
        Ok(self.stream_bytes - before)
    }

    /// Writes what is left and closes the stream. The writer takes no events afterwards.
    ///
    /// # Errors
    /// If the rest cannot be written, or the writer failed before; [`Self::written`] then says how
    /// far it came.
    pub fn finish(&mut self) -> Result<Written, WriteError> {
        self.flush_batch()?;
        let crc = crc32fast::hash(&message::END_OF_STREAM);
        let end = Framed {
            head: message::END_OF_STREAM.to_vec(),
            crc,
        };
        self.write_message(&end, 0, EntryKind::End)?;
        self.closed = true;
        Ok(self.written())
    }

    /// What has been written so far.
    #[must_use]
    pub fn written(&self) -> Written {
        Written {
            stream_bytes: self.stream_bytes,
            index_bytes: self.index_bytes,
            rows: self.rows_written,
            rows_lost: self.rows_lost(),
        }
    }

    /// Events that were refused, or were in a batch that could not be written.
    #[must_use]
    pub fn rows_lost(&self) -> u64 {
        let waiting = if self.closed {
            self.block.len() as u64
        } else {
            0
        };
        self.rows_lost + waiting
    }

    /// Events that wait for their batch.
    #[must_use]
    pub fn rows_pending(&self) -> usize {
        if self.closed {
            0
        } else {
            self.pending_rows() + self.block.len()
        }
    }

    /// Gives the stream and the index back.
    pub fn into_inner(self) -> (W, I) {
        (self.stream, self.index)
    }

    /// Compresses and writes the columns.
    fn write_batch(&mut self) -> Result<(), WriteError> {
        let rows = self.pending_rows();
        let result = self.compress().and_then(|(extents, body_len)| {
            let framed = message::batch_message(rows, &extents, &self.body[..body_len]);
            self.write_message(&framed, body_len, EntryKind::Batch)
        });
        self.columns.clear();
        match &result {
            Ok(()) => self.rows_written += rows as u64,
            // The batch itself is whole, and a reader finds it without its entry.
            Err(WriteError::Index { .. }) => self.rows_written += rows as u64,
            Err(_) => {
                self.closed = true;
                self.rows_lost += rows as u64;
            }
        }
        result
    }

    /// Compresses every column into `body`; gives their places and the length of the body.
    fn compress(&mut self) -> Result<([Extent; COLUMNS.len()], usize), WriteError> {
        let columns = self.columns.as_bytes();
        let bound: usize = columns
            .iter()
            .map(|bytes| 16 + compress_bound(bytes.len()))
            .sum();
        if self.body.len() < bound {
            self.body.resize(bound, 0);
        }
        let mut extents = [Extent::default(); COLUMNS.len()];
        let mut end = 0;
        for ((bytes, column), extent) in columns.iter().zip(COLUMNS).zip(&mut extents) {
            let room = &mut self.body[end + 8..];
            let mut len = self
                .compressor
                .compress_to_buffer(bytes, room)
                .map_err(|source| WriteError::Compress {
                    column: column.name,
                    source,
                })?;
            let mut declared = bytes.len() as i64;
            if len >= bytes.len() {
                // Arrow's mark for a buffer that stands as it is.
                declared = -1;
                len = bytes.len();
                room[..len].copy_from_slice(bytes);
            }
            self.body[end..end + 8].copy_from_slice(&declared.to_le_bytes());
            *extent = Extent {
                offset: end,
                len: 8 + len,
            };
            let padded = (end + 8 + len).next_multiple_of(8);
            self.body[end + 8 + len..padded].fill(0);
            end = padded;
        }
        Ok((extents, end))
    }

    /// Writes a message, whose body is the first `body_len` bytes of `body`, and its index entry.
    fn write_message(
        &mut self,
        framed: &Framed,
        body_len: usize,
        kind: EntryKind,
    ) -> Result<(), WriteError> {
        let offset = self.stream_bytes;
        let length = (framed.head.len() + body_len) as u64;
        let written = self
            .stream
            .write_all(&framed.head)
            .and_then(|()| self.stream.write_all(&self.body[..body_len]))
            .and_then(|()| self.stream.flush());
        written.map_err(|source| {
            self.closed = true;
            WriteError::Stream { offset, source }
        })?;
        self.stream_bytes += length;
        let ts_ns = if kind == EntryKind::Batch {
            self.columns.ts_ns()
        } else {
            &[]
        };
        let entry = Entry {
            offset,
            length,
            first_ts_ns: ts_ns.iter().copied().min().unwrap_or(0),
            last_ts_ns: ts_ns.iter().copied().max().unwrap_or(0),
            crc: framed.crc,
            rows: ts_ns.len() as u32,
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
        written.map_err(|source| {
            self.closed = true;
            WriteError::Index { offset, source }
        })?;
        self.index_bytes += bytes.len() as u64;
        Ok(())
    }
}

/// zstd at level 1.
///
/// `examples/write_speed.rs` makes two workloads of 4 KiB random reads at depth 32 (recycled bios,
/// requests and control blocks; 105 bytes a row): `block`, two block layers under fio, and `guest`,
/// QEMU and file events as well. Bytes and ns per event, one core of the 2-core build machine while
/// it was busy (zstd 1.5.7, the better of three runs each, compression of the columns alone):
///
/// | setting | block: bytes, write, read | guest: bytes, write, read |
/// |---|---|---|
/// | level −7 | 23.6 B, 113 ns, 59 ns | 23.9 B, 140 ns, 70 ns |
/// | level −3 | 17.2 B, 136 ns, 76 ns | 17.2 B, 157 ns, 84 ns |
/// | level −1 | 10.5 B, 130 ns, 68 ns | 11.2 B, 160 ns, 81 ns |
/// | **level 1** | **8.9 B, 138 ns, 72 ns** | **10.1 B, 162 ns, 82 ns** |
/// | level 2 | 8.9 B, 141 ns, 72 ns | 10.0 B, 159 ns, 80 ns |
/// | level 3 | 8.5 B, 148 ns, 68 ns | 9.6 B, 169 ns, 75 ns |
/// | level 5 | 7.4 B, 456 ns, 53 ns | 8.1 B, 518 ns, 61 ns |
///
/// Other hash sizes and match lengths, and a double hash at level 1, lie within the noise of that.
/// The time goes into zstd's sequences, about one for every change of a column's value, so faster
/// levels do not save what they lose in size.
fn compressor() -> io::Result<Compressor<'static>> {
    Compressor::new(1)
}

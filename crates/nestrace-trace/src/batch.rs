//! A decoded batch, and how a record batch's bytes become one.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::array;

use arrow_buffer::MutableBuffer;
use arrow_ipc::{BodyCompressionMethod, CompressionType, RecordBatch};
use zstd::bulk::Decompressor;

use crate::Event;
use crate::columns::{COLUMNS, Columns};
use crate::schema::MAX_BATCH_ROWS;
use crate::stored_schema::{Layout, StoredColumn};

/// Events of one batch, in the order in which they were written. Its memory can be used again
/// ([`crate::StreamReader::read_into`]).
pub struct Batch {
    rows: usize,
    offset: u64,
    buffers: [MutableBuffer; COLUMNS.len()],
}

impl Default for Batch {
    fn default() -> Self {
        Self {
            rows: 0,
            offset: 0,
            buffers: array::from_fn(|_| MutableBuffer::new(0)),
        }
    }
}

impl std::fmt::Debug for Batch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Batch")
            .field("rows", &self.rows)
            .field("offset", &self.offset)
            .finish()
    }
}

impl Batch {
    /// The number of events.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.rows
    }

    /// Where the batch begins in its stream, in bytes.
    #[must_use]
    pub fn stream_offset(&self) -> u64 {
        self.offset
    }

    /// The events as columns.
    #[must_use]
    pub fn columns(&self) -> Columns<'_> {
        Columns::of(&self.buffers)
    }

    /// The events as rows.
    pub fn events(&self) -> impl Iterator<Item = Event> + '_ {
        let columns = self.columns();
        (0..self.rows).map_while(move |row| columns.get(row))
    }
}

/// Turns the bytes of record batches into [`Batch`]es.
pub(crate) struct Decoder {
    zstd: Decompressor<'static>,
    layout: Layout,
}

impl Decoder {
    pub(crate) fn new(layout: Layout) -> std::io::Result<Self> {
        Ok(Self {
            zstd: Decompressor::new()?,
            layout,
        })
    }

    /// Decodes a record batch whose checksum was right into `batch`.
    ///
    /// Memory is bounded by [`MAX_BATCH_ROWS`] times the width of this release's columns, whatever
    /// the lengths in the bytes say. On an error, `batch` has no rows.
    pub(crate) fn decode(
        &mut self,
        header: RecordBatch<'_>,
        body: &[u8],
        offset: u64,
        batch: &mut Batch,
    ) -> Result<(), &'static str> {
        batch.rows = 0;
        batch.offset = offset;
        let rows = usize::try_from(header.length()).map_err(|_| "negative row count")?;
        if rows > MAX_BATCH_ROWS {
            return Err("more rows than a batch may have");
        }
        let result = self.decode_columns(header, body, rows, batch);
        let rows = if result.is_ok() { rows } else { 0 };
        for (buffer, column) in batch.buffers.iter_mut().zip(COLUMNS) {
            buffer.resize(rows.saturating_mul(column.width), 0);
        }
        batch.rows = rows;
        result
    }

    fn decode_columns(
        &mut self,
        header: RecordBatch<'_>,
        body: &[u8],
        rows: usize,
        batch: &mut Batch,
    ) -> Result<(), &'static str> {
        let compressed = compressed(header)?;
        let nodes = header.nodes().ok_or("no field nodes")?;
        let mut buffers = header.buffers().ok_or("no buffers")?.iter();
        if nodes.len() != self.layout.columns.len() {
            return Err("a different number of columns than the schema has");
        }
        for (node, column) in nodes.iter().zip(&self.layout.columns) {
            let StoredColumn::Ours(position) = *column else {
                column.skip_buffers(&mut buffers);
                continue;
            };
            if node.null_count() != 0 || usize::try_from(node.length()) != Ok(rows) {
                return Err("a column with nulls, or of a different length than the batch");
            }
            buffers.next().ok_or("a validity buffer is missing")?;
            let place = buffers.next().ok_or("a data buffer is missing")?;
            let bytes =
                slice(body, place.offset(), place.length()).ok_or("a buffer outside the body")?;
            let (Some(to), Some(column)) = (batch.buffers.get_mut(position), COLUMNS.get(position))
            else {
                return Err("a column outside the schema");
            };
            to.resize(rows.saturating_mul(column.width), 0);
            fill(&mut self.zstd, bytes, compressed, to.as_slice_mut())?;
        }
        for position in &self.layout.missing {
            if let (Some(to), Some(column)) =
                (batch.buffers.get_mut(*position), COLUMNS.get(*position))
            {
                to.clear();
                to.resize(rows.saturating_mul(column.width), 0);
            }
        }
        Ok(())
    }
}

/// Whether the buffers of a batch are compressed with zstd.
fn compressed(header: RecordBatch<'_>) -> Result<bool, &'static str> {
    match header.compression() {
        None => Ok(false),
        Some(compression)
            if compression.codec() == CompressionType::ZSTD
                && compression.method() == BodyCompressionMethod::BUFFER =>
        {
            Ok(true)
        }
        Some(_) => Err("a compression other than zstd"),
    }
}

fn slice(body: &[u8], offset: i64, length: i64) -> Option<&[u8]> {
    let offset = usize::try_from(offset).ok()?;
    let end = offset.checked_add(usize::try_from(length).ok()?)?;
    body.get(offset..end)
}

/// Fills `to` from a stored buffer, which must hold exactly as many bytes.
fn fill(
    zstd: &mut Decompressor<'_>,
    bytes: &[u8],
    compressed: bool,
    to: &mut [u8],
) -> Result<(), &'static str> {
    if to.is_empty() {
        return Ok(());
    }
    let mut plain = bytes;
    if compressed {
        let (declared, rest) = bytes
            .split_first_chunk()
            .ok_or("a compressed buffer without a length")?;
        let declared = i64::from_le_bytes(*declared);
        if usize::try_from(declared) == Ok(to.len()) {
            return match zstd.decompress_to_buffer(rest, to) {
                Ok(len) if len == to.len() => Ok(()),
                Ok(_) => Err("a compressed buffer that is too short"),
                Err(_) => Err("a buffer that zstd refuses"),
            };
        }
        if declared != -1 {
            return Err("a compressed buffer of another length than its column");
        }
        plain = rest;
    }
    if plain.len() != to.len() {
        return Err("a buffer of another length than its column");
    }
    to.copy_from_slice(plain);
    Ok(())
}

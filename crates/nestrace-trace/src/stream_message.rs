//! A stream without a file: the bytes that it has in a bundle, a message at a time.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::io;

use crate::batch::{Batch, Decoder};
use crate::layout::{Layout, Refusal};
use crate::message::{self, PREFIX_LEN, Seal};
use crate::reader::OpenError;
use crate::{Event, StreamWriter, WriteError};

/// Rows of the largest batch: with 105 bytes a row it fits 1 MiB (a frame of `nestrace-wire`) even if zstd gains nothing.
pub const MAX_MESSAGE_ROWS: usize = 8192;

/// Makes batches of at most 1 MiB.
pub struct BatchEncoder {
    writer: StreamWriter<Vec<u8>, io::Sink>,
}

impl BatchEncoder {
    /// An encoder, and the schema message that goes before its first batch.
    ///
    /// # Errors
    /// If zstd gives no context.
    pub fn new() -> Result<(Self, Vec<u8>), WriteError> {
        let mut writer = StreamWriter::new(Vec::new(), io::sink())?;
        let schema = std::mem::take(writer.stream_mut());
        Ok((Self { writer }, schema))
    }

    /// Adds an event. Ask [`Self::is_full`] afterwards.
    ///
    /// # Errors
    /// If zstd failed before.
    pub fn push(&mut self, event: &Event) -> Result<(), WriteError> {
        self.writer.push(event)
    }

    /// Whether [`Self::take`] must be called before the next event.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.n_rows() >= MAX_MESSAGE_ROWS
    }

    /// Events that wait.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.writer.rows_pending()
    }

    /// The events gathered so far as one message; empty if there were none.
    ///
    /// # Errors
    /// If zstd fails.
    pub fn take(&mut self) -> Result<Vec<u8>, WriteError> {
        self.writer.flush_batch()?;
        Ok(std::mem::take(self.writer.stream_mut()))
    }
}

/// Why a batch was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BatchError {
    /// The bytes are not one whole message of a stream.
    #[error("decode a batch: {0}")]
    Message(&'static str),
    /// The schema is not one that this release can read.
    #[error("decode a batch: its schema is refused")]
    Schema(#[source] Box<OpenError>),
    /// zstd gives no context.
    #[error("decode a batch")]
    Zstd(#[from] io::Error),
}

impl From<Refusal> for BatchError {
    fn from(refusal: Refusal) -> Self {
        Self::Schema(Box::new(refusal.into()))
    }
}

/// Turns the messages of one session into batches, as carefully as [`crate::StreamReader`] does with
/// a file. Before a schema was decoded, this release's own is assumed.
pub struct BatchDecoder {
    decoder: Decoder,
}

impl BatchDecoder {
    /// For one session.
    ///
    /// # Errors
    /// If zstd gives no context.
    pub fn new() -> Result<Self, BatchError> {
        Ok(Self {
            decoder: Decoder::new(Layout::own())?,
        })
    }

    /// Decodes one message; `true` if it was a batch and its rows are in `batch` (whose memory is used
    /// again), `false` if it was the schema.
    ///
    /// # Errors
    /// [`BatchError`]; `batch` then has no rows to be used.
    pub fn decode(&mut self, payload: &[u8], batch: &mut Batch) -> Result<bool, BatchError> {
        let (metadata, body) = split(payload).ok_or(BatchError::Message("it is not a message"))?;
        let (message, body_len) = message::parse_metadata(metadata)
            .ok_or(BatchError::Message("its metadata cannot be read"))?;
        if u64::try_from(body.len()) != Ok(body_len) {
            return Err(BatchError::Message("its body has another length"));
        }
        if message::check_seal(metadata, body) != Seal::Intact {
            return Err(BatchError::Message("its checksum is wrong or absent"));
        }
        if let Some(schema) = message.header_as_schema() {
            self.decoder = Decoder::new(Layout::of(schema)?)?;
            return Ok(false);
        }
        let header = message
            .header_as_record_batch()
            .ok_or(BatchError::Message("it is neither schema nor batch"))?;
        self.decoder
            .decode(header, body, 0, batch)
            .map_err(BatchError::Message)?;
        Ok(true)
    }
}

/// Metadata and body.
fn split(payload: &[u8]) -> Option<(&[u8], &[u8])> {
    let (prefix, rest) = payload.split_first_chunk::<PREFIX_LEN>()?;
    let metadata_len = usize::try_from(message::metadata_len(*prefix)?).ok()?;
    rest.split_at_checked(metadata_len)
}

#[cfg(test)]
mod tests {
    #![allow(
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::indexing_slicing
    )]

    use proptest::prelude::*;

    use super::*;

    fn noise(state: &mut u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state
    }

    /// An event that zstd can do nothing with.
    fn incompressible(state: &mut u64) -> Event {
        let mut next = || noise(state);
        Event {
            ts_ns: next(),
            kind: next() as u8,
            sub: next() as u8,
            cpu: next() as u16,
            tid: next() as u32,
            dev: next() as u32,
            object: next(),
            related: next(),
            offset: next(),
            bytes: next(),
            flags: next() as u32,
            inode: next(),
            file_offset: next(),
            owner_dev: next() as u32,
            iocb: next(),
            origin: next(),
            end_io: next() as u8,
            cgroup: next(),
            aux: next() as u32,
        }
    }

    #[test]
    fn the_largest_batch_fits_and_comes_back() {
        let (mut encoder, schema) = BatchEncoder::new().unwrap();
        let mut state = 88_172_645_463_325_252;
        let mut events = Vec::new();
        while !encoder.is_full() {
            let event = incompressible(&mut state);
            encoder.push(&event).unwrap();
            events.push(event);
        }
        let bytes = encoder.take().unwrap();
        assert!(bytes.len() <= 1 << 20, "{} bytes", bytes.len());
        assert_eq!((events.len(), encoder.n_rows()), (MAX_MESSAGE_ROWS, 0));
        assert!(encoder.take().unwrap().is_empty());
        let mut decoder = BatchDecoder::new().unwrap();
        let mut batch = Batch::default();
        assert!(!decoder.decode(&schema, &mut batch).unwrap());
        assert!(decoder.decode(&bytes, &mut batch).unwrap());
        assert!(batch.events().eq(events));
    }

    fn small_batch() -> Vec<u8> {
        let (mut encoder, _) = BatchEncoder::new().unwrap();
        for ts_ns in 0..100 {
            let event = Event {
                ts_ns,
                ..Event::default()
            };
            encoder.push(&event).unwrap();
        }
        encoder.take().unwrap()
    }

    proptest! {
        #[test]
        fn damage_is_refused(at in 0_usize..4000, bit in 0_u8..8, cut in 0_usize..4000) {
            let whole = small_batch();
            let mut bytes = whole.clone();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let mut decoder = BatchDecoder::new().unwrap();
            let mut batch = Batch::default();
            // Padding between flatbuffer fields is covered by the seal too, so nothing gets through.
            prop_assert!(decoder.decode(&bytes, &mut batch).is_err());
            let cut = cut % whole.len();
            prop_assert!(decoder.decode(&whole[..cut], &mut batch).is_err());
        }
    }
}

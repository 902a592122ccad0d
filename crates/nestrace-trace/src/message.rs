//! One message of an Arrow IPC stream, as bytes: how it is framed, sealed with a checksum, and
//! taken apart again.
//!
//! Arrow's own reader is not used: it panics on damaged input. Its generated flatbuffer types are,
//! after their verifier, and every number that they give is checked against the bytes at hand.
//!
//! A message carries the CRC-32 of itself in its custom metadata (Arrow readers pass over it), so
//! that a stream whose index is lost can still be read without trusting a single byte.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use arrow_ipc::convert::IpcSchemaEncoder;
use arrow_ipc::{
    BodyCompression, BodyCompressionArgs, BodyCompressionMethod, Buffer, CompressionType,
    FieldNode, KeyValue, KeyValueArgs, Message, MessageArgs, MessageHeader, MetadataVersion,
    RecordBatchArgs, root_as_message,
};
use crc32fast::Hasher;
use flatbuffers::{FlatBufferBuilder, ForwardsUOffset, UnionWIPOffset, Vector, WIPOffset};

use crate::schema::schema;

/// What every message begins with, before the length of its metadata.
pub(crate) const CONTINUATION: [u8; 4] = [0xff; 4];
/// Bytes before the metadata: [`CONTINUATION`] and a length.
pub(crate) const PREFIX_LEN: usize = 8;
/// The end of a stream.
pub(crate) const END_OF_STREAM: [u8; PREFIX_LEN] = [0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0];
/// Metadata is never longer; this release's is 2 KiB.
pub(crate) const MAX_METADATA: u64 = 64 << 10;
/// A body is never longer: 64 Ki rows of this release that zstd cannot compress have 6.6 MiB.
pub(crate) const MAX_BODY: u64 = 32 << 20;
/// A whole message is never longer.
pub(crate) const MAX_MESSAGE: u64 = MAX_BODY + MAX_METADATA + PREFIX_LEN as u64;

/// Key of a message's custom metadata: CRC-32 (eight hexadecimal digits) of its metadata, with
/// [`UNSEALED`] in place of these digits, followed by its body.
const SEAL_KEY: &str = "nestrace.crc32";
const UNSEALED: &str = "--------";

/// A finished message: what precedes the body, and the checksum of the whole.
pub(crate) struct Framed {
    /// Prefix and metadata.
    pub(crate) head: Vec<u8>,
    /// CRC-32 of `head` and body, for the index.
    pub(crate) crc: u32,
}

/// The stream's first message.
pub(crate) fn schema_message() -> Framed {
    let mut builder = FlatBufferBuilder::new();
    let header = IpcSchemaEncoder::new().schema_to_fb_offset(&mut builder, &schema());
    frame(builder, MessageHeader::Schema, header.as_union_value(), &[])
}

/// A message whose metadata (padded, sealed or not) and body were read from a stream: to be written
/// again as it is.
pub(crate) fn framed_again(metadata: &[u8], body: &[u8]) -> Framed {
    let mut crc = Hasher::new();
    let head = prefixed(metadata);
    crc.update(&head);
    crc.update(body);
    Framed {
        head,
        crc: crc.finalize(),
    }
}

/// Metadata with its prefix in front.
fn prefixed(metadata: &[u8]) -> Vec<u8> {
    let len = u32::try_from(metadata.len()).unwrap_or(u32::MAX);
    let mut head = Vec::with_capacity(metadata.len().saturating_add(PREFIX_LEN));
    head.extend_from_slice(&CONTINUATION);
    head.extend_from_slice(&len.to_le_bytes());
    head.extend_from_slice(metadata);
    head
}

/// Where one column lies in a body: bytes from its start, length without padding.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Extent {
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// The message before `body`, a batch of `rows` rows whose zstd-compressed columns lie at `columns`.
pub(crate) fn batch_message(rows: usize, columns: &[Extent], body: &[u8]) -> Framed {
    let mut builder = FlatBufferBuilder::with_capacity(2048);
    let rows = rows.try_into().unwrap_or(i64::MAX);
    let nodes: Vec<FieldNode> = columns.iter().map(|_| FieldNode::new(rows, 0)).collect();
    let mut buffers = Vec::with_capacity(columns.len().saturating_mul(2));
    for column in columns {
        let offset = column.offset.try_into().unwrap_or(i64::MAX);
        // No value is null, so the validity bitmap is left out.
        buffers.push(Buffer::new(offset, 0));
        buffers.push(Buffer::new(
            offset,
            column.len.try_into().unwrap_or(i64::MAX),
        ));
    }
    let nodes = builder.create_vector(&nodes);
    let buffers = builder.create_vector(&buffers);
    let compression = BodyCompression::create(
        &mut builder,
        &BodyCompressionArgs {
            codec: CompressionType::ZSTD,
            method: BodyCompressionMethod::BUFFER,
        },
    );
    let batch = arrow_ipc::RecordBatch::create(
        &mut builder,
        &RecordBatchArgs {
            length: rows,
            nodes: Some(nodes),
            buffers: Some(buffers),
            compression: Some(compression),
            variadicBufferCounts: None,
        },
    );
    frame(
        builder,
        MessageHeader::RecordBatch,
        batch.as_union_value(),
        body,
    )
}

fn frame(
    mut builder: FlatBufferBuilder<'_>,
    header_type: MessageHeader,
    header: WIPOffset<UnionWIPOffset>,
    body: &[u8],
) -> Framed {
    let custom_metadata = seal_metadata(&mut builder);
    let message = Message::create(
        &mut builder,
        &MessageArgs {
            version: MetadataVersion::V5,
            header_type,
            header: Some(header),
            bodyLength: body.len().try_into().unwrap_or(i64::MAX),
            custom_metadata: Some(custom_metadata),
        },
    );
    builder.finish(message, None);
    let mut metadata = builder.finished_data().to_vec();
    metadata.resize(metadata.len().next_multiple_of(8), 0);
    seal(metadata, body)
}

fn seal_metadata<'b>(
    builder: &mut FlatBufferBuilder<'b>,
) -> WIPOffset<Vector<'b, ForwardsUOffset<KeyValue<'b>>>> {
    let key = builder.create_string(SEAL_KEY);
    let value = builder.create_string(UNSEALED);
    let pair = KeyValue::create(
        builder,
        &KeyValueArgs {
            key: Some(key),
            value: Some(value),
        },
    );
    builder.create_vector(&[pair])
}

/// Writes the checksum over its place-holder and puts the prefix in front.
fn seal(mut metadata: Vec<u8>, body: &[u8]) -> Framed {
    let mut body_crc = Hasher::new();
    body_crc.update(body);
    let mut inner = Hasher::new();
    inner.update(&metadata);
    inner.combine(&body_crc);
    let digits = format!("{:08x}", inner.finalize());
    if let Some(at) = seal_position(&metadata)
        && let Some(place) = metadata.get_mut(at..at.saturating_add(UNSEALED.len()))
    {
        place.copy_from_slice(digits.as_bytes());
    }
    let head = prefixed(&metadata);
    let mut outer = Hasher::new();
    outer.update(&head);
    outer.combine(&body_crc);
    Framed {
        head,
        crc: outer.finalize(),
    }
}

/// Where the eight digits of the checksum stand in `metadata`.
fn seal_position(metadata: &[u8]) -> Option<usize> {
    let message = root_as_message(metadata).ok()?;
    let pairs = message.custom_metadata()?;
    let value = pairs
        .iter()
        .find(|pair| pair.key() == Some(SEAL_KEY))?
        .value()?;
    if value.len() != UNSEALED.len() {
        return None;
    }
    // The string borrows from `metadata`, so the distance of the two is its position.
    (value.as_ptr() as usize).checked_sub(metadata.as_ptr() as usize)
}

/// What the seal of a message says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seal {
    /// The checksum is right.
    Intact,
    /// It is wrong.
    Broken,
    /// There is none: another program wrote the message.
    Absent,
}

/// Compares a message with the checksum that it carries.
pub(crate) fn check_seal(metadata: &[u8], body: &[u8]) -> Seal {
    let Some(at) = seal_position(metadata) else {
        return Seal::Absent;
    };
    let after = at.saturating_add(UNSEALED.len());
    let (Some(before), Some(digits), Some(rest)) = (
        metadata.get(..at),
        metadata.get(at..after),
        metadata.get(after..),
    ) else {
        return Seal::Absent;
    };
    let mut crc = Hasher::new();
    crc.update(before);
    crc.update(UNSEALED.as_bytes());
    crc.update(rest);
    crc.update(body);
    if format!("{:08x}", crc.finalize()).as_bytes() == digits {
        Seal::Intact
    } else {
        Seal::Broken
    }
}

/// The length of the metadata that a prefix announces: `None` if it is no prefix or out of bounds,
/// 0 for the end of the stream.
pub(crate) fn metadata_len(prefix: [u8; PREFIX_LEN]) -> Option<u64> {
    let (continuation, len) = prefix.split_at_checked(4)?;
    if continuation != CONTINUATION {
        return None;
    }
    let len = u64::from(u32::from_le_bytes(len.try_into().ok()?));
    (len <= MAX_METADATA && len.is_multiple_of(8)).then_some(len)
}

/// Verified metadata, and the length of the body that it announces (bounded by [`MAX_BODY`]).
pub(crate) fn parse_metadata(metadata: &[u8]) -> Option<(Message<'_>, u64)> {
    let message = root_as_message(metadata).ok()?;
    let body = u64::try_from(message.bodyLength()).ok()?;
    (message.version() == MetadataVersion::V5 && body <= MAX_BODY && body.is_multiple_of(8))
        .then_some((message, body))
}

//! Streams of other releases and of other programs.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt32Array, UInt64Array};
use arrow_ipc::writer::{IpcWriteOptions, StreamWriter};
use arrow_ipc::{CompressionType, root_as_message};
use arrow_schema::Schema;
use nestrace_trace::DiagnosticKind::{
    BatchDamaged, IndexMissing, MissingColumn, NotClosed, UnknownColumn,
};
use nestrace_trace::columns::COLUMNS;
use nestrace_trace::index::{self, Entry, EntryKind};
use nestrace_trace::{Event, OpenError};

use super::read;

/// Writes `columns` with Arrow's own writer and makes an index for it.
pub fn written(
    columns: &[(&str, ArrayRef)],
    format: Option<&str>,
    compression: Option<CompressionType>,
) -> (Vec<u8>, Vec<u8>) {
    let batch = RecordBatch::try_from_iter_with_nullable(
        columns
            .iter()
            .map(|(name, values)| (*name, Arc::clone(values), false)),
    )
    .unwrap();
    let mut metadata = HashMap::from([("nestrace.release".to_owned(), "7.8.9".to_owned())]);
    if let Some(format) = format {
        metadata.insert("nestrace.format".to_owned(), format.to_owned());
    }
    let schema = Schema::new_with_metadata(batch.schema().fields().clone(), metadata);
    let options = IpcWriteOptions::default()
        .try_with_compression(compression)
        .unwrap();
    let mut writer = StreamWriter::try_new_with_options(Vec::new(), &schema, options).unwrap();
    let batch = batch.with_schema(Arc::new(schema)).unwrap();
    writer.write(&batch).unwrap();
    writer.finish().unwrap();
    let stream = writer.into_inner().unwrap();
    let index = index_of(&stream, batch.num_rows() as u32);
    (stream, index)
}

fn index_of(stream: &[u8], rows: u32) -> Vec<u8> {
    let mut index = index::header().to_vec();
    let mut at = 0;
    while at < stream.len() {
        let metadata = u32::from_le_bytes(stream[at + 4..at + 8].try_into().unwrap()) as usize;
        let body = match metadata {
            0 => 0,
            _ => root_as_message(&stream[at + 8..at + 8 + metadata])
                .unwrap()
                .bodyLength() as usize,
        };
        let length = 8 + metadata + body;
        let kind = match (at, metadata) {
            (0, _) => EntryKind::Schema,
            (_, 0) => EntryKind::End,
            _ => EntryKind::Batch,
        };
        let entry = Entry {
            offset: at as u64,
            length: length as u64,
            first_ts_ns: 0,
            last_ts_ns: u64::MAX,
            crc: crc32fast::hash(&stream[at..at + length]),
            rows: if kind == EntryKind::Batch { rows } else { 0 },
            kind,
        };
        index.extend_from_slice(&entry.to_bytes());
        at += length;
    }
    index
}

pub fn u64s(values: &[u64]) -> ArrayRef {
    Arc::new(UInt64Array::from(values.to_vec()))
}

fn u32s(values: &[u32]) -> ArrayRef {
    Arc::new(UInt32Array::from(values.to_vec()))
}

/// Columns of a newer minor version (a number and a text), of an older one (most are missing), in
/// another order, compressed and not.
#[test]
fn columns_are_found_by_name() {
    let columns = [
        ("object", u64s(&[7, 8])),
        (
            "mood",
            Arc::new(StringArray::from(vec!["good", "bad"])) as ArrayRef,
        ),
        ("tid", u32s(&[1, 2])),
        ("weight", u64s(&[3, 4])),
        ("ts_ns", u64s(&[100, 200])),
    ];
    for compression in [None, Some(CompressionType::ZSTD)] {
        let (stream, index) = written(&columns, Some("1.7"), compression);
        let reading = read(&stream, Some(&index)).unwrap();
        let expected = [
            Event {
                ts_ns: 100,
                tid: 1,
                object: 7,
                ..Event::default()
            },
            Event {
                ts_ns: 200,
                tid: 2,
                object: 8,
                ..Event::default()
            },
        ];
        assert_eq!(reading.rows(), expected);
        let count = |kind| reading.kinds.iter().filter(|found| **found == kind).count();
        assert_eq!(count(UnknownColumn), 2);
        assert_eq!(count(MissingColumn), COLUMNS.len() - 3);
        assert!(reading.closed);
    }
}

#[test]
fn a_newer_major_version_names_the_release() {
    let (stream, index) = written(&[("ts_ns", u64s(&[1]))], Some("2.0"), None);
    for index in [Some(index.as_slice()), None] {
        let error = read(&stream, index).unwrap_err();
        assert!(matches!(
            error,
            OpenError::NewerFormat {
                found: 2,
                supported: 1,
                ..
            }
        ));
        assert_eq!(
            error.to_string(),
            "read the stream: it has format 2, this release reads up to 1; \
             nestrace 7.8.9 wrote it and can read it"
        );
    }
}

#[test]
fn what_is_no_stream_of_ours_is_refused() {
    let (stream, index) = written(&[("ts_ns", u64s(&[1]))], None, None);
    for (bytes, index) in [
        (stream.as_slice(), Some(index.as_slice())),
        (stream.as_slice(), None),
        (b"PAR1 and so on", None),
        (b"{\"format\":1}", None),
        (b"ARROW1\0\0\xff\xff\xff\xff", None),
    ] {
        let error = read(bytes, index).unwrap_err();
        assert!(matches!(error, OpenError::NotAStream { .. }), "{error}");
    }
}

#[test]
fn a_column_of_another_type_is_refused() {
    let (stream, index) = written(&[("ts_ns", u32s(&[1]))], Some("1.0"), None);
    let error = read(&stream, Some(&index)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "read the stream: column `ts_ns` is UInt32, not UInt64"
    );
}

/// Without an index, only the checksum that a batch of ours carries proves it.
#[test]
fn a_batch_without_any_checksum_is_left_out() {
    let (stream, _) = written(&[("ts_ns", u64s(&[1]))], Some("1.0"), None);
    let reading = read(&stream, None).unwrap();
    assert!(reading.batches.is_empty());
    assert_eq!(reading.kinds.first(), Some(&IndexMissing));
    assert_eq!(
        &reading.kinds[reading.kinds.len() - 2..],
        [BatchDamaged, NotClosed]
    );
}

#[test]
fn a_batch_with_too_many_rows_is_left_out() {
    let (stream, index) = written(
        &[("ts_ns", u64s(&vec![1; 65_537]))],
        Some("1.0"),
        Some(CompressionType::ZSTD),
    );
    let reading = read(&stream, Some(&index)).unwrap();
    assert!(reading.batches.is_empty());
    assert_eq!(reading.kinds.last(), Some(&BatchDamaged));
    assert_eq!(reading.rows_lost, 65_537);
}

//! What is written comes back, here and through Arrow's own reader.

use std::io::Cursor;

use arrow_array::cast::AsArray;
use arrow_array::types::{UInt8Type, UInt64Type};
use nestrace_trace::schema::{MAX_BATCH_ROWS, schema};
use nestrace_trace::{Batch, Event, StreamReader, StreamWriter};
use proptest::prelude::*;

use super::{Recording, any_batches, event, read};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn events_come_back(batches in any_batches()) {
        let recording = Recording::of(batches);
        for index in [Some(recording.index.as_slice()), None] {
            let reading = read(&recording.stream, index).unwrap();
            prop_assert_eq!(reading.rows(), recording.batches.concat());
            prop_assert!(reading.closed);
            prop_assert_eq!(reading.kinds.len(), usize::from(index.is_none()));
        }
        let mut reader =
            StreamReader::new(Cursor::new(&recording.stream), Some(&recording.index[..])).unwrap();
        let rows: Vec<Event> = reader.events().collect();
        prop_assert_eq!(rows, recording.batches.concat());
        prop_assert!(reader.events().next().is_none());
    }
}

#[test]
fn an_empty_stream_is_whole() {
    let recording = Recording::of(Vec::new());
    let reading = read(&recording.stream, Some(&recording.index)).unwrap();
    assert!(reading.batches.is_empty() && reading.kinds.is_empty() && reading.closed);
}

#[test]
fn a_batch_closes_by_itself() {
    let n = MAX_BATCH_ROWS as u64 * 2 + 777;
    let mut writer = StreamWriter::new(Vec::new(), Vec::new()).unwrap();
    for n in 0..n {
        writer.push(&event(n)).unwrap();
    }
    assert_eq!(writer.rows_pending(), 777);
    assert_eq!(writer.written().rows, n - 777);
    assert!(writer.flush_batch().unwrap() > 0);
    assert_eq!(writer.flush_batch().unwrap(), 0);
    writer.finish().unwrap();
    let (stream, index) = writer.into_inner();
    let mut reader = StreamReader::new(Cursor::new(stream), Some(&index[..])).unwrap();
    let mut batch = Batch::default();
    let mut rows = Vec::new();
    while reader.read_into(&mut batch) {
        rows.push(batch.n_rows());
    }
    assert_eq!(rows, [MAX_BATCH_ROWS, MAX_BATCH_ROWS, 777]);
}

#[test]
fn arrow_reads_the_same() {
    let recording = Recording::small();
    let reader =
        arrow_ipc::reader::StreamReader::try_new(Cursor::new(&recording.stream), None).unwrap();
    assert_eq!(*reader.schema(), schema());
    let batches: Vec<_> = reader.map(Result::unwrap).collect();
    assert_eq!(batches.len(), recording.batches.len());
    for (found, expected) in batches.iter().zip(&recording.batches) {
        let objects = found
            .column_by_name("object")
            .unwrap()
            .as_primitive::<UInt64Type>();
        let kinds = found
            .column_by_name("kind")
            .unwrap()
            .as_primitive::<UInt8Type>();
        let found: Vec<_> = objects.values().iter().zip(kinds.values()).collect();
        let expected: Vec<_> = expected.iter().map(|e| (&e.object, &e.kind)).collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn a_range_leaves_batches_out() {
    let recording = Recording::small();
    let index = Some(recording.index.as_slice());
    let reader = StreamReader::new(Cursor::new(&recording.stream), index).unwrap();
    let mut reader = reader.within(220_000, 300_000);
    let rows: Vec<Event> = reader.events().collect();
    assert_eq!(rows, recording.batches[1..3].concat());
    assert!(reader.diagnostics().is_empty() && reader.is_closed());
}

/// The bytes of the format: whoever changes them must change its version.
#[test]
fn the_index_has_its_layout() {
    let recording = Recording::small();
    assert_eq!(&recording.index[..16], b"NESTIDX\n\x01\0\0\0\x30\0\0\0");
    let names: Vec<String> = schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(
        names.join(" "),
        "ts_ns kind sub cpu tid dev object related offset bytes flags inode file_offset \
         owner_dev iocb origin end_io cgroup aux"
    );
    let entries = recording.entries();
    let mut end = 0;
    for entry in &entries {
        assert_eq!(entry.offset, end);
        end += entry.length;
        let bytes = &recording.stream[entry.offset as usize..end as usize];
        assert_eq!(entry.crc, crc32fast::hash(bytes));
    }
    assert_eq!(end as usize, recording.stream.len());
    assert_eq!(entries[2].rows, 40);
    assert_eq!(
        (entries[2].first_ts_ns, entries[2].last_ts_ns),
        (200_000, 239_000)
    );
}

/// The recorder writes in one thread what it drains in another.
#[test]
fn writers_and_readers_move_between_threads() {
    fn moves<T: Send>() {}
    moves::<StreamWriter<Vec<u8>, Vec<u8>>>();
    moves::<StreamReader<Cursor<Vec<u8>>, Cursor<Vec<u8>>>>();
    moves::<Batch>();
}

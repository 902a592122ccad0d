//! Streams, whole and damaged, through the public interface.

mod damage;
mod disk_full;
mod foreign;
mod repair;
mod round_trip;

use std::io::Cursor;

use nestrace_trace::index::{ENTRY_LEN, Entry, EntryKind, HEADER_LEN};
use nestrace_trace::{DiagnosticKind, Event, OpenError, StreamReader, StreamWriter};
use proptest::prelude::*;

/// A recording in memory.
struct Recording {
    stream: Vec<u8>,
    index: Vec<u8>,
    batches: Vec<Vec<Event>>,
}

impl Recording {
    /// Writes `batches`, one flush after each.
    fn of(batches: Vec<Vec<Event>>) -> Self {
        let mut writer = StreamWriter::new(Vec::new(), Vec::new()).unwrap();
        for batch in &batches {
            for event in batch {
                writer.push(event).unwrap();
            }
            writer.flush_batch().unwrap();
        }
        let written = writer.finish().unwrap();
        let (stream, index) = writer.into_inner();
        assert_eq!(written.stream_bytes, stream.len() as u64);
        assert_eq!(written.index_bytes, index.len() as u64);
        assert_eq!(
            written.rows as usize,
            batches.iter().map(Vec::len).sum::<usize>()
        );
        Self {
            stream,
            index,
            batches,
        }
    }

    /// A few batches of a few rows, small enough to damage each byte in turn.
    fn small() -> Self {
        let batch = |n: u64, first: u64| (first..first + n).map(event).collect();
        Self::of(vec![
            batch(3, 100),
            batch(40, 200),
            batch(1, 300),
            batch(9, 400),
        ])
    }

    fn entries(&self) -> Vec<Entry> {
        let (entries, rest) = self.index[HEADER_LEN..].as_chunks::<ENTRY_LEN>();
        assert!(rest.is_empty());
        entries
            .iter()
            .map(|bytes| Entry::from_bytes(bytes).unwrap())
            .collect()
    }

    /// Where each batch lies in the stream, and its rows.
    fn placed(&self) -> Vec<(Entry, &[Event])> {
        let entries = self
            .entries()
            .into_iter()
            .filter(|entry| entry.kind == EntryKind::Batch);
        entries
            .zip(self.batches.iter().map(Vec::as_slice))
            .collect()
    }
}

/// An event that differs from every other in most columns, as real ones do.
fn event(n: u64) -> Event {
    Event {
        ts_ns: n * 1_000,
        kind: (n % 9) as u8,
        cpu: (n % 2) as u16,
        tid: 4711,
        dev: 7 << 20,
        object: 0xffff_9e8a_0000_0000 + (n % 7) * 256,
        related: n.wrapping_mul(n),
        offset: n << 12,
        bytes: 4096,
        aux: n as u32,
        ..Event::default()
    }
}

/// What came out of a reading.
#[derive(Debug)]
struct Reading {
    /// The offset of each batch and its rows.
    batches: Vec<(u64, Vec<Event>)>,
    kinds: Vec<DiagnosticKind>,
    rows_lost: u64,
    closed: bool,
}

impl Reading {
    fn rows(&self) -> Vec<Event> {
        self.batches
            .iter()
            .flat_map(|(_, rows)| rows.clone())
            .collect()
    }
}

fn read(stream: &[u8], index: Option<&[u8]>) -> Result<Reading, OpenError> {
    let mut reader = StreamReader::new(Cursor::new(stream), index)?;
    let batches = reader
        .by_ref()
        .map(|batch| (batch.stream_offset(), batch.events().collect()))
        .collect();
    Ok(Reading {
        batches,
        kinds: reader
            .diagnostics()
            .iter()
            .map(|diagnostic| diagnostic.kind)
            .collect(),
        rows_lost: reader
            .diagnostics()
            .iter()
            .filter_map(|d| d.rows_lost)
            .sum(),
        closed: reader.is_closed(),
    })
}

/// Any event at all.
fn any_event() -> impl Strategy<Value = Event> {
    let ids = (
        any::<u64>(),
        any::<u8>(),
        any::<u8>(),
        any::<u16>(),
        any::<u32>(),
        any::<u32>(),
    );
    let place = (
        any::<u64>(),
        any::<u64>(),
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
    );
    let owner = (
        any::<u64>(),
        any::<u64>(),
        any::<u32>(),
        any::<u64>(),
        any::<u64>(),
    );
    let rest = (any::<u8>(), any::<u64>(), any::<u32>());
    (ids, place, owner, rest).prop_map(|(ids, place, owner, rest)| Event {
        ts_ns: ids.0,
        kind: ids.1,
        sub: ids.2,
        cpu: ids.3,
        tid: ids.4,
        dev: ids.5,
        object: place.0,
        related: place.1,
        offset: place.2,
        bytes: place.3,
        flags: place.4,
        inode: owner.0,
        file_offset: owner.1,
        owner_dev: owner.2,
        iocb: owner.3,
        origin: owner.4,
        end_io: rest.0,
        cgroup: rest.1,
        aux: rest.2,
    })
}

/// Batches that are not empty.
fn any_batches() -> impl Strategy<Value = Vec<Vec<Event>>> {
    let batch = prop_oneof![
        prop::collection::vec(any_event(), 1..40),
        (0u64..1 << 40, 1u64..400).prop_map(|(first, n)| (first..first + n).map(event).collect()),
    ];
    prop::collection::vec(batch, 0..6)
}

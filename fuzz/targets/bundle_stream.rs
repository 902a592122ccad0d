//! Any bytes as a stream and its index: no panic, no endless search, no more rows than a batch has; a
//! stream that ends early gives the same rows up to there, and a repaired one gives all of them again.
//!
//! Byte 0 of the input says how the index is made: 0 none; 1 from the input itself (two bytes of
//! length, then the index); otherwise an index with correct checksums is computed, so that damage
//! reaches the decoder that checksums would keep away from it.

use std::io::Cursor;

use nestrace_trace::index::{self, Entry, EntryKind};
use nestrace_trace::repair::copy_whole;
use nestrace_trace::schema::MAX_BATCH_ROWS;
use nestrace_trace::{Batch, Damage, Event, StreamReader, TimeOrdered};

/// Checks one input.
pub fn check(input: &[u8]) {
    let Some((mode, rest)) = input.split_first() else {
        return;
    };
    match mode {
        0 => read(rest, None),
        1 => {
            let Some((len, rest)) = rest.split_first_chunk::<2>() else {
                return;
            };
            let len = usize::from(u16::from_le_bytes(*len)).min(rest.len());
            let (index, stream) = rest.split_at(len);
            read(stream, Some(index));
        }
        _ => read(rest, Some(&sound_index(rest))),
    }
}

fn read(stream: &[u8], index: Option<&[u8]>) {
    let Ok(mut reader) = StreamReader::new(Cursor::new(stream), index) else {
        return;
    };
    let mut batch = Batch::default();
    let mut rows = Vec::new();
    while reader.read_into(&mut batch) {
        let columns = batch.columns();
        assert!(batch.n_rows() > 0 && batch.n_rows() <= MAX_BATCH_ROWS);
        assert_eq!(columns.ts_ns.len(), batch.n_rows());
        assert_eq!(columns.aux.len(), batch.n_rows());
        rows.extend(batch.events().filter(is_recorded));
    }
    assert!(reader.diagnostics().len() <= 1000);
    if let Ok(mut reader) = StreamReader::new(Cursor::new(stream), index) {
        let recorded = reader.events().filter(is_recorded);
        assert_eq!(TimeOrdered::new(recorded).count(), rows.len());
    }
    repaired(stream, index, &rows);
    let cut = crc32fast::hash(stream) as usize % (stream.len() + 1);
    if let Ok(mut reader) = StreamReader::new(Cursor::new(&stream[..cut]), index) {
        let start: Vec<Event> = reader.events().filter(is_recorded).collect();
        assert!(rows.starts_with(&start), "cut at {cut}");
    }
}

/// Marks of what was left out are no rows that somebody recorded.
fn is_recorded(event: &Event) -> bool {
    !event.is_gap()
}

/// The repaired stream has these rows, and nothing is wrong with it.
fn repaired(stream: &[u8], index: Option<&[u8]>, rows: &[Event]) {
    let Ok(mut reader) = StreamReader::new(Cursor::new(stream), index) else {
        return;
    };
    let (mut whole, mut whole_index) = (Vec::new(), Vec::new());
    copy_whole(&mut reader, &mut whole, &mut whole_index, |_| {}).expect("memory takes all");
    let mut reader =
        StreamReader::new(Cursor::new(&whole), Some(&whole_index[..])).expect("our own output");
    let again: Vec<Event> = reader.events().filter(is_recorded).collect();
    assert_eq!(again, rows);
    assert_eq!(Damage::of(reader.diagnostics()), Damage::default());
    assert!(reader.is_closed());
}

/// An index that calls whatever stands in the stream correct.
fn sound_index(stream: &[u8]) -> Vec<u8> {
    let mut index = index::header().to_vec();
    let mut at = 0;
    while let Some(length) = message_length(&stream[at..]) {
        let end = (at + length).min(stream.len());
        let kind = match (at, length) {
            (0, _) => EntryKind::Schema,
            (_, 8) => EntryKind::End,
            _ => EntryKind::Batch,
        };
        let entry = Entry {
            offset: at as u64,
            length: (end - at) as u64,
            first_ts_ns: 0,
            last_ts_ns: u64::MAX,
            crc: crc32fast::hash(&stream[at..end]),
            rows: 1,
            kind,
        };
        index.extend_from_slice(&entry.to_bytes());
        at = end;
    }
    index
}

fn message_length(bytes: &[u8]) -> Option<usize> {
    let (prefix, rest) = bytes.split_first_chunk::<8>()?;
    let metadata = u32::from_le_bytes([prefix[4], prefix[5], prefix[6], prefix[7]]) as usize;
    if metadata == 0 {
        return Some(8);
    }
    let message = arrow_ipc::root_as_message(rest.get(..metadata)?).ok()?;
    let body = usize::try_from(message.bodyLength()).ok()?;
    8usize.checked_add(metadata)?.checked_add(body)
}

//! Cut and damaged streams give every whole batch and no other row.

use std::io::Cursor;

use nestrace_trace::DiagnosticKind::{self, IndexMissing, NotClosed, TrailingBytes};
use nestrace_trace::index::{ENTRY_LEN, HEADER_LEN};
use nestrace_trace::{Event, StreamReader};
use proptest::prelude::*;

use super::{Reading, Recording, any_batches, read};

/// Asserts that every batch of `reading` is one of `recording`; gives the numbers of those there.
fn genuine(reading: &Reading, recording: &Recording) -> Vec<usize> {
    let rows = |rows: &[_]| recording.batches.iter().position(|batch| batch == rows);
    reading
        .batches
        .iter()
        .map(|(offset, batch)| {
            rows(batch).unwrap_or_else(|| panic!("the batch at {offset} has rows of no batch"))
        })
        .collect()
}

/// The batches that lie wholly before `cut`.
fn whole_before(recording: &Recording, cut: usize) -> Vec<usize> {
    let placed = recording.placed();
    let whole = placed
        .iter()
        .filter(|(entry, _)| (entry.offset + entry.length) as usize <= cut);
    (0..whole.count()).collect()
}

#[test]
fn a_stream_cut_at_any_byte_gives_every_whole_batch() {
    let recording = Recording::small();
    for cut in 0..recording.stream.len() {
        let stream = &recording.stream[..cut];
        let whole = whole_before(&recording, cut);
        for index in [Some(recording.index.as_slice()), None] {
            let reading = read(stream, index).unwrap();
            assert_eq!(
                genuine(&reading, &recording),
                whole,
                "cut at {cut}, {reading:?}"
            );
            assert!(!reading.closed);
            assert!(
                reading.kinds.iter().any(|kind| *kind != IndexMissing),
                "cut at {cut}"
            );
            if index.is_some() && cut > 0 {
                let lost: usize = recording.batches[whole.len()..].iter().map(Vec::len).sum();
                assert_eq!(reading.rows_lost as usize, lost, "cut at {cut}");
            }
        }
    }
}

/// A crash leaves a stream and an index that both end somewhere, the index not after the stream.
#[test]
fn an_index_cut_at_any_byte_costs_nothing() {
    let recording = Recording::small();
    let all: Vec<usize> = (0..recording.batches.len()).collect();
    for cut in 0..recording.index.len() {
        let reading = read(&recording.stream, Some(&recording.index[..cut])).unwrap();
        assert_eq!(
            genuine(&reading, &recording),
            all,
            "cut at {cut}, {reading:?}"
        );
        assert!(reading.closed);
    }
}

#[test]
fn a_damaged_byte_costs_one_batch_at_most() {
    let recording = Recording::small();
    let mut stream = recording.stream.clone();
    for at in 0..stream.len() {
        let flip = 1 << (at % 8);
        stream[at] ^= flip;
        let hit = recording.placed().iter().position(|(entry, _)| {
            (entry.offset..entry.offset + entry.length).contains(&(at as u64))
        });
        let left: Vec<usize> = (0..recording.batches.len())
            .filter(|n| Some(*n) != hit)
            .collect();
        for index in [Some(recording.index.as_slice()), None] {
            let reading = match read(&stream, index) {
                Ok(reading) => reading,
                // Without an index, the first four bytes alone say what the file is.
                Err(_) if index.is_none() && at < 4 => continue,
                Err(error) => panic!("byte {at}: {error}"),
            };
            let found = genuine(&reading, &recording);
            assert_eq!(found, left, "byte {at}, {reading:?}");
            let expected: usize = hit.map_or(0, |hit| recording.batches[hit].len());
            if index.is_some() {
                assert_eq!(reading.rows_lost as usize, expected, "byte {at}");
            }
            let told = reading.kinds.iter().any(|kind| *kind != IndexMissing);
            assert!(told, "byte {at}: nothing was told");
        }
        stream[at] ^= flip;
    }
    assert_eq!(stream, recording.stream);
}

/// Whoever takes events one by one learns where some are missing, of each source that begins and ends something.
#[test]
fn a_batch_that_was_left_out_is_marked_in_its_place() {
    let recording = Recording::small();
    for (hit, (entry, _)) in recording.placed().iter().enumerate() {
        let mut stream = recording.stream.clone();
        stream[(entry.offset + entry.length / 2) as usize] ^= 1;
        for index in [Some(recording.index.as_slice()), None] {
            let index = index.map(Cursor::new);
            let mut reader = StreamReader::new(Cursor::new(&stream), index.clone()).unwrap();
            let events: Vec<Event> = reader.events().collect();
            let place = events.iter().position(Event::is_gap).expect("a mark");
            let before: usize = recording.batches[..hit].iter().map(Vec::len).sum();
            assert_eq!(place, before, "batch {hit}");
            let marks: Vec<u64> = events
                .iter()
                .filter(|event| event.is_gap())
                .map(|event| event.ts_ns)
                .collect();
            assert_eq!(marks.len(), 8, "batch {hit}");
            if index.is_some() {
                let times = [entry.first_ts_ns, entry.last_ts_ns];
                assert_eq!([marks[0], marks[7]], times, "batch {hit}");
            }
        }
    }
}

#[test]
fn a_damaged_index_costs_nothing() {
    let recording = Recording::small();
    let all: Vec<usize> = (0..recording.batches.len()).collect();
    let mut index = recording.index.clone();
    for at in 0..index.len() {
        let flip = 1 << (at % 8);
        index[at] ^= flip;
        let reading = read(&recording.stream, Some(&index)).unwrap();
        assert_eq!(genuine(&reading, &recording), all, "byte {at}, {reading:?}");
        // The minor version alone may differ without a word.
        assert_eq!(
            reading.kinds.is_empty(),
            (10..12).contains(&at),
            "byte {at}"
        );
        index[at] ^= flip;
    }
}

#[test]
fn an_entry_that_is_missing_costs_nothing() {
    let recording = Recording::small();
    let all: Vec<usize> = (0..recording.batches.len()).collect();
    for entry in 0..recording.entries().len() {
        let mut index = recording.index.clone();
        let at = HEADER_LEN + entry * ENTRY_LEN;
        index.drain(at..at + ENTRY_LEN);
        let reading = read(&recording.stream, Some(&index)).unwrap();
        assert_eq!(
            genuine(&reading, &recording),
            all,
            "entry {entry}, {reading:?}"
        );
    }
}

/// The index of one recording beside the stream of another is found out.
#[test]
fn an_index_of_another_stream_gives_no_rows_of_its_own() {
    let recording = Recording::small();
    let other = Recording::of(vec![(0..1000).map(super::event).collect()]);
    let reading = read(&recording.stream, Some(&other.index)).unwrap();
    genuine(&reading, &recording);
    assert!(!reading.kinds.is_empty());
}

#[test]
fn bytes_after_the_end_are_told() {
    let recording = Recording::small();
    let stream = [recording.stream.as_slice(), b"tail"].concat();
    let reading = read(&stream, Some(&recording.index)).unwrap();
    assert_eq!(reading.kinds, [TrailingBytes]);
    assert!(reading.closed);
}

#[test]
fn a_recording_that_was_killed_says_so() {
    let recording = Recording::small();
    let last = recording.entries().len() - 1;
    let stream = &recording.stream[..recording.stream.len() - 8];
    let index = &recording.index[..HEADER_LEN + last * ENTRY_LEN];
    let reading = read(stream, Some(index)).unwrap();
    assert_eq!(reading.kinds, [NotClosed]);
    assert_eq!(reading.rows(), recording.batches.concat());
}

#[test]
fn a_loss_is_told_in_words() {
    let recording = Recording::small();
    let mut stream = recording.stream.clone();
    let (entry, _) = recording.placed()[1];
    stream[entry.offset as usize + 50] ^= 1;
    let index = recording.index.as_slice();
    let mut reader = StreamReader::new(Cursor::new(stream), Some(index)).unwrap();
    let events = reader.events().filter(|event| !event.is_gap());
    assert_eq!(events.count(), 53 - 40);
    let told: Vec<String> = reader
        .diagnostics()
        .iter()
        .map(ToString::to_string)
        .collect();
    let place = format!("(byte {}, {} bytes)", entry.offset, entry.length);
    let expected = format!("a batch has a wrong checksum and was left out {place}, 40 events lost");
    assert_eq!(told, [expected]);
}

/// A stream made of nothing but beginnings must not be searched once for each of them.
#[test]
fn a_hostile_stream_ends_soon() {
    let begun = std::time::Instant::now();
    for word in [
        *b"\xff\xff\xff\xff\xf8\xff\0\0",
        [0xff; 8],
        *b"\xff\xff\xff\xff\x08\0\0\0",
    ] {
        let stream = word.repeat(256 << 10);
        let reading = read(&stream, None).unwrap();
        assert!(reading.batches.is_empty());
    }
    // Searched once for each of a quarter of a million beginnings, it would take hours.
    assert!(begun.elapsed().as_secs() < 240, "{:?}", begun.elapsed());
}

/// What a disk or a careless copy does to a file.
#[derive(Clone, Debug)]
pub enum Damage {
    Flip { at: usize, bit: u8 },
    Zero { at: usize, len: usize },
    Remove { at: usize, len: usize },
    Insert { at: usize, bytes: Vec<u8> },
}

impl Damage {
    pub fn apply(&self, bytes: &mut Vec<u8>) {
        let len = bytes.len().max(1);
        match self {
            Self::Flip { at, bit } => {
                if let Some(byte) = bytes.get_mut(at % len) {
                    *byte ^= 1 << (bit % 8);
                }
            }
            Self::Zero { at, len: n } => {
                let at = at % len;
                bytes
                    .iter_mut()
                    .skip(at)
                    .take(*n)
                    .for_each(|byte| *byte = 0);
            }
            Self::Remove { at, len: n } => {
                let at = (at % len).min(bytes.len());
                let end = (at + n).min(bytes.len());
                bytes.drain(at..end);
            }
            Self::Insert { at, bytes: new } => {
                let at = at % (bytes.len() + 1);
                bytes.splice(at..at, new.iter().copied());
            }
        }
    }
}

pub fn any_damage() -> impl Strategy<Value = Damage> {
    prop_oneof![
        4 => (any::<usize>(), any::<u8>()).prop_map(|(at, bit)| Damage::Flip { at, bit }),
        1 => (any::<usize>(), 1usize..3000).prop_map(|(at, len)| Damage::Zero { at, len }),
        1 => (any::<usize>(), 1usize..3000).prop_map(|(at, len)| Damage::Remove { at, len }),
        1 => (any::<usize>(), prop::collection::vec(any::<u8>(), 1..200))
            .prop_map(|(at, bytes)| Damage::Insert { at, bytes }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn no_damage_invents_a_row(
        batches in any_batches(),
        stream_damage in prop::collection::vec(any_damage(), 0..6),
        index_damage in prop::option::of(prop::collection::vec(any_damage(), 0..4)),
    ) {
        let recording = Recording::of(batches);
        let mut stream = recording.stream.clone();
        stream_damage.iter().for_each(|damage| damage.apply(&mut stream));
        let index = index_damage.map(|damages| {
            let mut index = recording.index.clone();
            damages.iter().for_each(|damage| damage.apply(&mut index));
            index
        });
        if let Ok(reading) = read(&stream, index.as_deref()) {
            let found = genuine(&reading, &recording);
            let lost_or_fine = found.len() == recording.batches.len()
                || reading.kinds.iter().any(|kind| !is_quiet(*kind));
            prop_assert!(lost_or_fine, "batches were lost without a word: {:?}", reading);
        }
    }
}

/// Diagnostics that tell of no loss.
fn is_quiet(kind: DiagnosticKind) -> bool {
    matches!(kind, IndexMissing)
}

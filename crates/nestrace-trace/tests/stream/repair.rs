//! Repaired streams: whole, with nothing to say about them, and with every batch that was whole.

use std::io::Cursor;

use nestrace_trace::repair::{Copied, copy_whole};
use nestrace_trace::{Damage, DiagnosticKind, Event, OpenError, StreamReader};
use proptest::prelude::*;

use super::damage::any_damage;
use super::foreign::{u64s, written};
use super::{Reading, Recording, any_batches, read};

/// The new stream, its index and what was wrong with the old one.
type Repaired = (Vec<u8>, Vec<u8>, Copied, Damage);

fn repaired(stream: &[u8], index: Option<&[u8]>) -> Result<Repaired, OpenError> {
    let mut reader = StreamReader::new(Cursor::new(stream), index)?;
    let (mut out, mut out_index, mut seen) = (Vec::new(), Vec::new(), 0);
    let copied = copy_whole(&mut reader, &mut out, &mut out_index, |batch| {
        seen += batch.n_rows() as u64;
    });
    let copied = copied.unwrap();
    assert_eq!(seen, copied.rows);
    Ok((out, out_index, copied, Damage::of(reader.diagnostics())))
}

/// The events that were recorded: of what was left out a repaired stream has marks.
fn without_marks(reading: &Reading) -> Vec<Event> {
    let mut rows = reading.rows();
    rows.retain(|event| !event.is_gap());
    rows
}

/// Repairs and asserts that the new stream has what the old one has, and nothing to say.
fn check(stream: &[u8], index: Option<&[u8]>) -> Result<Copied, OpenError> {
    let before = read(stream, index)?;
    let (out, out_index, copied, damage) = repaired(stream, index)?;
    for index in [Some(out_index.as_slice()), None] {
        let after = read(&out, index).unwrap();
        assert_eq!(without_marks(&after), without_marks(&before));
        assert!(after.closed && after.rows_lost == 0, "{after:?}");
        let odd = |kind: &&DiagnosticKind| **kind != DiagnosticKind::IndexMissing;
        assert_eq!(after.kinds.iter().find(odd), None);
        // A batch of marks was not recorded, but added.
        let recorded = after.batches.iter();
        let recorded =
            recorded.filter(|(_, rows)| rows.is_empty() || !rows.iter().all(Event::is_gap));
        assert_eq!(recorded.count() as u64, copied.batches);
    }
    assert_eq!(damage.rows_lost, before.rows_lost);
    let again = repaired(&out, Some(&out_index)).unwrap();
    assert_eq!((&again.0, &again.1), (&out, &out_index), "repaired twice");
    assert_eq!(again.3, Damage::default());
    Ok(copied)
}

#[test]
fn a_good_stream_stays_as_it_is() {
    let recording = Recording::small();
    let (out, index, copied, damage) = repaired(&recording.stream, Some(&recording.index)).unwrap();
    assert_eq!((out, index), (recording.stream.clone(), recording.index));
    assert_eq!((copied.batches, copied.rows), (4, 53));
    assert_eq!(damage, Damage::default());
    let without_index = repaired(&recording.stream, None).unwrap();
    assert_eq!(without_index.0, recording.stream);
}

#[test]
fn cut_and_flipped_streams_can_be_repaired() {
    let recording = Recording::small();
    let index = Some(recording.index.as_slice());
    for cut in 0..recording.stream.len() {
        // Every cut, half of them with the index.
        let index = index.filter(|_| cut % 2 == 0);
        check(&recording.stream[..cut], index).unwrap();
    }
    let mut stream = recording.stream.clone();
    for at in (0..stream.len()).step_by(7) {
        stream[at] ^= 1 << (at % 8);
        let copied = check(&stream, index).unwrap();
        assert!(copied.batches >= 3, "byte {at}");
        stream[at] ^= 1 << (at % 8);
    }
}

/// What another release wrote is kept with the columns that this one does not know.
#[test]
fn unknown_columns_are_kept() {
    let columns = [
        ("ts_ns", u64s(&[100, 200])),
        ("weight", u64s(&[3, 4])),
        ("object", u64s(&[7, 8])),
    ];
    let (stream, index) = written(&columns, Some("1.9"), None);
    let (out, out_index, ..) = repaired(&stream[..stream.len() - 8], Some(&index)).unwrap();
    assert_eq!(out, stream);
    let after = read(&out, Some(&out_index)).unwrap();
    assert!(after.closed && after.batches.len() == 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn any_damage_can_be_repaired(
        batches in any_batches(),
        damage in prop::collection::vec(any_damage(), 0..6),
        indexed in any::<bool>(),
    ) {
        let recording = Recording::of(batches);
        let mut stream = recording.stream.clone();
        damage.iter().for_each(|damage| damage.apply(&mut stream));
        let _ = check(&stream, indexed.then_some(&recording.index));
    }
}

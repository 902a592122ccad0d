//! The newest messages of a stream, kept in memory: a flight recorder's.
//!
//! A [`StreamWriter`] writes into a [`StreamRing`] as it does into files. The ring keeps whole messages, compressed, and
//! drops the oldest: those that are too old, and as many as its bound in bytes asks for. What later messages cannot be
//! read without survives: the schema, and the newest name of each thread. At any moment a copy can be taken to files
//! ([`StreamCopy`]); it begins with what is kept and goes on with what comes.
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::arithmetic_side_effects,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic
    )
)]

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::index::{self, ENTRY_LEN, Entry, EntryKind};
use crate::message::END_OF_STREAM;
use crate::{Event, Kind, StreamWriter, WriteError};

/// Bytes that a message costs beside its own.
const OVERHEAD: u64 = 160;
/// Names of threads that are kept; with more, the older half is dropped.
const MAX_NAMES: usize = 16_384;

/// One message of a stream.
#[derive(Clone, Debug)]
pub struct Kept {
    bytes: Arc<[u8]>,
    entry: Entry,
    /// When it came, on the clock of [`StreamRing::advance`].
    came_ns: u64,
}

impl Kept {
    /// Events of the message.
    #[must_use]
    pub const fn rows(&self) -> u32 {
        self.entry.rows
    }

    fn cost(&self) -> u64 {
        (self.bytes.len() as u64).saturating_add(OVERHEAD)
    }
}

#[derive(Debug, Default)]
struct State {
    /// The message that is being written.
    partial: Vec<u8>,
    schema: Option<Kept>,
    batches: VecDeque<Kept>,
    names: BTreeMap<u32, Event>,
    bytes: u64,
    max_bytes: u64,
    now_ns: u64,
    /// When the newest message came that was dropped because there was no more room for it.
    crowded_out_ns: Option<u64>,
    copy: Option<Outgoing>,
}

/// What a copy has not taken yet.
#[derive(Debug, Default)]
struct Outgoing {
    messages: VecDeque<Kept>,
    /// Bytes that the copy may still get.
    room: u64,
    bytes: u64,
    rows_refused: u64,
    /// The stamp of its last event.
    last_ns: u64,
    has_ended: bool,
}

impl Outgoing {
    fn push(&mut self, message: &Kept) {
        if self.has_ended {
            return;
        }
        let length = message.bytes.len() as u64;
        match self.room.checked_sub(length) {
            Some(room) if self.rows_refused == 0 => {
                self.room = room;
                self.bytes = self.bytes.saturating_add(length);
                self.last_ns = self.last_ns.max(message.entry.last_ts_ns);
                self.messages.push_back(message.clone());
            }
            // What comes after a gap would be taken for what comes after the message before it.
            _ => {
                let rows = u64::from(message.entry.rows);
                self.rows_refused = self.rows_refused.saturating_add(rows);
            }
        }
    }
}

/// The newest messages of one stream. A clone is the same ring.
#[derive(Clone, Debug, Default)]
pub struct StreamRing(Arc<Mutex<State>>);

/// Takes the bytes of a stream, or of its index, into a ring.
pub struct RingWriter {
    ring: StreamRing,
    is_index: bool,
}

impl StreamRing {
    /// One that keeps this many bytes at most.
    #[must_use]
    pub fn new(max_bytes: u64) -> Self {
        let ring = Self::default();
        ring.lock().max_bytes = max_bytes;
        ring
    }

    /// A writer of events into it.
    ///
    /// # Errors
    /// Where zstd gives no context.
    pub fn stream_writer(&self) -> Result<StreamWriter<RingWriter, RingWriter>, WriteError> {
        let [stream, index] = self.writers();
        StreamWriter::new(stream, index)
    }

    /// What takes the bytes of the stream and of its index.
    #[must_use]
    pub fn writers(&self) -> [RingWriter; 2] {
        [false, true].map(|is_index| RingWriter {
            ring: self.clone(),
            is_index,
        })
    }

    /// It is `now_ns`; messages that came before `oldest_ns` are dropped.
    pub fn advance(&self, now_ns: u64, oldest_ns: u64) {
        let mut state = self.lock();
        state.now_ns = now_ns;
        while state
            .batches
            .front()
            .is_some_and(|batch| batch.came_ns < oldest_ns)
        {
            state.drop_oldest();
        }
    }

    /// From now on it keeps this many bytes at most.
    pub fn set_max_bytes(&self, max_bytes: u64) {
        let mut state = self.lock();
        state.max_bytes = max_bytes;
        state.fit();
    }

    /// Bytes that are kept.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.lock().bytes
    }

    /// Looks at an event that is written: names of threads are kept.
    pub fn note(&self, event: &Event) {
        if event.kind() == Some(Kind::Thread) {
            let names = &mut self.lock().names;
            if names.len() >= MAX_NAMES && !names.contains_key(&event.tid) {
                let mut times: Vec<u64> = names.values().map(|name| name.ts_ns).collect();
                let (_, middle_ns, _) = times.select_nth_unstable(MAX_NAMES / 2);
                let middle_ns = *middle_ns;
                names.retain(|_, name| name.ts_ns > middle_ns);
            }
            names.insert(event.tid, *event);
        }
    }

    /// When the oldest message came that is kept, and the stamp of its first event; `None` where none is.
    #[must_use]
    pub fn oldest(&self) -> Option<(u64, u64)> {
        let state = self.lock();
        let oldest = state.batches.front()?;
        Some((oldest.came_ns, oldest.entry.first_ts_ns))
    }

    /// When the newest message came that was dropped because there was no more room for it, and not for its age.
    #[must_use]
    pub fn crowded_out_ns(&self) -> Option<u64> {
        self.lock().crowded_out_ns
    }

    /// Bytes that the copy got so far.
    #[must_use]
    pub fn copied_bytes(&self) -> u64 {
        self.lock().copy.as_ref().map_or(0, |copy| copy.bytes)
    }

    /// Begins a copy of what is kept and what comes, of `max_bytes` at most. A copy that was begun before is over.
    ///
    /// # Errors
    /// Where the names of threads cannot be compressed.
    pub fn begin_copy(&self, max_bytes: u64) -> Result<(), WriteError> {
        let names = {
            let state = self.lock();
            let oldest = state.batches.front();
            let first_ns = oldest.map_or(0, |batch| batch.entry.first_ts_ns);
            let names = state.names.values();
            let names = names.map(|name| Event {
                ts_ns: if first_ns > 0 { first_ns } else { name.ts_ns },
                ..*name
            });
            names.collect::<Vec<_>>()
        };
        let names = encoded(&names)?;
        let mut state = self.lock();
        let mut copy = Outgoing {
            room: max_bytes,
            ..Outgoing::default()
        };
        let schema = state.schema.iter();
        for message in schema.chain(&names).chain(&state.batches) {
            copy.push(message);
        }
        state.copy = Some(copy);
        Ok(())
    }

    /// The next message of the copy, if there is one.
    #[must_use]
    pub fn take_copied(&self) -> Option<Kept> {
        self.lock().copy.as_mut()?.messages.pop_front()
    }

    /// Events that found no room in the copy.
    #[must_use]
    pub fn rows_refused(&self) -> u64 {
        let state = self.lock();
        state.copy.as_ref().map_or(0, |copy| copy.rows_refused)
    }

    /// The stamp of the last event that found room in the copy; `None` where all have.
    #[must_use]
    pub fn full_at_ns(&self) -> Option<u64> {
        let state = self.lock();
        let copy = state.copy.as_ref()?;
        (copy.rows_refused > 0).then_some(copy.last_ns)
    }

    /// The copy gets nothing more; what it has not taken, it still can.
    pub fn end_copy(&self) {
        if let Some(copy) = &mut self.lock().copy {
            copy.has_ended = true;
        }
    }

    /// The copy is over.
    pub fn forget_copy(&self) {
        self.lock().copy = None;
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked has left whole messages.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn take_entry(&mut self, entry: Entry) {
        let message = Kept {
            bytes: std::mem::take(&mut self.partial).into(),
            entry,
            came_ns: self.now_ns,
        };
        match entry.kind {
            EntryKind::Schema => {
                if let Some(copy) = &mut self.copy {
                    copy.push(&message);
                }
                self.schema = Some(message);
            }
            EntryKind::Batch => {
                if let Some(copy) = &mut self.copy {
                    copy.push(&message);
                }
                self.bytes = self.bytes.saturating_add(message.cost());
                self.batches.push_back(message);
                self.fit();
            }
            // Each copy has an end of its own.
            EntryKind::End | EntryKind::Other(_) => {}
        }
    }

    fn fit(&mut self) {
        while self.bytes > self.max_bytes
            && let Some(oldest) = self.batches.front()
        {
            self.crowded_out_ns = Some(oldest.came_ns);
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        if let Some(gone) = self.batches.pop_front() {
            self.bytes = self.bytes.saturating_sub(gone.cost());
        }
    }
}

impl Write for RingWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.ring.lock();
        if !self.is_index {
            state.partial.extend_from_slice(bytes);
        } else if let Ok(entry) = <&[u8; ENTRY_LEN]>::try_from(bytes) {
            // An entry is written as a whole, after the message that it describes.
            let entry = Entry::from_bytes(entry).ok_or(io::ErrorKind::InvalidData)?;
            state.take_entry(entry);
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A batch of these events, as a message; `None` of none.
fn encoded(events: &[Event]) -> Result<Option<Kept>, WriteError> {
    if events.is_empty() {
        return Ok(None);
    }
    let ring = StreamRing::new(u64::MAX);
    let mut writer = ring.stream_writer()?;
    for event in events {
        writer.push(event)?;
    }
    writer.flush_batch()?;
    let mut state = ring.lock();
    Ok(state.batches.pop_front())
}

/// Writes messages of a ring as a stream and its index.
#[derive(Debug)]
pub struct StreamCopy<W, I> {
    stream: W,
    index: I,
    stream_bytes: u64,
    index_bytes: u64,
}

impl<W: Write, I: Write> StreamCopy<W, I> {
    /// Begins with the header of the index.
    ///
    /// # Errors
    /// [`WriteError::Index`].
    pub fn new(stream: W, index: I) -> Result<Self, WriteError> {
        let mut copy = Self {
            stream,
            index,
            stream_bytes: 0,
            index_bytes: 0,
        };
        copy.write_index(&index::header())?;
        Ok(copy)
    }

    /// Writes a message, and its entry for where it is now.
    ///
    /// # Errors
    /// Where either cannot be written.
    pub fn write(&mut self, message: &Kept) -> Result<(), WriteError> {
        self.write_message(&message.bytes, message.entry)
    }

    /// Closes the stream.
    ///
    /// # Errors
    /// Where that cannot be written.
    pub fn finish(&mut self) -> Result<(), WriteError> {
        let end = Entry {
            offset: 0,
            length: END_OF_STREAM.len() as u64,
            first_ts_ns: 0,
            last_ts_ns: 0,
            crc: crc32fast::hash(&END_OF_STREAM),
            rows: 0,
            kind: EntryKind::End,
        };
        self.write_message(&END_OF_STREAM, end)
    }

    /// Bytes of the stream that were written.
    #[must_use]
    pub const fn stream_bytes(&self) -> u64 {
        self.stream_bytes
    }

    fn write_message(&mut self, bytes: &[u8], entry: Entry) -> Result<(), WriteError> {
        let offset = self.stream_bytes;
        let written = self.stream.write_all(bytes);
        let written = written.and_then(|()| self.stream.flush());
        written.map_err(|source| WriteError::Stream { offset, source })?;
        self.stream_bytes = offset.saturating_add(bytes.len() as u64);
        self.write_index(&Entry { offset, ..entry }.to_bytes())
    }

    fn write_index(&mut self, bytes: &[u8]) -> Result<(), WriteError> {
        let offset = self.index_bytes;
        let written = self.index.write_all(bytes);
        let written = written.and_then(|()| self.index.flush());
        written.map_err(|source| WriteError::Index { offset, source })?;
        self.index_bytes = offset.saturating_add(bytes.len() as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;
    use crate::StreamReader;

    fn event(ts_ns: u64) -> Event {
        Event {
            ts_ns,
            kind: Kind::Queue as u8,
            object: ts_ns.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ..Event::default()
        }
    }

    fn thread(ts_ns: u64, tid: u32, name: u64) -> Event {
        Event {
            ts_ns,
            kind: Kind::Thread as u8,
            tid,
            related: name,
            ..Event::default()
        }
    }

    struct Files {
        copy: StreamCopy<Vec<u8>, Vec<u8>>,
    }

    impl Files {
        fn new() -> Self {
            Self {
                copy: StreamCopy::new(Vec::new(), Vec::new()).unwrap(),
            }
        }

        fn take(&mut self, ring: &StreamRing) {
            while let Some(message) = ring.take_copied() {
                self.copy.write(&message).unwrap();
            }
        }

        /// Everything, read with and without the index.
        fn read(mut self) -> Vec<Event> {
            self.copy.finish().unwrap();
            let mut found = Vec::new();
            for index in [Some(Cursor::new(&self.copy.index)), None] {
                let has_index = index.is_some();
                let stream = Cursor::new(&self.copy.stream);
                let mut reader = StreamReader::new(stream, index).unwrap();
                let events: Vec<Event> = reader.events().collect();
                if has_index {
                    assert!(
                        reader.diagnostics().is_empty(),
                        "{:?}",
                        reader.diagnostics()
                    );
                }
                found.push(events);
            }
            assert_eq!(found[0], found[1]);
            found.remove(0)
        }
    }

    fn write(ring: &StreamRing, batches: impl IntoIterator<Item = Vec<Event>>) {
        let mut writer = ring.stream_writer().unwrap();
        for batch in batches {
            for event in batch {
                ring.note(&event);
                writer.push(&event).unwrap();
            }
            writer.flush_batch().unwrap();
        }
    }

    #[test]
    fn a_copy_is_what_was_kept_and_what_came() {
        let ring = StreamRing::new(u64::MAX);
        let mut writer = ring.stream_writer().unwrap();
        for now in 0..10u64 {
            ring.advance(now, now.saturating_sub(4));
            writer.push(&event(now)).unwrap();
            writer.flush_batch().unwrap();
        }
        assert_eq!(ring.oldest(), Some((5, 5)));
        ring.begin_copy(u64::MAX).unwrap();
        let mut files = Files::new();
        files.take(&ring);
        // The ring goes on, whatever the copy has taken.
        for now in 10..20u64 {
            ring.advance(now, now.saturating_sub(4));
            writer.push(&event(now)).unwrap();
            writer.flush_batch().unwrap();
        }
        ring.end_copy();
        writer.push(&event(20)).unwrap();
        writer.finish().unwrap();
        files.take(&ring);
        assert_eq!((ring.rows_refused(), ring.full_at_ns()), (0, None));
        assert_eq!(files.read(), (5..20).map(event).collect::<Vec<_>>());
        // A later copy has what the first one had too.
        ring.begin_copy(u64::MAX).unwrap();
        let mut files = Files::new();
        files.take(&ring);
        assert_eq!(files.read(), (15..=20).map(event).collect::<Vec<_>>());
    }

    #[test]
    fn names_of_threads_survive() {
        let ring = StreamRing::new(u64::MAX);
        let names = vec![thread(1, 7, 70), thread(2, 8, 80), thread(3, 7, 71)];
        write(&ring, [names, vec![event(10)], vec![event(11)]]);
        ring.advance(5, 0);
        let mut state = ring.lock();
        state.drop_oldest();
        drop(state);
        ring.begin_copy(u64::MAX).unwrap();
        let mut files = Files::new();
        files.take(&ring);
        let expected = vec![thread(10, 7, 71), thread(10, 8, 80), event(10), event(11)];
        assert_eq!(files.read(), expected);
    }

    #[test]
    fn names_are_bounded_and_the_newest_stay() {
        let ring = StreamRing::new(u64::MAX);
        for tid in 0..3 * MAX_NAMES as u32 {
            ring.note(&thread(u64::from(tid), tid, 1));
        }
        let state = ring.lock();
        assert!(state.names.len() <= MAX_NAMES);
        assert!(state.names.contains_key(&(3 * MAX_NAMES as u32 - 1)));
    }

    #[test]
    fn a_copy_has_a_bound_and_says_what_is_missing() {
        let ring = StreamRing::new(u64::MAX);
        write(&ring, (0..4).map(|n| vec![event(n)]));
        let one = {
            let state = ring.lock();
            let schema = state.schema.as_ref().unwrap().bytes.len();
            (schema, state.batches[0].bytes.len())
        };
        ring.begin_copy((one.0 + 2 * one.1 + one.1 / 2) as u64)
            .unwrap();
        assert_eq!((ring.rows_refused(), ring.full_at_ns()), (2, Some(1)));
        let mut files = Files::new();
        files.take(&ring);
        assert_eq!(files.read(), [event(0), event(1)]);
    }

    proptest! {
        #[test]
        fn the_bound_holds_and_the_newest_are_kept(
            rows in proptest::collection::vec(1usize..600, 1..20),
            max_bytes in 0u64..60_000,
        ) {
            let ring = StreamRing::new(max_bytes);
            let mut writer = ring.stream_writer().unwrap();
            let mut all = Vec::new();
            for n in rows {
                for _ in 0..n {
                    all.push(event(all.len() as u64));
                    writer.push(all.last().unwrap()).unwrap();
                }
                writer.flush_batch().unwrap();
                prop_assert!(ring.bytes() <= max_bytes);
                let sum: u64 = ring.lock().batches.iter().map(Kept::cost).sum();
                prop_assert_eq!(sum, ring.bytes());
            }
            ring.begin_copy(u64::MAX).unwrap();
            let mut files = Files::new();
            files.take(&ring);
            let read = files.read();
            prop_assert_eq!(&all[all.len() - read.len()..], &read[..]);
        }
    }
}

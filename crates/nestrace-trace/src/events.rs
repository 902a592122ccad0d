//! Turns the batches of a stream into rows.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::io::{Read, Seek};

use nestrace_abi::Source;

use crate::batch::Batch;
use crate::reader::Gap;
use crate::{Event, StreamReader};

/// The events of a stream in the order in which they were written; see [`StreamReader::events`].
pub struct Events<'r, R, I> {
    reader: &'r mut StreamReader<R, I>,
    batch: Batch,
    next_row: usize,
    /// Rows that were taken from the columns, a block at a time: gathering a row at a time would
    /// touch nineteen places of memory for each.
    block: Vec<Event>,
    next: usize,
}

/// What a stream can hold that has a beginning and an end.
const SOURCES: [Source; 4] = [Source::Block, Source::File, Source::HostFs, Source::Qemu];

/// Rows of a block of [`Events`].
const BLOCK_ROWS: usize = 256;

impl<R: Read + Seek, I: Read> StreamReader<R, I> {
    /// The events, in the order in which they were written.
    pub fn events(&mut self) -> Events<'_, R, I> {
        Events {
            reader: self,
            batch: Batch::default(),
            next_row: 0,
            block: Vec::new(),
            next: 0,
        }
    }
}

impl<R: Read + Seek, I: Read> Events<'_, R, I> {
    #[inline(never)]
    fn refill(&mut self) -> bool {
        if self.next_row >= self.batch.n_rows() {
            let last_ns = self.block.last().map(|event| event.ts_ns);
            let is_more = self.reader.read_into(&mut self.batch);
            if is_more {
                self.next_row = 0;
            }
            if let Some(gap) = self.reader.take_gap() {
                self.mark(gap, last_ns, is_more);
                return true;
            }
            if !is_more {
                return false;
            }
        }
        self.block.clear();
        let end = self.next_row.saturating_add(BLOCK_ROWS);
        self.batch
            .columns()
            .append_rows(self.next_row..end, &mut self.block);
        self.next_row = end;
        self.next = 0;
        true
    }

    #[cold]
    fn mark(&mut self, gap: Gap, last_ns: Option<u64>, is_more: bool) {
        let next_ns = || self.batch.columns().ts_ns.first().copied();
        let next_ns = is_more.then(next_ns).flatten();
        self.block = marks(gap, last_ns, next_ns);
        self.next = 0;
    }
}

/// Marks where events are missing: where the bytes that were left out begin and end, by the index, else
/// between what was read before and after. What was in flight at either place cannot be followed.
pub(crate) fn marks(gap: Gap, last_ns: Option<u64>, next_ns: Option<u64>) -> Vec<Event> {
    let around = || {
        let from_ns = last_ns.or(next_ns).unwrap_or(0);
        (from_ns, next_ns.unwrap_or(from_ns))
    };
    let (from_ns, to_ns) = gap.times_ns.unwrap_or_else(around);
    let times = [from_ns.min(to_ns), from_ns.max(to_ns)];
    let at = |ts_ns: u64| SOURCES.iter().map(move |source| Event::gap(ts_ns, *source));
    times.into_iter().flat_map(at).collect()
}

impl<R: Read + Seek, I: Read> Iterator for Events<'_, R, I> {
    type Item = Event;

    #[inline]
    fn next(&mut self) -> Option<Event> {
        if self.next >= self.block.len() && !self.refill() {
            // A second call at the end must not give the last block again.
            self.next = self.block.len();
            return None;
        }
        let event = self.block.get(self.next).copied();
        self.next = self.next.saturating_add(1);
        event
    }
}

//! Turns the batches of a stream into rows.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use std::io::{Read, Seek};

use crate::batch::Batch;
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

/// Rows of a block of [`Events`].
const BLOCK_ROWS: usize = 256;

impl<'r, R: Read + Seek, I: Read> Events<'r, R, I> {
    pub(crate) fn new(reader: &'r mut StreamReader<R, I>) -> Self {
        Self {
            reader,
            batch: Batch::default(),
            next_row: 0,
            block: Vec::new(),
            next: 0,
        }
    }

    #[inline(never)]
    fn refill(&mut self) -> bool {
        if self.next_row >= self.batch.n_rows() {
            if !self.reader.read_into(&mut self.batch) {
                return false;
            }
            self.next_row = 0;
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

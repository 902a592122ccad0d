//! Records out of bytes that come in portions: a relay file of a trace that is running.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use super::trace::{self, Format, Trace};

/// Takes records of version 7 in this machine's byte order off bytes that are pushed.
///
/// Holds what was pushed and not taken: call [`Self::next_trace`] until it gives nothing after each push.
#[derive(Debug, Default)]
pub struct Feed {
    buffer: Vec<u8>,
    start: usize,
    skipped: u64,
}

impl Feed {
    /// Adds bytes that follow the ones before.
    pub fn push(&mut self, bytes: &[u8]) {
        self.buffer.drain(..self.start.min(self.buffer.len()));
        self.start = 0;
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole record.
    pub fn next_trace(&mut self) -> Option<Trace> {
        let format = Format::NATIVE;
        let record_bytes = format.version.record_bytes();
        loop {
            let rest = self.buffer.get(self.start..)?;
            if rest.len() < record_bytes {
                return None;
            }
            if !format.begins(rest) {
                self.start = self.start.saturating_add(1);
                self.skipped = self.skipped.saturating_add(1);
                continue;
            }
            let (mut trace, payload_len) = trace::parse(rest, format);
            let end = record_bytes.saturating_add(payload_len);
            trace
                .payload
                .extend_from_slice(rest.get(record_bytes..end)?);
            trace.split_cgroup();
            self.start = self.start.saturating_add(end);
            return Some(trace);
        }
    }

    /// Bytes that were no record.
    #[must_use]
    pub fn skipped(&self) -> u64 {
        self.skipped
    }
}

#[cfg(test)]
mod tests {
    use super::super::Reader;
    use super::*;

    const CPU_0: &[u8] =
        include_bytes!("../../../../fixtures/blktrace/ext3-seqw-mq-ide/gt.blktrace.0");

    fn feed(bytes: &[u8], portion: usize) -> (Vec<Trace>, u64) {
        let mut feed = Feed::default();
        let mut traces = Vec::new();
        for part in bytes.chunks(portion) {
            feed.push(part);
            while let Some(trace) = feed.next_trace() {
                traces.push(trace);
            }
        }
        (traces, feed.skipped())
    }

    #[test]
    fn any_portions_give_what_the_reader_gives() {
        let expected: Vec<Trace> = Reader::new(CPU_0).into_iter().flatten().collect();
        assert!(expected.len() > 100);
        for portion in [1, 47, 48, 100, 4096, CPU_0.len()] {
            assert_eq!(feed(CPU_0, portion), (expected.clone(), 0), "{portion}");
        }
    }

    #[test]
    fn bytes_that_are_no_record_are_counted() {
        let rubbish = [&[0; 33][..], CPU_0].concat();
        let (traces, skipped) = feed(&rubbish, 512);
        assert_eq!((traces.len() > 100, skipped), (true, 33));
    }
}

//! What waits to be sent. It never grows beyond a bound: batches that find no room are lost, and counted.

use std::collections::VecDeque;

use nestrace_trace::wire::AgentMessage;

use super::{Connection, Moved};

/// Bytes of batches that may wait: at 10 bytes an event some 400,000 events.
const MAX_WAITING: usize = 4 << 20;
/// Answers to pings that may wait; a recorder asks a few times a second.
const MAX_PONGS: usize = 64;

/// Frames in the order in which they go out.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Answers to pings, before everything else.
    pongs: VecDeque<Vec<u8>>,
    frames: VecDeque<Vec<u8>>,
    /// The frame that is being written, and how much of it is.
    current: Option<(Vec<u8>, usize)>,
    /// Bytes of all that wait in `frames`.
    waiting: usize,
    dropped: u64,
}

impl Outbox {
    /// Adds a message of which none may be missing.
    pub fn push(&mut self, message: &AgentMessage<'_>) {
        let mut frame = Vec::new();
        message.encode_to(&mut frame);
        self.waiting += frame.len();
        self.frames.push_back(frame);
    }

    /// Adds a batch of so many events if it has room.
    pub fn push_batch(&mut self, payload: &[u8], n_events: u64) {
        if self.waiting + payload.len() > MAX_WAITING {
            self.dropped += n_events;
        } else {
            self.push(&AgentMessage::Batch(payload));
        }
    }

    /// Adds the answer to a ping, before all that waits.
    pub fn push_pong(&mut self, token: u64, guest_ns: u64) {
        if self.pongs.len() < MAX_PONGS {
            let mut frame = Vec::new();
            AgentMessage::Pong { token, guest_ns }.encode_to(&mut frame);
            self.pongs.push_back(frame);
        }
    }

    /// Events in batches that found no room since the session began.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.current.is_none() && self.pongs.is_empty() && self.frames.is_empty()
    }

    /// Forgets everything but the rest of a frame that the other side has begun to read.
    pub fn begin_session(&mut self) {
        self.pongs.clear();
        self.frames.clear();
        self.waiting = 0;
        self.dropped = 0;
    }

    /// Writes until the connection takes no more; `false` when the other side is gone.
    pub fn write_to(&mut self, connection: &Connection) -> bool {
        self.write_with(|bytes| connection.write(bytes))
    }

    fn write_with(&mut self, mut write: impl FnMut(&[u8]) -> Moved) -> bool {
        while let Some((frame, written)) = self.current.take().or_else(|| self.next()) {
            match write(frame.get(written..).unwrap_or_default()) {
                Moved::Bytes(n) if written + n >= frame.len() => {}
                Moved::Bytes(n) => self.current = Some((frame, written + n)),
                Moved::Nothing => {
                    self.current = Some((frame, written));
                    return true;
                }
                Moved::Gone => return false,
            }
        }
        true
    }

    fn next(&mut self) -> Option<(Vec<u8>, usize)> {
        let frame = self.pongs.pop_front().or_else(|| {
            let frame = self.frames.pop_front()?;
            self.waiting = self.waiting.saturating_sub(frame.len());
            Some(frame)
        })?;
        Some((frame, 0))
    }
}

#[cfg(test)]
mod tests {
    use nestrace_trace::wire::{FrameKind, FrameReader};

    use super::*;

    /// Lets the outbox write so many bytes.
    fn take(outbox: &mut Outbox, mut room: usize, to: &mut Vec<u8>) {
        outbox.write_with(|bytes| {
            let n = bytes.len().min(room).min(7);
            if n == 0 {
                return Moved::Nothing;
            }
            room -= n;
            to.extend_from_slice(&bytes[..n]);
            Moved::Bytes(n)
        });
    }

    fn kinds(bytes: &[u8]) -> Vec<u16> {
        let mut reader = FrameReader::new();
        assert_eq!(reader.feed(bytes), bytes.len());
        let mut kinds = Vec::new();
        while let Some(frame) = reader.next_frame().unwrap() {
            kinds.push(frame.kind);
        }
        kinds
    }

    #[test]
    fn an_answer_goes_before_batches_but_not_into_a_frame() {
        let mut outbox = Outbox::default();
        outbox.push_batch(b"first batch", 1);
        outbox.push_batch(b"second batch", 1);
        let mut sent = Vec::new();
        take(&mut outbox, 10, &mut sent);
        outbox.push_pong(1, 2);
        take(&mut outbox, 1000, &mut sent);
        let (batch, pong) = (FrameKind::Batch as u16, FrameKind::Pong as u16);
        assert_eq!(kinds(&sent), [batch, pong, batch]);
        assert!(outbox.is_empty());
    }

    #[test]
    fn a_stuck_port_loses_whole_batches_and_they_are_counted() {
        let mut outbox = Outbox::default();
        let batch = vec![0; 1 << 20];
        for _ in 0..6 {
            outbox.push_batch(&batch, 100);
        }
        // Frames have headers, so four of them do not fit.
        assert_eq!(outbox.dropped(), 300);
        outbox.push(&AgentMessage::Notice("still heard".to_owned()));
        let mut sent = Vec::new();
        take(&mut outbox, usize::MAX, &mut sent);
        assert_eq!(sent.len(), 3 * ((1 << 20) + 16) + 16 + 11);
        outbox.push_batch(&batch, 100);
        assert_eq!(outbox.dropped(), 300);
    }

    #[test]
    fn a_new_session_begins_at_a_frame() {
        let mut outbox = Outbox::default();
        outbox.push_batch(b"of the session before", 1);
        outbox.push_batch(b"never seen", 1);
        let mut sent = Vec::new();
        take(&mut outbox, 20, &mut sent);
        outbox.begin_session();
        outbox.push(&AgentMessage::Notice("new".to_owned()));
        take(&mut outbox, 1000, &mut sent);
        assert_eq!(
            kinds(&sent),
            [FrameKind::Batch as u16, FrameKind::Notice as u16]
        );
    }
}

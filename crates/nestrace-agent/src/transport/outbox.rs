//! What waits to be sent. It never grows beyond a bound: batches that find no room are lost, and counted.

use std::collections::VecDeque;

use nestrace_blktrace::RECORD_BYTES;
use nestrace_wire::{AgentMessage, DROPPED_BATCHES, Lost, MAX_BUFFER};

use super::{Connection, Moved};

/// Bytes of batches and buffers that may wait: at 10 bytes an event some 400,000 events, at blktrace's 48 some 80,000.
const MAX_WAITING: usize = 4 << 20;
/// Answers to pings that may wait; a recorder asks a few times a second.
const MAX_PONGS: usize = 64;

/// Frames in the order in which they go out.
#[derive(Debug, Default)]
pub struct Outbox {
    /// Answers to pings, before everything but facts.
    pongs: VecDeque<Vec<u8>>,
    frames: VecDeque<Vec<u8>>,
    /// The frame that is being written, and how much of it is.
    current: Option<(Vec<u8>, usize)>,
    /// Bytes of all that wait in `frames`.
    waiting: usize,
    /// The newest facts, before every frame that waits: nothing of a session is understood before its first ones.
    facts: Option<Vec<u8>>,
    /// Answers at the front that were made before the facts and go before them. To the recorder, a time of the guest that
    /// comes after a later one is a clock that has gone back, whichever of the two is in the facts.
    older_pongs: usize,
    dropped: u64,
    /// How many of these are in what waits or has gone.
    told: u64,
}

impl Outbox {
    /// Adds a message that must not be lost; `false` if it is too long for a frame.
    pub fn push(&mut self, message: &AgentMessage<'_>) -> bool {
        self.push_frame(encoded(message))
    }

    fn push_frame(&mut self, frame: Vec<u8>) -> bool {
        // What is too long is no frame, and writing nothing would look like the port's end.
        let is_frame = !frame.is_empty();
        if is_frame {
            self.waiting += frame.len();
            self.frames.push_back(frame);
        }
        is_frame
    }

    /// Adds facts. The newest ones count: they take the place of older ones that still wait.
    pub fn push_facts(&mut self, message: &AgentMessage<'_>) {
        self.facts = Some(encoded(message)).filter(|frame| !frame.is_empty());
        self.older_pongs = self.pongs.len();
    }

    /// Whether facts wait, whose place newer ones would take.
    pub fn has_facts(&self) -> bool {
        self.facts.is_some()
    }

    /// Adds a batch of so many events if it has room, behind the word that events are missing at this place.
    pub fn push_batch(&mut self, payload: &[u8], n_events: u64) {
        self.push_events(&AgentMessage::Batch(payload), payload.len(), n_events);
    }

    /// The same of bytes of one of the kernel's buffers. Without room, as many events count as lost as they can hold.
    pub fn push_buffer(&mut self, number: u32, bytes: &[u8]) {
        for bytes in bytes.chunks(MAX_BUFFER) {
            let n_events = bytes.len().div_ceil(RECORD_BYTES) as u64;
            self.push_events(
                &AgentMessage::Buffer { number, bytes },
                bytes.len(),
                n_events,
            );
        }
    }

    fn push_events(&mut self, message: &AgentMessage<'_>, n_bytes: usize, n_events: u64) {
        let mut goes = self.waiting + n_bytes <= MAX_WAITING;
        if goes {
            self.push_late();
            goes = self.push(message);
        }
        if !goes {
            self.dropped += n_events;
        }
    }

    /// Adds what is otherwise said with the next batch: how many events found no room.
    pub fn push_late(&mut self) {
        if self.told != self.dropped {
            self.told = self.dropped;
            self.push(&AgentMessage::Loss(Lost {
                source: DROPPED_BATCHES,
                total: self.dropped,
            }));
        }
    }

    /// Whether the port takes what it is given: nothing but a begun frame waits.
    pub fn flows(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether a batch may have room.
    pub fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Bytes that may still wait.
    pub fn room(&self) -> usize {
        MAX_WAITING.saturating_sub(self.waiting)
    }

    /// Adds the answer to a ping, before all that waits but facts.
    pub fn push_pong(&mut self, token: u64, guest_ns: u64) {
        if self.pongs.len() < MAX_PONGS {
            let pong = AgentMessage::Pong { token, guest_ns };
            self.pongs.push_back(encoded(&pong));
        }
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        let nothing = self.pongs.is_empty() && self.frames.is_empty() && self.facts.is_none();
        nothing && self.current.is_none()
    }

    /// Forgets everything but the rest of a frame that the other side has begun to read.
    pub fn begin_session(&mut self) {
        self.pongs.clear();
        self.frames.clear();
        self.waiting = 0;
        self.facts = None;
        self.older_pongs = 0;
        (self.dropped, self.told) = (0, 0);
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
        let facts = if self.older_pongs == 0 {
            self.facts.take()
        } else {
            None
        };
        let pong = |outbox: &mut Self| {
            outbox.older_pongs = outbox.older_pongs.saturating_sub(1);
            outbox.pongs.pop_front()
        };
        let frame = facts.or_else(|| pong(self)).or_else(|| {
            let frame = self.frames.pop_front()?;
            self.waiting = self.waiting.saturating_sub(frame.len());
            Some(frame)
        })?;
        Some((frame, 0))
    }
}

fn encoded(message: &AgentMessage<'_>) -> Vec<u8> {
    let mut frame = Vec::new();
    message.encode_to(&mut frame);
    frame
}

#[cfg(test)]
mod tests {
    use nestrace_wire::{AgentHello, FrameKind, FrameReader};

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

    fn kinds(mut bytes: &[u8]) -> Vec<u16> {
        let mut reader = FrameReader::new();
        let mut kinds = Vec::new();
        while !bytes.is_empty() {
            let taken = reader.feed(bytes);
            bytes = &bytes[taken..];
            while let Some(frame) = reader.next_frame().unwrap() {
                kinds.push(frame.kind);
            }
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
        assert_eq!(outbox.dropped, 300);
        outbox.push(&AgentMessage::Notice("still heard".to_owned()));
        let mut sent = Vec::new();
        take(&mut outbox, usize::MAX, &mut sent);
        assert_eq!(sent.len(), 3 * ((1 << 20) + 16) + 16 + 11);
        outbox.push_batch(&batch, 100);
        assert_eq!(outbox.dropped, 300);
    }

    #[test]
    fn a_loss_stands_where_the_batches_are_missing() {
        let mut outbox = Outbox::default();
        // A reader's first frame is never a long one.
        outbox.push(&AgentMessage::Notice("first".to_owned()));
        let batch = vec![0; 1 << 20];
        for _ in 0..5 {
            outbox.push_batch(&batch, 100);
        }
        let mut sent = Vec::new();
        take(&mut outbox, usize::MAX, &mut sent);
        outbox.push_batch(b"goes again", 1);
        outbox.push_batch(b"and on", 1);
        take(&mut outbox, usize::MAX, &mut sent);
        let (batch, loss) = (FrameKind::Batch as u16, FrameKind::Loss as u16);
        let expected = [batch, batch, batch, loss, batch, batch];
        assert_eq!(kinds(&sent)[1..], expected);
        assert!(outbox.flows());
        outbox.push_late();
        assert!(outbox.is_empty(), "it is told once");
    }

    fn hello(mono_ns: u64) -> AgentMessage<'static> {
        AgentMessage::Hello(Box::new(AgentHello {
            mono_ns,
            agent_version: "x".repeat(200_000),
            ..AgentHello::default()
        }))
    }

    #[test]
    fn facts_at_a_stuck_port_are_bounded_and_go_before_what_is_later() {
        let mut outbox = Outbox::default();
        outbox.push(&AgentMessage::Notice("first".to_owned()));
        outbox.push_batch(b"waits", 1);
        for mono_ns in 0..100 {
            outbox.push_facts(&hello(mono_ns));
        }
        let mut sent = Vec::new();
        take(&mut outbox, usize::MAX, &mut sent);
        assert!(outbox.is_empty());
        let kind = |kind: FrameKind| kind as u16;
        let expected = [FrameKind::Hello, FrameKind::Notice, FrameKind::Batch];
        assert_eq!(kinds(&sent), expected.map(kind));
        let newest = b"\"mono_ns\":99,";
        assert!(sent.windows(newest.len()).any(|bytes| bytes == newest));
    }

    /// Times of the guest, as answers and facts show them, in the order in which they go out.
    fn times(mut bytes: &[u8]) -> Vec<u64> {
        let mut reader = FrameReader::new();
        let mut times = Vec::new();
        while !bytes.is_empty() {
            let taken = reader.feed(bytes);
            bytes = &bytes[taken..];
            while let Some(frame) = reader.next_frame().unwrap() {
                match AgentMessage::parse(frame).unwrap() {
                    Some(AgentMessage::Pong { guest_ns, .. }) => times.push(guest_ns),
                    Some(AgentMessage::Hello(hello)) => times.push(hello.mono_ns),
                    _ => {}
                }
            }
        }
        times
    }

    #[test]
    fn the_guest_s_time_does_not_go_back_at_a_stuck_port() {
        let mut outbox = Outbox::default();
        outbox.push_facts(&hello(1));
        outbox.push_batch(b"waits", 1);
        let mut sent = Vec::new();
        take(&mut outbox, 10, &mut sent);
        outbox.push_pong(1, 2);
        outbox.push_pong(2, 3);
        outbox.push_facts(&hello(4));
        outbox.push_pong(3, 5);
        take(&mut outbox, 250_000, &mut sent);
        // These take the place of those, if they have not gone.
        outbox.push_facts(&hello(6));
        outbox.push_pong(4, 7);
        take(&mut outbox, usize::MAX, &mut sent);
        assert!(outbox.is_empty());
        let times = times(&sent);
        assert!(times.is_sorted(), "{times:?}");
        assert_eq!(times.len(), 7, "{times:?}");
        // The same, where both wait.
        outbox.push_pong(5, 8);
        outbox.push_facts(&hello(9));
        outbox.push_pong(6, 10);
        outbox.push_facts(&hello(11));
        outbox.push_pong(7, 12);
        sent.clear();
        take(&mut outbox, usize::MAX, &mut sent);
        assert_eq!(self::times(&sent), [8, 10, 11, 12]);
    }

    #[test]
    fn what_is_too_long_for_a_frame_does_not_end_the_connection() {
        let mut outbox = Outbox::default();
        let too_long = vec![0; nestrace_wire::MAX_PAYLOAD + 1];
        assert!(!outbox.push(&AgentMessage::Batch(&too_long)));
        assert!(outbox.is_empty());
        let alive = outbox.write_with(|bytes| match bytes.len() {
            0 => Moved::Gone,
            n => Moved::Bytes(n),
        });
        assert!(alive);
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

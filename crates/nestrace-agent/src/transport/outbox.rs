//! What waits to be sent. It never grows beyond a bound: bytes of buffers that find no room are lost, and counted.

use std::collections::VecDeque;

use nestrace_blktrace::RECORD_BYTES;
use nestrace_wire::{AgentMessage, DROPPED_BUFFERS, Lost, MAX_BUFFER};

use super::{Connection, Moved};

/// Bytes of buffers that may wait: at blktrace's 48 bytes an event some 80,000 events.
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
    /// The newest [`AgentMessage::Until`], and the one before the first dropped events that no Loss has reported.
    until_ns: u64,
    dropped_after_ns: u64,
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

    /// Adds bytes of one of the kernel's buffers if they have room, behind the word that events are missing at this place.
    /// Without room, as many events count as lost as they can hold.
    pub fn push_buffer(&mut self, number: u32, bytes: &[u8]) {
        for bytes in bytes.chunks(MAX_BUFFER) {
            if self.waiting + bytes.len() <= MAX_WAITING {
                self.push_late();
                self.push(&AgentMessage::Buffer { number, bytes });
                continue;
            }
            if self.told == self.dropped {
                self.dropped_after_ns = self.until_ns;
            }
            self.dropped += bytes.len().div_ceil(RECORD_BYTES) as u64;
        }
    }

    /// Adds the word that everything stamped before this time of the guest was sent or is counted as lost.
    pub fn push_until(&mut self, mono_ns: u64) {
        self.until_ns = mono_ns;
        self.push(&AgentMessage::Until(mono_ns));
    }

    /// Adds what is otherwise said with the next buffer: how many events found no room.
    pub fn push_late(&mut self) {
        if self.told != self.dropped {
            self.told = self.dropped;
            self.push(&AgentMessage::Loss(Lost {
                source: DROPPED_BUFFERS,
                total: self.dropped,
                mono_ns: self.dropped_after_ns,
            }));
        }
    }

    /// Whether the port takes what it is given: nothing but a begun frame waits.
    pub fn flows(&self) -> bool {
        self.frames.is_empty()
    }

    /// Whether bytes of a buffer may have room.
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
        (self.until_ns, self.dropped_after_ns) = (0, 0);
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
    fn an_answer_goes_before_buffers_but_not_into_a_frame() {
        let mut outbox = Outbox::default();
        outbox.push_buffer(0, b"first bytes");
        outbox.push_buffer(0, b"second bytes");
        let mut sent = Vec::new();
        take(&mut outbox, 10, &mut sent);
        outbox.push_pong(1, 2);
        take(&mut outbox, 1000, &mut sent);
        let (buffer, pong) = (FrameKind::Buffer as u16, FrameKind::Pong as u16);
        assert_eq!(kinds(&sent), [buffer, pong, buffer]);
        assert!(outbox.is_empty());
    }

    /// As large as one can be: frames have headers, so four of them do not fit.
    const LARGE: usize = MAX_BUFFER;

    #[test]
    fn a_stuck_port_loses_whole_buffers_and_they_are_counted() {
        let mut outbox = Outbox::default();
        let bytes = vec![0; LARGE];
        for _ in 0..6 {
            outbox.push_buffer(0, &bytes);
        }
        let dropped = 3 * LARGE.div_ceil(RECORD_BYTES) as u64;
        assert_eq!(outbox.dropped, dropped);
        outbox.push(&AgentMessage::Notice("still heard".to_owned()));
        let mut sent = Vec::new();
        take(&mut outbox, usize::MAX, &mut sent);
        assert_eq!(sent.len(), 3 * ((1 << 20) + 16) + 16 + 11);
        outbox.push_buffer(0, &bytes);
        assert_eq!(outbox.dropped, dropped);
    }

    #[test]
    fn a_loss_stands_where_buffers_are_missing() {
        let mut outbox = Outbox::default();
        // A reader's first frame is never a long one.
        outbox.push(&AgentMessage::Notice("first".to_owned()));
        let bytes = vec![0; LARGE];
        for mono_ns in 1..=5 {
            outbox.push_buffer(0, &bytes);
            outbox.push_until(mono_ns);
        }
        let mut sent = Vec::new();
        take(&mut outbox, usize::MAX, &mut sent);
        outbox.push_buffer(0, b"goes again");
        outbox.push_buffer(0, b"and on");
        take(&mut outbox, usize::MAX, &mut sent);
        let kind = |kind: FrameKind| kind as u16;
        let (buffer, until) = (kind(FrameKind::Buffer), kind(FrameKind::Until));
        let loss = kind(FrameKind::Loss);
        let kinds = kinds(&sent);
        let (before, after) = kinds.split_at(kinds.iter().position(|it| *it == loss).unwrap());
        assert_eq!(before[1..7], [buffer, until].repeat(3));
        assert_eq!(before[7..], [until, until]);
        assert_eq!(after, [loss, buffer, buffer]);
        // The last time that all was there.
        assert_eq!(outbox.dropped_after_ns, 3);
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
        outbox.push_buffer(0, b"waits");
        for mono_ns in 0..100 {
            outbox.push_facts(&hello(mono_ns));
        }
        let mut sent = Vec::new();
        take(&mut outbox, usize::MAX, &mut sent);
        assert!(outbox.is_empty());
        let kind = |kind: FrameKind| kind as u16;
        let expected = [FrameKind::Hello, FrameKind::Notice, FrameKind::Buffer];
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
        outbox.push_buffer(0, b"waits");
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
        assert!(!outbox.push(&AgentMessage::Buffer {
            number: 0,
            bytes: &too_long
        }));
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
        outbox.push_buffer(0, b"of the session before");
        outbox.push_buffer(0, b"never seen");
        let mut sent = Vec::new();
        take(&mut outbox, 20, &mut sent);
        outbox.begin_session();
        outbox.push(&AgentMessage::Notice("new".to_owned()));
        take(&mut outbox, 1000, &mut sent);
        assert_eq!(
            kinds(&sent),
            [FrameKind::Buffer as u16, FrameKind::Notice as u16]
        );
    }
}

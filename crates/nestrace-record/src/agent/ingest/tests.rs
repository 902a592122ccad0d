//! What the sessions' tests cannot reach: streams that fail, and numbers at their limits.

use nestrace_abi::Kind;
use nestrace_trace::manifest::GuestDisk;
use nestrace_trace::wire::{BatchEncoder, Live};

use super::*;

/// Streams in memory that fail after so many bytes.
struct Room(usize);

struct Full {
    left: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if bytes.len() > self.left {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        self.left -= bytes.len();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Streams for Room {
    type Stream = Full;
    type Index = std::io::Sink;

    fn open(&mut self, _file: &str) -> Result<StreamWriter<Full, std::io::Sink>, String> {
        StreamWriter::new(Full { left: self.0 }, std::io::sink()).map_err(|e| e.to_string())
    }

    fn limit_bytes(&mut self) -> u64 {
        u64::MAX
    }
}

fn hello(session: u64) -> AgentMessage<'static> {
    AgentMessage::Hello(Box::new(AgentHello {
        protocol: VERSION,
        session,
        mono_ns: 1000,
        disks: vec![GuestDisk::default()],
        ..AgentHello::default()
    }))
}

fn bytes(messages: &[AgentMessage<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        message.encode_to(&mut bytes);
    }
    bytes
}

fn batch(n: u64) -> Vec<u8> {
    let (mut encoder, _) = BatchEncoder::new().unwrap();
    for n in 0..n {
        let event = Event {
            ts_ns: 1000,
            kind: Kind::Queue as u8,
            object: n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
            ..Event::default()
        };
        encoder.push(&event).unwrap();
    }
    encoder.take().unwrap()
}

#[test]
fn a_full_disk_ends_the_stream_and_not_the_session() {
    let mut ingest = Ingest::new("vm1", Room(100_000), 5);
    let batch = batch(8000);
    let one = bytes(&[hello(5), AgentMessage::Batch(&batch)]);
    for _ in 0..5 {
        ingest.feed(&one, 1).unwrap();
        ingest.flush(1);
    }
    let account = &ingest.account;
    assert_eq!(account.events + account.n_lost(), 5 * 8000);
    assert!(
        account.events >= 8000 && account.n_lost() >= 8000,
        "{account:?}"
    );
    assert_eq!(account.notices.len(), 1);
    assert!(account.notices[0].message.contains("cannot be written"));
}

#[test]
fn a_stream_that_cannot_be_made_is_an_error() {
    let mut ingest = Ingest::new("vm1", Room(10), 5);
    let error = ingest.feed(&bytes(&[hello(5)]), 1).unwrap_err();
    assert!(matches!(error, IngestError::Stream(_)));
}

#[test]
fn what_another_recorder_left_in_the_port_is_passed_over() {
    let mut ingest = Ingest::new("vm1", Room(1 << 20), 5);
    let batch = batch(10);
    let mut left = bytes(&[
        hello(4),
        AgentMessage::Batch(&batch),
        AgentMessage::Batch(&batch),
    ]);
    left.truncate(left.len() - 20);
    left.extend(bytes(&[
        hello(5),
        AgentMessage::Live(Live::default()),
        AgentMessage::Batch(&batch),
    ]));
    for portion in left.chunks(97) {
        ingest.feed(portion, 1).unwrap();
    }
    assert_eq!((ingest.account.events, ingest.account.sides.len()), (10, 1));
    let refused = &ingest.account.sides[0].refused;
    assert!(
        refused
            .iter()
            .any(|r| r.reason == "answer to another recorder")
    );
}

#[test]
fn another_version_and_endless_nonsense_end_it() {
    let mut ingest = Ingest::new("vm1", Room(1 << 20), 5);
    let other = AgentMessage::Hello(Box::new(AgentHello {
        session: 5,
        protocol: 9,
        ..AgentHello::default()
    }));
    let error = ingest.feed(&bytes(&[other]), 1).unwrap_err();
    assert!(matches!(error, IngestError::Protocol(9)));
    let mut ingest = Ingest::new("vm1", Room(1 << 20), 5);
    ingest.feed(&bytes(&[hello(5)]), 1).unwrap();
    let pong = bytes(&[AgentMessage::Pong {
        token: 7,
        guest_ns: 7,
    }]);
    let ended = (0..=MAX_REFUSED_FRAMES).any(|_| ingest.feed(&pong, 1).is_err());
    assert!(ended);
    let mut ingest = Ingest::new("vm1", Room(1 << 20), 5);
    let again = bytes(&[hello(5)]);
    let ended = (0..=MAX_HELLOS).any(|_| ingest.feed(&again, 1).is_err());
    assert!(ended);
}

//! Any bytes from an agent: no panic, and what is kept of them stays within its bounds.
//!
//! Byte 0 of the input: 0, the rest is what the port gives, in portions; otherwise the rest is messages
//! (a byte for the kind, two for the length, the payload) that get frames with correct checksums behind
//! a Hello of the right session, so that they reach what checksums would keep them away from.
#![no_main]

use std::io::{self, Sink};

use libfuzzer_sys::fuzz_target;
use nestrace_record::agent::ingest::{Ingest, Streams};
use nestrace_trace::StreamWriter;
use nestrace_trace::manifest::GuestDisk;
use nestrace_wire::{AgentHello, AgentMessage, FrameKind, VERSION, encode_frame};

/// The session that the recorder asked for.
const SESSION: u64 = 5;

struct Nowhere;

impl Streams for Nowhere {
    type Stream = Sink;
    type Index = Sink;

    fn open(&mut self, file: &str) -> Result<Option<StreamWriter<Sink, Sink>>, String> {
        assert!(!file.contains('/') && file.starts_with("guest-") && file.ends_with(".arrows"));
        let writer = StreamWriter::new(io::sink(), io::sink());
        writer.map(Some).map_err(|error| error.to_string())
    }

    fn limit_bytes(&mut self) -> u64 {
        16 << 20
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((mode, rest)) = input.split_first() else {
        return;
    };
    let mut ingest = Ingest::new("../vm", Nowhere, SESSION);
    let bytes = if *mode == 0 {
        rest.to_vec()
    } else {
        framed(rest)
    };
    let portion = 1 + usize::from(*mode) * 97;
    let mut now_ns = 0;
    for part in bytes.chunks(portion.max(bytes.len() / 64)) {
        now_ns += 1_000_000;
        if ingest.feed(part, now_ns).is_err() {
            break;
        }
        let _ = ingest.ping(now_ns);
    }
    ingest.close(now_ns);
    let account = &ingest.account;
    // 40 of what it says, and 16 of each kind of what is the recorder's to tell.
    assert!(account.sides.len() <= 16 && account.notices.len() <= 120 && account.news.len() <= 60);
    for side in &account.sides {
        assert!(side.clock_samples.len() <= 513 && side.gaps.len() <= 256);
        assert!(side.disks.len() <= 512 && side.mounts.len() <= 1024);
        assert_eq!(side.guest, "../vm");
    }
});

fn framed(mut rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let hello = AgentHello {
        protocol: VERSION,
        session: SESSION,
        disks: vec![GuestDisk::default()],
        ..AgentHello::default()
    };
    AgentMessage::Hello(Box::new(hello)).encode_to(&mut bytes);
    while let Some(([kind, low, high], tail)) = rest.split_first_chunk::<3>() {
        let length = usize::from(u16::from_le_bytes([*low, *high])).min(tail.len());
        let (payload, tail) = tail.split_at(length);
        let kinds = [
            FrameKind::Hello,
            FrameKind::Live,
            FrameKind::Loss,
            FrameKind::Refused,
            FrameKind::Pong,
            FrameKind::Notice,
            FrameKind::End,
            FrameKind::Buffer,
            FrameKind::Until,
            FrameKind::Incomplete,
            FrameKind::Start,
        ];
        encode_frame(kinds[usize::from(*kind) % kinds.len()], payload, &mut bytes);
        rest = tail;
    }
    bytes
}

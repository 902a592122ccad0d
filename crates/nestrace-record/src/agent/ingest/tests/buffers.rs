//! What agents send of their kernels' buffers.

use nestrace_abi::{Record, Source};
use nestrace_wire::kernel_buffers::{PLAIN_BYTES, Translation, put_record};

use super::*;

/// The beginning of a session with buffers: of probes, or of blktrace.
fn begun(detail: &str, translation: Option<Translation>) -> Ingest<Room> {
    let mut ingest = Ingest::new("vm1", Room(1 << 20), 5);
    ingest.start(detail, true, false);
    let live = Live {
        mono_ns: 1000,
        translation,
        ..Live::default()
    };
    ingest
        .feed(&bytes(&[hello(5), AgentMessage::Live(live)]), 1)
        .unwrap();
    ingest
}

fn say(ingest: &mut Ingest<Room>, messages: &[AgentMessage<'_>]) {
    ingest.feed(&bytes(messages), 2).unwrap();
}

/// A record of blktrace: of a request of 4 KiB at the beginning of device 0.
fn blktrace(action: u32, time_ns: u64) -> Vec<u8> {
    let mut record = vec![0; 48];
    record[..4].copy_from_slice(&0x6561_7407_u32.to_ne_bytes());
    record[8..16].copy_from_slice(&time_ns.to_ne_bytes());
    record[24..28].copy_from_slice(&4096_u32.to_ne_bytes());
    record[28..32].copy_from_slice(&action.to_ne_bytes());
    record
}

const QUEUE: u32 = 1;
const ISSUE: u32 = 7;
const COMPLETE: u32 = 8;

fn buffer(number: u32, bytes: &[u8]) -> AgentMessage<'_> {
    AgentMessage::Buffer { number, bytes }
}

#[test]
fn records_of_blktrace_count_once_they_are_complete() {
    let mut ingest = begun("full", None);
    let (first, second) = (blktrace(QUEUE, 2000), blktrace(ISSUE, 1500));
    // Cut in the middle, and of two processors.
    say(
        &mut ingest,
        &[
            buffer(0, &first[..20]),
            buffer(1, &second),
            buffer(0, &first[20..]),
        ],
    );
    assert_eq!(ingest.account.events, 0);
    say(&mut ingest, &[AgentMessage::Until(1800)]);
    assert_eq!(ingest.account.events, 1);
    say(&mut ingest, &[AgentMessage::End(End::default())]);
    assert_eq!(ingest.account.events, 2);
    assert_eq!((refused(&ingest, ""), ingest.account.n_lost()), (0, 0));
}

#[test]
fn with_light_detail_a_request_is_one_event() {
    let mut ingest = begun("light", None);
    let both = [blktrace(ISSUE, 1500), blktrace(COMPLETE, 1600)].concat();
    say(&mut ingest, &[buffer(0, &both), AgentMessage::Until(2000)]);
    assert_eq!(ingest.account.events, 1);
}

#[test]
fn records_of_probes_read_by_the_translation_of_their_kernel() {
    let translation = Translation {
        operations: vec![1],
        ..Translation::default()
    };
    let mut ingest = begun("full", Some(translation));
    let mut bytes = Vec::new();
    let mut record = [0; PLAIN_BYTES];
    record[..8].copy_from_slice(&1500_u64.to_ne_bytes());
    record[8] = Kind::Queue as u8;
    assert_eq!(size_of::<Record>(), record.len());
    put_record(&record, &mut bytes);
    say(&mut ingest, &[buffer(0, &bytes), buffer(1, &bytes[..30])]);
    say(&mut ingest, &[AgentMessage::Until(2000)]);
    assert_eq!(ingest.account.events, 1);
    ingest.close(3);
    assert_eq!(refused(&ingest, "are no record"), 30);
}

#[test]
fn an_agent_that_dies_has_said_what_it_has_said() {
    let mut ingest = begun("full", None);
    say(&mut ingest, &[buffer(0, &blktrace(QUEUE, 1500))]);
    ingest.close(3);
    assert_eq!(ingest.account.events, 1);
}

#[test]
fn losses_in_the_kernel_lie_between_the_events_of_buffers() {
    let mut ingest = begun("full", None);
    let lost = Lost {
        source: Source::Block as u32,
        total: 3,
        mono_ns: 1000,
    };
    say(
        &mut ingest,
        &[buffer(0, &blktrace(QUEUE, 900)), AgentMessage::Loss(lost)],
    );
    assert_eq!(ingest.account.events, 0);
    say(&mut ingest, &[AgentMessage::Until(950)]);
    assert_eq!(ingest.account.events, 1);
    say(&mut ingest, &[AgentMessage::Until(1001)]);
    assert_eq!((ingest.account.events, ingest.account.n_lost()), (2, 3));
    assert!(told(&ingest, "out_of_order").is_none());
}

#[test]
fn after_bytes_that_are_missing_no_record_is_made_of_two_halves() {
    let mut ingest = begun("full", None);
    let record = blktrace(QUEUE, 1500);
    say(&mut ingest, &[buffer(0, &record), buffer(0, &record[..20])]);
    let lost = Lost {
        source: DROPPED_BUFFERS,
        total: 7,
        mono_ns: 0,
    };
    say(&mut ingest, &[AgentMessage::Loss(lost), buffer(0, &record)]);
    ingest.close(3);
    // The two, and the loss that stands between them.
    assert_eq!((ingest.account.events, ingest.account.n_lost()), (3, 7));
    assert_eq!(refused(&ingest, ""), 0);
}

#[test]
fn what_never_completes_is_bounded() {
    let mut ingest = begun("full", None);
    let late = blktrace(QUEUE, u64::MAX).repeat(20_000);
    for number in 0..20 {
        say(&mut ingest, &[buffer(number, &late)]);
    }
    assert!(refused(&ingest, "ahead of the guest's clock") >= 262_144);
    assert_eq!(ingest.account.events, 0);
}

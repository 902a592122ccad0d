//! What a probe records of the same I/O is the yardstick: its events lose their identities,
//! get new ones by sector, and the block layer must see the same.

use super::*;
use crate::follow::block::{BlockLayer, Lent};
use crate::model::span::{BioSpan, RequestSpan};
use crate::model::threads::Threads;
use crate::notation;
use crate::result::unlinked::Reasons;

mod untold_flush_ends;

/// As blktrace tells it: no identities, no bios at D, no flush sequence, no rest after C; a request's
/// merge is an M.
fn as_blktrace(events: &[Event]) -> Vec<Event> {
    let told = events
        .iter()
        .filter(|event| event.kind() != Some(Kind::Link));
    told.map(|event| Event {
        object: 0,
        related: 0,
        sub: 0,
        flags: event.flags & !flags::FLUSH_SEQ,
        kind: match event.kind() {
            Some(Kind::RequestMerge) => Kind::BackMerge as u8,
            _ => event.kind,
        },
        ..*event
    })
    .collect()
}

fn identified(events: &[Event]) -> Vec<Event> {
    identified_by(SectorIdentity::default(), events)
}

fn identified_by(mut identity: SectorIdentity, events: &[Event]) -> Vec<Event> {
    let mut out = Vec::new();
    for event in events {
        let (mut event, mut links) = (*event, Vec::new());
        identity.identify(&mut event, |link| links.push(link));
        out.push(event);
        out.append(&mut links);
    }
    out
}

/// What the block layer makes of events; pointers differ between the two, so they do not count.
fn spans(events: &[Event]) -> (Vec<BioSpan>, Vec<RequestSpan>, String) {
    let mut block = BlockLayer::with_spans();
    let threads = Threads::default();
    for event in events {
        let mut lent = Lent {
            observer: &mut (),
            threads: &threads,
            reasons: Reasons::default(),
        };
        if let Some(kind) = event.kind() {
            block.push(kind, event, &mut lent);
        }
    }
    let all = block.gathered.spans.take().expect("asked for");
    let (mut bios, mut requests) = (all.bios, all.requests);
    for bio in &mut bios {
        bio.pointer = 0;
        bio.requests
            .iter_mut()
            .for_each(|request| request.pointer = 0);
    }
    requests.iter_mut().for_each(|request| request.pointer = 0);
    let checks: Vec<_> = block
        .gathered
        .devices
        .iter()
        .map(|meter| (meter.check, meter.request_merges))
        .collect();
    (bios, requests, format!("{checks:?}"))
}

/// Events with all columns that blktrace has; M and F name their bio.
fn check(text: &str) -> (Vec<BioSpan>, Vec<RequestSpan>) {
    let told = notation::events(text);
    let (bios, requests, checks) = spans(&told);
    let (found_bios, found_requests, found_checks) = spans(&identified(&as_blktrace(&told)));
    assert_eq!(found_bios, bios, "{text}");
    assert_eq!(found_requests, requests, "{text}");
    assert_eq!(found_checks, checks, "{text}");
    (bios, requests)
}

#[test]
fn a_bio_and_its_request() {
    let (bios, requests) = check(
        "1 Q b1 W 0+4096
         2 G b1 W 0+4096
         3 I r1 W 0+4096
         4 D r1 W 0+4096 rel=b1
         9 C r1 W 0+4096",
    );
    assert_eq!(
        (bios.len(), requests.len(), bios[0].requests.len()),
        (1, 1, 1)
    );
}

#[test]
fn merges_at_both_ends_and_of_requests() {
    let (bios, requests) = check(
        "1 Q b1 W 8192+4096
         2 G b1 W 8192+4096
         3 Q b2 W 12288+4096
         4 M b2 W 12288+4096
         5 Q b3 W 4096+4096
         6 F b3 W 4096+4096
         7 Q b4 W 20480+4096
         8 G b4 W 20480+4096
         9 Q b5 W 16384+4096
         10 M b5 W 16384+4096
         11 RM r2 W 20480+4096
         20 D r1 W 4096+20480 rel=b3 links=b1,b2,b5,b4
         30 C r1 W 4096+20480",
    );
    assert_eq!((bios.len(), requests.len(), requests[0].bios), (5, 1, 5));
}

#[test]
fn splits_keep_the_parent_until_the_last_fragment() {
    let (bios, requests) = check(
        "1 Q b1 R 0+12288
         2 X b2 R 0+4096 rel=b1
         3 G b2 R 0+4096
         4 X b3 R 4096+4096 rel=b1
         5 G b3 R 4096+4096
         6 G b1 R 8192+4096
         10 D r1 R 0+4096 rel=b2
         11 D r2 R 4096+4096 rel=b3
         12 D r3 R 8192+4096 rel=b1
         20 C r2 R 4096+4096
         21 C r1 R 0+4096
         30 C r3 R 8192+4096",
    );
    assert_eq!(
        (bios.len(), requests.len(), bios[0].requests.len()),
        (1, 3, 3)
    );
    assert_eq!(bios[0].ended_ns, 30);
}

#[test]
fn the_same_sector_again_and_again() {
    check(
        "1 Q b1 R 0+4096
         2 G b1 R 0+4096
         3 Q b2 W 0+4096
         4 G b2 W 0+4096
         5 Q b3 R 0+8192
         6 G b3 R 0+8192
         7 Q b4 R 0+4096
         8 G b4 R 0+4096
         10 D r1 R 0+4096 rel=b1
         11 D r3 R 0+8192 rel=b3
         12 D r2 W 0+4096 rel=b2
         13 D r4 R 0+4096 rel=b4
         20 C r3 R 0+8192
         21 C r1 R 0+4096
         22 C r2 W 0+4096
         23 C r4 R 0+4096
         30 Q b1 R 0+4096
         31 G b1 R 0+4096
         32 D r1 R 0+4096 rel=b1
         33 C r1 R 0+4096",
    );
}

#[test]
fn requeues_and_partial_completions() {
    let (bios, _) = check(
        "1 Q b1 W 0+4096
         2 G b1 W 0+4096
         3 Q b2 W 4096+4096
         4 M b2 W 4096+4096
         5 D r1 W 0+8192 rel=b1 links=b2
         6 RQ r1 W 0+8192
         7 I r1 W 0+8192
         8 D r1 W 0+8192 rel=b1 links=b2
         9 C r1 W 0+4096 rel=0x1000
         12 C r1 W 4096+4096",
    );
    assert_eq!((bios[0].ended_ns, bios[1].ended_ns), (9, 12));
}

/// A commit of a journal: PREFLUSH and FUA on a disk that has no FUA.
#[test]
fn flush_sequences() {
    let (bios, requests) = check(
        "1 Q b1 Wfu 0+4096
         2 G b1 Wfu 0+4096
         3 D f1 F 0+0
         10 C f1 F 0+0
         11 D r1 Ws 0+4096 rel=b1
         20 C r1 Ws 0+4096
         21 D f1 F 0+0
         30 C f1 F 0+0
         31 C r1 W 0+0
         40 Q b2 Wf 0+0
         41 G b2 Wf 0+0
         42 D f1 F 0+0
         50 C f1 F 0+0
         51 C e1 W 0+0",
    );
    assert_eq!((bios.len(), requests.len()), (2, 4));
    assert_eq!((bios[0].requests.len(), bios[0].ended_ns), (3, 31));
    assert_eq!((bios[1].requests.len(), bios[1].empty_flush), (1, true));
    // A disk with FUA needs no flush after the data, and the request shows it.
    check(
        "1 Q b1 Wu 0+4096
         2 G b1 Wu 0+4096
         3 D r1 Wu 0+4096 rel=b1
         4 C r1 Wu 0+4096",
    );
}

#[test]
fn discards_that_were_merged_without_an_event() {
    let (bios, requests) = check(
        "1 Q b1 D 0+4096
         2 G b1 D 0+4096
         3 Q b2 D 4096+4096
         4 Q b3 D 8192+4096
         5 D r1 D 0+12288 rel=b1 links=b2,b3
         9 C r1 D 0+12288",
    );
    assert_eq!((bios.len(), requests[0].bios), (3, 3));
}

#[test]
fn disks_are_apart() {
    check(
        "1 Q b1 R 0+4096 dev=8:0
         2 G b1 R 0+4096 dev=8:0
         3 Q b2 R 0+4096 dev=8:16
         4 G b2 R 0+4096 dev=8:16
         5 D r2 R 0+4096 rel=b2 dev=8:16
         6 C r2 R 0+4096 dev=8:16
         7 D r1 R 0+4096 rel=b1 dev=8:0
         8 C r1 R 0+4096 dev=8:0",
    );
}

#[test]
fn after_a_loss_nothing_old_is_taken_for_new() {
    let text = "1 Q b1 R 0+4096
         2 G b1 R 0+4096
         3 D r1 R 0+4096 rel=b1
         5 loss total=9 sub=0
         10 Q b1 R 0+4096
         11 G b1 R 0+4096
         12 D r1 R 0+4096 rel=b1
         14 C r1 R 0+4096";
    let mut told = as_blktrace(&notation::events(text));
    // The loss is the collector's own word.
    told[3] = notation::events(text)[3];
    let (bios, ..) = spans(&identified(&told));
    assert_eq!(bios.len(), 1);
    assert_eq!((bios[0].queued_ns, bios[0].ended_ns), (10, 14));
}

#[test]
fn what_began_before_the_recording_has_no_bio() {
    let told = as_blktrace(&notation::events(
        "1 D r1 R 0+4096 rel=b1\n2 C r1 R 0+4096\n3 C r2 W 512+512\n4 C r3 W 0+0\n5 RQ r4 W 0+512",
    ));
    let (bios, requests, _) = spans(&identified(&told));
    assert_eq!((bios.len(), requests.len()), (0, 1));
}

#[test]
fn whole_requests_of_light_detail_are_each_their_own() {
    let done = Event {
        kind: Kind::RequestDone as u8,
        dev: 1,
        bytes: 4096,
        ..Event::default()
    };
    let objects: Vec<u64> = identified(&[done, done]).iter().map(|e| e.object).collect();
    assert!(objects[0] != 0 && objects[0] != objects[1], "{objects:?}");
}

#[test]
fn events_with_identities_pass() {
    let told = notation::events(
        "1 Q b1 W 0+4096\n2 G b1\n3 D r1 W 0+4096 rel=b1\n4 thread tid=9 tgid=9 name=x",
    );
    assert_eq!(identified(&told), told);
}

#[test]
fn what_never_ends_is_forgotten() {
    let mut identity = SectorIdentity::default();
    let lost: Vec<Event> = (0..1000u64)
        .map(|i| Event {
            ts_ns: i * 1_000_000_000,
            kind: [Kind::Queue, Kind::GetRequest, Kind::Issue][i as usize % 3] as u8,
            offset: i / 3 * 4096,
            bytes: 4096,
            ..Event::default()
        })
        .collect();
    for mut event in lost {
        identity.identify(&mut event, |_| {});
    }
    let disk = &identity.disks[0];
    assert!(disk.in_flight() < 140, "{}", disk.in_flight());
}

/// How many bios of those that were queued may be another one.
fn n_guessed(text: &str) -> usize {
    let mut identity = SectorIdentity::default();
    let mut bios = Vec::new();
    for mut event in as_blktrace(&notation::events(text)) {
        identity.identify(&mut event, |_| {});
        if event.kind() == Some(Kind::Queue) {
            bios.push(event.object);
        }
    }
    bios.retain(|bio| identity.was_guessed(*bio));
    bios.len()
}

#[test]
fn equal_bios_of_two_tasks_are_told_by_the_task() {
    let text = "1 Q b1 W 0+4096 tid=1
         2 Q b2 W 0+4096 tid=2
         3 G b2 W 0+4096 tid=2
         4 D r2 W 0+4096 rel=b2
         9 C r2 W 0+4096
         10 G b1 W 0+4096 tid=1
         11 D r1 W 0+4096 rel=b1
         20 C r1 W 0+4096";
    let (bios, _) = check(text);
    let ends: Vec<_> = bios
        .iter()
        .map(|bio| (bio.queued_ns, bio.ended_ns))
        .collect();
    assert_eq!(ends, [(2, 9), (1, 20)]);
    assert_eq!(n_guessed(text), 0);
    let split = "1 Q b1 R 0+8192 tid=1
         2 Q b2 R 0+8192 tid=2
         3 X b3 R 0+4096 rel=b2 tid=2
         4 G b3 R 0+4096 tid=2
         5 G b2 R 4096+4096 tid=2
         6 D r1 R 0+4096 rel=b3
         7 D r2 R 4096+4096 rel=b2
         8 C r1 R 0+4096
         9 C r2 R 4096+4096
         10 G b1 R 0+8192 tid=1
         11 D r3 R 0+8192 rel=b1
         12 C r3 R 0+8192";
    check(split);
    assert_eq!(n_guessed(split), 0);
}

#[test]
fn equal_bios_that_nothing_tells_apart_are_marked() {
    let queued = |tids: [u32; 2]| {
        let [a, b] = tids;
        format!("1 Q b1 W 0+4096 tid={a}\n2 Q b2 W 0+4096 tid={b}\n")
    };
    let one_after_the_other = "3 G b2 W 0+4096 tid=2
         4 D r2 W 0+4096 rel=b2
         9 C r2 W 0+4096
         10 G b1 W 0+4096 tid=1
         11 D r1 W 0+4096 rel=b1
         20 C r1 W 0+4096";
    let both = "3 G b2 W 0+4096 tid=2\n4 G b1 W 0+4096 tid=1\n";
    let cases = [
        (queued([1, 2]) + one_after_the_other, 0),
        (queued([2, 2]) + one_after_the_other, 2),
        // A worker puts them into requests, as where I/O is throttled.
        (queued([3, 4]) + one_after_the_other, 2),
        // Which of the two requests is issued first, and which ends first?
        (queued([1, 2]) + both + "5 D r W 0+4096", 2),
        (
            "1 Q b1 W 0+4096\n2 G b1 W 0+4096\n3 D r1 W 0+4096\n4 Q b2 W 0+4096\n5 G b2 W 0+4096
             6 D r2 W 0+4096\n9 C r1 W 0+4096\n10 C r2 W 0+4096"
                .to_owned(),
            2,
        ),
        (
            "1 Q b1 W 0+4096\n2 Q b2 W 0+8192\n3 Q b3 R 0+4096\n4 G b2 W 0+8192\n5 G b3 R 0+4096
             6 G b1 W 0+4096\n7 D r1 W 0+4096\n8 D r2 W 0+8192\n9 C r1 W 0+4096\n10 C r2 W 0+8192"
                .to_owned(),
            0,
        ),
        // The first is there for so long that the second is taken.
        (
            "1 Q b1 W 0+4096\n2 G b1 W 0+4096\n3 D r1 W 0+4096
             200m Q b2 W 0+4096\n201m G b2 W 0+4096\n202m D r2 W 0+4096\n203m C r1 W 0+4096"
                .to_owned(),
            2,
        ),
        // Those that wait for one flush end in their order.
        (
            "1 Q b1 Wf 0+0 tid=1\n2 Q b2 Wf 0+0 tid=2\n3 G b2 Wf 0+0 tid=2\n4 G b1 Wf 0+0 tid=1
             5 D f1 F 0+0\n6 C f1 F 0+0\n7 C e1 W 0+0\n8 C e2 W 0+0"
                .to_owned(),
            0,
        ),
        // The half of a bio that was split stands for the whole.
        (
            "1 Q b1 R 0+8192\n2 X b2 R 0+4096 rel=b1\n3 Q b3 R 0+4096\n4 G b2 R 0+4096".to_owned(),
            2,
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(n_guessed(&text), expected, "{text}");
    }
}

#[test]
fn marks_of_bios_that_never_end_are_bounded() {
    let mut identity = SectorIdentity::default();
    for pair in 0..100_000u64 {
        for kind in [Kind::Queue, Kind::Queue, Kind::GetRequest, Kind::GetRequest] {
            let mut event = Event {
                ts_ns: pair,
                kind: kind as u8,
                offset: pair * 4096,
                bytes: 4096,
                ..Event::default()
            };
            identity.identify(&mut event, |_| {});
        }
    }
    let n_marks = identity.addresses.guesses.len();
    assert!((1 << 16..=1 << 17).contains(&n_marks), "{n_marks}");
}

#[test]
fn batches_get_what_an_iterator_gets() {
    // Merges, so that there are links between the events, of more bios than one link holds.
    let merged = |first: u64| {
        let at = move |ts_ns: u64, kind: Kind, sector: u64, sectors: u64| Event {
            ts_ns: first + ts_ns,
            kind: kind as u8,
            offset: sector * 512,
            bytes: sectors * 512,
            ..Event::default()
        };
        let bios = (0..9_u64).flat_map(move |bio| {
            let enters = if bio == 0 {
                Kind::GetRequest
            } else {
                Kind::BackMerge
            };
            [Kind::Queue, enters].map(|kind| at(bio, kind, first + bio * 8, 8))
        });
        bios.chain([
            at(10, Kind::Issue, first, 72),
            at(11, Kind::Complete, first, 72),
        ])
    };
    let events: Vec<Event> = (0..20).flat_map(|n| merged(n * 1000)).collect();
    let expected: Vec<Event> = Identified::new(events.iter().copied()).collect();
    assert_eq!(expected.len(), events.len() + 20 * 3);
    for size in [1, 3, 19, 20, 400] {
        let mut identities = Identities::default();
        let batches = events.chunks(size).map(|batch| {
            let mut batch = batch.to_vec();
            identities.identify(&mut batch);
            batch
        });
        assert_eq!(batches.collect::<Vec<_>>().concat(), expected, "{size}");
    }
}

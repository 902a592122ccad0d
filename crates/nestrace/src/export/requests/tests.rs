//! Requests of few events.

use super::*;

fn event(ts_ns: u64, kind: Kind, object: u64) -> Event {
    Event {
        ts_ns,
        kind: kind as u8,
        object,
        dev: 8 << 20,
        flags: flags::OP_WRITE,
        offset: 4096,
        bytes: 8192,
        related: u64::from(kind == Kind::Issue),
        ..Event::default()
    }
}

fn steps(events: &[Event]) -> Vec<Step> {
    let (mut requests, mut steps) = (Requests::default(), Vec::new());
    for event in events {
        requests.push(event, |step| steps.push(step));
    }
    requests.finish(|step| steps.push(step));
    steps
}

fn ended(events: &[Event]) -> Vec<Request> {
    let ended = |step| match step {
        Step::Ended(request) | Step::Whole(request) => Some(request),
        Step::Issued(_) => None,
    };
    steps(events).into_iter().filter_map(ended).collect()
}

#[test]
fn a_request_ends_with_its_last_completion() {
    let part = Event {
        bytes: 4096,
        related: 4096,
        ..event(30, Kind::Complete, 1)
    };
    let last = Event {
        offset: 8192,
        bytes: 4096,
        related: 0,
        ..event(40, Kind::Complete, 1)
    };
    let found = ended(&[event(10, Kind::Issue, 1), part, last]);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].d2c_ns(), found[0].moved), (Some(30), 8192));
    assert_eq!((found[0].op.name(), found[0].bios), ("write", 1));
}

#[test]
fn one_that_was_put_back_is_issued_once() {
    let found = steps(&[
        event(10, Kind::Issue, 1),
        event(11, Kind::Requeue, 1),
        event(20, Kind::Issue, 1),
        event(30, Kind::Complete, 1),
    ]);
    let [Step::Issued(_), Step::Ended(request)] = found[..] else {
        panic!("{found:?}");
    };
    assert_eq!((request.requeues, request.d2c_ns()), (1, Some(20)));
}

#[test]
fn what_has_no_partner_is_there_all_the_same() {
    let found = ended(&[
        event(5, Kind::Complete, 9),
        event(10, Kind::Issue, 1),
        event(20, Kind::Issue, 1),
    ]);
    let times: Vec<_> = found
        .iter()
        .map(|request| (request.issued_ns, request.completed_ns))
        .collect();
    assert_eq!(times, [(None, Some(5)), (Some(10), None), (Some(20), None)]);
    assert_eq!(found[0].bytes, 8192);
}

#[test]
fn the_end_of_a_flush_sequence_is_no_request() {
    let data = Event {
        flags: flags::OP_WRITE | flags::FLUSH_SEQ,
        ..event(20, Kind::Complete, 1)
    };
    let last = Event {
        bytes: 0,
        ..event(30, Kind::Complete, 1)
    };
    let found = ended(&[event(10, Kind::Issue, 1), data, last]);
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].completed_ns, Some(20));
}

#[test]
fn a_completion_without_data_is_another_s() {
    let empty = Event {
        bytes: 0,
        ..event(30, Kind::Complete, 1)
    };
    let found = ended(&[event(10, Kind::Issue, 1), empty]);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].completed_ns, found[0].moved), (None, 0));
}

#[test]
fn a_completion_elsewhere_is_of_a_request_that_was_not_seen() {
    let elsewhere = Event {
        offset: 1 << 20,
        ..event(30, Kind::Complete, 1)
    };
    let found = ended(&[event(10, Kind::Issue, 1), elsewhere]);
    let times: Vec<_> = found
        .iter()
        .map(|request| (request.offset, request.issued_ns, request.completed_ns))
        .collect();
    assert_eq!(times, [(4096, Some(10), None), (1 << 20, None, Some(30))]);
}

#[test]
fn what_merges_at_the_address_of_a_lost_completion_is_another_request() {
    let merge = event(20, Kind::RequestMerge, 1);
    let found = ended(&[event(10, Kind::Issue, 1), merge, event(30, Kind::Issue, 1)]);
    assert_eq!(found.len(), 2);
    assert!(found.iter().all(|request| request.completed_ns.is_none()));
}

#[test]
fn a_guest_s_loss_ends_what_was_in_flight() {
    let loss = Event {
        sub: Source::Block as u8,
        ..event(20, Kind::Loss, 3)
    };
    let events = [
        event(10, Kind::Issue, 1),
        loss,
        event(30, Kind::Complete, 1),
    ];
    let times = |mut requests: Requests| {
        let mut times = Vec::new();
        for event in &events {
            requests.push(event, |step| {
                if let Step::Ended(request) = step {
                    times.push((request.issued_ns, request.completed_ns));
                }
            });
        }
        times
    };
    assert_eq!(
        times(Requests::of_guest()),
        [(Some(10), None), (None, Some(30))]
    );
    assert_eq!(times(Requests::default()), [(Some(10), Some(30))]);
}

#[test]
fn too_many_in_flight_are_given_up() {
    let mut requests = Requests::default();
    let mut given_up = 0;
    for object in 0..3 * MAX_OPEN as u64 {
        requests.push(&event(object, Kind::Issue, object), |step| {
            given_up += usize::from(matches!(step, Step::Ended(_)));
        });
    }
    assert!(requests.open.len() <= MAX_OPEN);
    assert_eq!(given_up + requests.open.len(), 3 * MAX_OPEN);
}

/// What becomes of the events at one address, ten nanoseconds apart: `D W 0+4096`, `C W 0+4096 rest=4096`, `seq` for a flush
/// sequence. Of each request offset, D, last C and what it moved.
fn lives(text: &str) -> Vec<(u64, Option<u64>, Option<u64>, u64)> {
    let events: Vec<Event> = (1..)
        .zip(text.split(';'))
        .map(|(nth, line)| noted(10 * nth, line))
        .collect();
    let life = |request: Request| {
        let times = (request.issued_ns, request.completed_ns);
        (request.offset, times.0, times.1, request.moved)
    };
    ended(&events).into_iter().map(life).collect()
}

fn noted(ts_ns: u64, line: &str) -> Event {
    let mut words = line.split_whitespace();
    let kind = match words.next() {
        Some("D") => Kind::Issue,
        Some("R") => Kind::Requeue,
        _ => Kind::Complete,
    };
    let mut event = event(ts_ns, kind, 1);
    event.flags = match words.next() {
        Some("W") => flags::OP_WRITE,
        Some("F") => flags::OP_FLUSH,
        _ => flags::OP_OTHER,
    };
    for word in words {
        if word == "seq" {
            event.flags |= flags::FLUSH_SEQ;
        } else if let Some(rest) = word.strip_prefix("rest=") {
            event.related = rest.parse().unwrap();
        } else if let Some((offset, bytes)) = word.split_once('+') {
            (event.offset, event.bytes) = (offset.parse().unwrap(), bytes.parse().unwrap());
        }
    }
    event
}

#[test]
fn what_is_put_back_goes_on() {
    for (text, moved) in [
        ("D W 0+4096; R W 0+4096; D W 0+4096; C W 0+4096", 4096),
        // The rest of it.
        (
            "D W 0+8192; C W 0+4096 rest=4096; R W 4096+4096; D W 4096+4096; C W 4096+4096",
            8192,
        ),
        // Others were merged with it.
        (
            "D W 4096+4096; R W 4096+4096; D W 0+12288; C W 0+12288",
            12288,
        ),
        // The C of a part was lost.
        (
            "D W 0+8192; R W 4096+4096; D W 4096+4096; C W 4096+4096",
            4096,
        ),
        // A driver's command has no place.
        ("D O 0+512; R O 512+512; D O 0+512; C O 1024+512", 512),
        ("D F 0+0; R F 0+0; D F 0+0; C F 0+0 seq", 0),
    ] {
        let found = lives(text);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        let last_ns = 10 * text.split(';').count() as u64;
        assert_eq!(
            (found[0].1, found[0].2),
            (Some(10), Some(last_ns)),
            "{text}"
        );
        assert_eq!(found[0].3, moved, "{text}");
    }
}

#[test]
fn a_lost_d_or_r_brings_no_dead_request_back() {
    let (first_ended, second) = (
        (0, Some(10), Some(30), 4096),
        (8192, Some(40), Some(50), 4096),
    );
    assert_eq!(
        lives("D W 0+4096; R W 0+4096; C W 0+4096; D W 8192+4096; C W 8192+4096"),
        [first_ended, second]
    );
    for text in [
        // Not the D of what was put back.
        "D W 0+4096; R W 0+4096; D W 8192+4096; C W 8192+4096",
        // Not the R of what was issued.
        "D W 0+4096; R W 8192+4096; D W 8192+4096; C W 8192+4096",
    ] {
        let expected = [(0, Some(10), None, 0), (8192, Some(30), Some(40), 4096)];
        assert_eq!(lives(text), expected, "{text}");
    }
}

#[test]
fn a_completion_is_of_a_request_that_does_the_same() {
    let lost = |moved| (0, Some(10), None, moved);
    for (text, expected) in [
        // Some of its data came; the last C is another's.
        (
            "D W 0+8192; C W 0+4096 rest=4096; C W 0+0",
            vec![lost(4096)],
        ),
        ("D W 0+4096; C F 0+0 seq", vec![lost(0)]),
        (
            "D F 0+0; C W 0+4096",
            vec![lost(0), (0, None, Some(20), 4096)],
        ),
        // That of a flush sequence ends it, where the C of its data was lost.
        ("D W 0+4096 seq; C W 0+0", vec![(0, Some(10), Some(20), 0)]),
        // A driver says that nothing was moved yet.
        (
            "D W 0+4096; C W 0+0 rest=4096; C W 0+4096",
            vec![(0, Some(10), Some(30), 4096)],
        ),
        // The C of the first part was lost.
        (
            "D W 0+8192; C W 4096+4096",
            vec![(0, Some(10), Some(20), 4096)],
        ),
    ] {
        assert_eq!(lives(text), expected, "{text}");
    }
}

#[test]
fn parts_that_complete_of_ever_new_requests_are_given_up() {
    let mut requests = Requests::default();
    for object in 0..3 * MAX_OPEN as u64 {
        let part = Event {
            related: 4096,
            ..event(object, Kind::Complete, object)
        };
        requests.push(&part, |_| {});
    }
    assert!(requests.open.len() <= MAX_OPEN);
}

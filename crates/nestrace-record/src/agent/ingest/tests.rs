//! What the sessions' tests cannot reach: streams that fail, and numbers at their limits.

use nestrace_abi::Kind;
use nestrace_trace::manifest::{GuestDisk, Machine, Refused};
use nestrace_wire::{
    AgentHello, DROPPED_BUFFERS, End, Live, Lost, MAX_BUFFER, MAX_FRAME, encode_frame,
};

use super::super::account::bounds::MEASURED;
use super::super::probe_records::{buffer, put_events, translation};
use super::*;

mod addresses;
mod buffers;

/// Streams in memory that fail after so many bytes.
struct Room(usize);

/// Names that another guest's streams have.
const TAKEN: &[&str] = &["guest-vm2.arrows", "guest-vm2.2.arrows"];

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

    fn open(&mut self, file: &str) -> Result<Option<StreamWriter<Full, std::io::Sink>>, String> {
        if TAKEN.contains(&file) {
            return Ok(None);
        }
        let writer = StreamWriter::new(Full { left: self.0 }, std::io::sink());
        writer.map(Some).map_err(|e| e.to_string())
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

/// So many events, as the bytes of a buffer.
fn events(n: u64) -> Vec<u8> {
    let event = |n: u64| Event {
        ts_ns: 1000,
        kind: Kind::Queue as u8,
        object: n.wrapping_mul(0x9e37_79b9_7f4a_7c15),
        ..Event::default()
    };
    buffer(&(0..n).map(event).collect::<Vec<_>>())
}

fn live() -> AgentMessage<'static> {
    AgentMessage::Live(Live {
        translation: Some(translation()),
        ..Live::default()
    })
}

const COMPLETE: AgentMessage<'_> = AgentMessage::Until(u64::MAX);

#[test]
fn a_full_disk_ends_the_stream_and_not_the_session() {
    let mut ingest = Ingest::new("vm1", Room(100_000), 5);
    ingest.feed(&bytes(&[hello(5), live()]), 1).unwrap();
    let number = 0;
    let bytes_of_events = &events(8000);
    let one = bytes(&[
        AgentMessage::Buffer {
            number,
            bytes: bytes_of_events,
        },
        COMPLETE,
    ]);
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
    let ten = &events(10);
    let ten = AgentMessage::Buffer {
        number: 0,
        bytes: ten,
    };
    let mut left = bytes(&[hello(4), ten.clone(), ten.clone()]);
    left.truncate(left.len() - 20);
    left.extend(bytes(&[hello(5), live(), ten, COMPLETE]));
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
    let over = (0..=1000).find_map(|_| ingest.feed(&again, 1).err());
    assert!(matches!(over, Some(IngestError::TooManyHellos)));
}

#[test]
fn of_bytes_without_meaning_no_more_than_a_frame_is_held() {
    let mut ingest = recorded();
    // A frame that never ends, then no frames at all.
    let mut endless = bytes(&[AgentMessage::Buffer {
        number: 0,
        bytes: &vec![0; MAX_BUFFER],
    }]);
    endless.truncate(endless.len() - 1);
    ingest.feed(&endless, 11 * SECOND).unwrap();
    assert!(ingest.reader.n_waiting() <= MAX_FRAME);
    assert!(ingest.feed(&[1; 1 << 16], 11 * SECOND).is_err());
    for _ in 0..64 {
        ingest.start("full", true, true);
        let over = ingest.feed(&[0xff; 1 << 16], 11 * SECOND).is_err();
        assert!(over || ingest.reader.n_waiting() <= MAX_FRAME);
    }
    let json = serde_json::to_vec(&ingest.account.sides).unwrap().len();
    assert!(json < 10_000, "{json}");
}

/// A newer agent says every 250 ms what this release does not know, for days.
#[test]
fn kinds_that_are_not_known_are_passed_over_and_counted() {
    let mut ingest = recorded();
    let mut unknown = Vec::new();
    for _ in 0..4 * MAX_REFUSED_FRAMES {
        encode_frame(FrameKind::Ping, b"of a release to come", &mut unknown);
    }
    ingest.feed(&unknown, 11 * SECOND).unwrap();
    let times = refused(&ingest, "of a kind that this release does not know");
    assert_eq!(times, 4 * MAX_REFUSED_FRAMES);
    assert_eq!(ingest.wait_ns(11 * SECOND), 0, "they cost their bytes only");
}

#[test]
fn short_messages_do_not_have_a_large_side_measured_again_and_again() {
    let disks = (0..200).map(|dev| GuestDisk {
        dev,
        name: "x".repeat(10),
        ..GuestDisk::default()
    });
    let hello = AgentMessage::Hello(Box::new(AgentHello {
        protocol: VERSION,
        session: 5,
        disks: disks.collect(),
        ..AgentHello::default()
    }));
    let refused = |names: &[&str]| {
        let probes = names.iter().map(|name| Refused {
            name: (*name).to_owned(),
            ..Refused::default()
        });
        AgentMessage::Refused(probes.collect())
    };
    let live = AgentMessage::Live(Live::default());
    for (what, messages) in [
        ("refused", [refused(&[]), refused(&[])]),
        ("live", [live.clone(), live]),
        ("each time others", [refused(&["a"]), refused(&["b"])]),
    ] {
        let mut ingest = Ingest::new("vm1", Room(1 << 20), 5);
        ingest
            .feed(&bytes(std::slice::from_ref(&hello)), SECOND)
            .unwrap();
        let before = MEASURED.get();
        let read = bytes(&messages).repeat(1000);
        ingest.feed(&read, 2 * SECOND).unwrap();
        let measured = MEASURED.get() - before;
        assert!(measured < 4 << 16, "{what}: {measured} bytes of JSON");
        let wait_ns = ingest.wait_ns(2 * SECOND);
        assert!(wait_ns > SECOND, "{what}: the next read after {wait_ns} ns");
    }
}

#[test]
fn what_a_guest_says_uses_up_nothing_of_what_is_told_of_it() {
    let mut ingest = recorded();
    for n in 0..500 {
        let said = AgentMessage::Notice(format!("text {n}"));
        let facts = AgentMessage::Hello(Box::new(AgentHello {
            protocol: VERSION,
            session: 5,
            mono_ns: 11 * SECOND,
            missing: vec![format!("vd{n}")],
            disks: vec![GuestDisk {
                serial: format!("disk {n}"),
                ..GuestDisk::default()
            }],
            ..AgentHello::default()
        }));
        ingest.feed(&bytes(&[said, facts]), 11 * SECOND).unwrap();
    }
    let n_said = ingest.account.notices.len();
    assert!(n_said <= 40, "{n_said}");
    let last = ingest.account.notices.last().unwrap();
    assert!(last.message.ends_with("are not listed"), "{last:?}");
    // It goes on being live, over and over.
    for n in 0..100 {
        ingest.feed(&begin(11 * SECOND), 12 * SECOND + n).unwrap();
    }
    begin_anew(&mut ingest, HOUR, 13 * SECOND).unwrap();
    assert!(told(&ingest, "agent_back").is_some());
    assert!(told(&ingest, "guest_clock_ahead").is_some());
    let news = &ingest.account.news;
    assert!(
        news.iter().any(|news| news.contains("went ahead")),
        "{news:?}"
    );
}

#[test]
fn disks_and_mounts_may_change_every_second() {
    let mut ingest = Ingest::new("vm1", Room(1 << 20), 5);
    let missing = AgentMessage::Hello(Box::new(AgentHello {
        protocol: VERSION,
        session: 5,
        missing: vec!["vdz".to_owned()],
        ..AgentHello::default()
    }));
    let again = bytes(&[missing]);
    for second in 1..5000 {
        ingest.feed(&again, second * SECOND).unwrap();
    }
    let account = &ingest.account;
    assert_eq!((account.sides.len(), account.notices.len()), (1, 1));
}

const SECOND: u64 = 1_000_000_000;

/// An agent that is live, and is heard until ten seconds of the host's time; its own are the same.
fn recorded() -> Ingest<Room> {
    let mut ingest = Ingest::new("vm1", Room(1 << 20), 5);
    ingest.feed(&begin(SECOND), SECOND).unwrap();
    say(&mut ingest, 10 * SECOND);
    assert_eq!(ingest.account.state, State::Live);
    ingest
}

fn hello_at(mono_ns: u64) -> AgentMessage<'static> {
    hello_in(5, mono_ns)
}

fn hello_in(session: u64, mono_ns: u64) -> AgentMessage<'static> {
    AgentMessage::Hello(Box::new(AgentHello {
        protocol: VERSION,
        session,
        mono_ns,
        ..AgentHello::default()
    }))
}

fn begin(mono_ns: u64) -> Vec<u8> {
    begin_in(5, mono_ns)
}

fn begin_in(session: u64, mono_ns: u64) -> Vec<u8> {
    let live = Live {
        mono_ns,
        probes: Vec::new(),
        translation: Some(translation()),
    };
    bytes(&[hello_in(session, mono_ns), AgentMessage::Live(live)])
}

/// Asks for the guest's clock, which shows `guest_ns`.
fn show(ingest: &mut Ingest<Room>, guest_ns: u64, now_ns: u64) {
    let HostMessage::Ping { token, .. } = ingest.ping(now_ns) else {
        panic!("no ping");
    };
    let pong = bytes(&[AgentMessage::Pong { token, guest_ns }]);
    ingest.feed(&pong, now_ns).unwrap();
}

/// The agent begins the session that a jump of its clock asks for.
fn begin_anew(ingest: &mut Ingest<Room>, guest_ns: u64, now_ns: u64) -> Result<(), IngestError> {
    let HostMessage::Start(start) = ingest.start("full", true, true) else {
        panic!("no question");
    };
    ingest.feed(&begin_in(start.session, guest_ns), now_ns)
}

/// An event of this time comes; how many have been written.
fn record(ingest: &mut Ingest<Room>, ts_ns: u64, now_ns: u64) -> u64 {
    let event = Event {
        ts_ns,
        kind: Kind::Thread as u8,
        ..Event::default()
    };
    let mut frames = Vec::new();
    put_events(&[event], &mut frames);
    ingest.feed(&frames, now_ns).unwrap();
    ingest.account.events
}

/// How often input was refused for this reason, over all sides.
fn refused(ingest: &Ingest<Room>, reason: &str) -> u64 {
    let all = ingest.account.sides.iter().flat_map(|side| &side.refused);
    all.filter(|r| r.reason.contains(reason))
        .map(|r| r.times)
        .sum()
}

fn told<'a>(ingest: &'a Ingest<Room>, what: &str) -> Option<&'a str> {
    let notices = &ingest.account.notices;
    let notice = notices.iter().find(|notice| notice.what == what);
    notice.map(|notice| notice.message.as_str())
}

fn say(ingest: &mut Ingest<Room>, now_ns: u64) {
    let word = bytes(&[AgentMessage::Notice("here".to_owned())]);
    ingest.feed(&word, now_ns).unwrap();
}

fn gaps(ingest: &Ingest<Room>) -> Vec<(u64, u64)> {
    let gaps = ingest.account.sides[0].gaps.iter();
    gaps.map(|gap| (gap.from_host_ns, gap.to_host_ns)).collect()
}

#[test]
fn an_agent_that_is_started_again_leaves_a_gap_however_short() {
    let mut ingest = recorded();
    let changed = bytes(&[hello_at(10 * SECOND)]);
    ingest.feed(&changed, 10 * SECOND + 5).unwrap();
    say(&mut ingest, 11 * SECOND);
    assert_eq!(gaps(&ingest), []);
    ingest.feed(&begin(12 * SECOND), 12 * SECOND).unwrap();
    assert_eq!(gaps(&ingest), [(11 * SECOND, 12 * SECOND)]);
    // What is missing stands in the stream as a loss, and is reported as one.
    assert_eq!((ingest.account.events, ingest.account.n_lost()), (1, 1));
}

#[test]
fn so_does_one_that_had_ended_and_its_end_is_the_last_one() {
    let mut ingest = recorded();
    let end = End {
        mono_ns: 11 * SECOND,
        reason: "stop".to_owned(),
    };
    let end = bytes(&[AgentMessage::End(end)]);
    ingest.feed(&end, 11 * SECOND).unwrap();
    let again = begin(15 * SECOND);
    ingest.feed(&again[..again.len() - 1], 15 * SECOND).unwrap();
    // It has said Hello, and may never record.
    assert_eq!(ingest.account.sides[0].end_mono_ns, 11 * SECOND);
    assert_eq!(ingest.missing_since_ns(), 11 * SECOND);
    ingest.feed(&again[again.len() - 1..], 16 * SECOND).unwrap();
    assert_eq!(gaps(&ingest), [(11 * SECOND, 16 * SECOND)]);
    assert_eq!(ingest.account.sides[0].end_mono_ns, 0);
    assert_eq!(ingest.account.state, State::Live);
}

#[test]
fn a_snapshot_that_is_loaded_begins_another_side() {
    let mut ingest = recorded();
    // The agent goes on as it was when the snapshot was taken: only its clock tells.
    show(&mut ingest, 11 * SECOND, 11 * SECOND);
    assert!(!ingest.clock_jumped());
    show(&mut ingest, 3 * SECOND, 12 * SECOND);
    assert!(ingest.clock_jumped() && !ingest.clock_jumped());
    begin_anew(&mut ingest, 4 * SECOND, 13 * SECOND).unwrap();
    assert_eq!(ingest.account.sides.len(), 2);
    assert_eq!(ingest.account.sides[1].start_mono_ns, 4 * SECOND);
    assert!(told(&ingest, "guest_reverted").is_some() && told(&ingest, "guest_rebooted").is_none());
}

const HOUR: u64 = 3600 * SECOND;

#[test]
fn between_two_sides_there_is_a_gap() {
    for (boot, backend, mono_ns, from_s, reason) in [
        ("other", "", 5 * SECOND, 12, "it was rebooted"),
        ("", "blktrace", 13 * SECOND, 12, "another backend"),
        // What came since its clock was last asked for may be of either time.
        ("", "", 3 * SECOND, 11, "its clock went back"),
        ("", "", HOUR, 11, "its clock went ahead"),
    ] {
        let mut ingest = recorded();
        show(&mut ingest, 11 * SECOND, 11 * SECOND);
        say(&mut ingest, 12 * SECOND);
        let HostMessage::Start(start) = ingest.start("full", true, true) else {
            panic!("no question");
        };
        let hello = AgentMessage::Hello(Box::new(AgentHello {
            protocol: VERSION,
            session: start.session,
            mono_ns,
            backend: backend.to_owned(),
            machine: Machine {
                boot_id: boot.to_owned(),
                ..Machine::default()
            },
            ..AgentHello::default()
        }));
        ingest.feed(&bytes(&[hello]), 13 * SECOND).unwrap();
        assert_eq!(ingest.missing_since_ns(), from_s * SECOND);
        let probes = Vec::new();
        let live = bytes(&[AgentMessage::Live(Live {
            mono_ns,
            probes,
            translation: None,
        })]);
        ingest.feed(&live, 14 * SECOND).unwrap();
        let [before, after] = ingest.account.sides.as_slice() else {
            panic!("{:?}", ingest.account);
        };
        let [gap] = after.gaps.as_slice() else {
            panic!("{after:?}");
        };
        let times = (gap.from_host_ns, gap.to_host_ns);
        assert_eq!(times, (from_s * SECOND, 14 * SECOND), "{reason}");
        assert!(gap.reason.contains(reason), "{gap:?}");
        assert_eq!(before.gaps, []);
    }
}

#[test]
fn an_agent_that_comes_late_leaves_a_gap() {
    // Seconds of the host: when its side is live, when the agent's Hello and Live come; the gap's begin.
    for (host_s, hello_s, live_s, from_s) in [
        (0, 1, 60, None),
        (5, 1, 2, None),
        (5, 6, 9, None),
        (5, 6, 10, Some(5)),
        (5, 30, 31, Some(5)),
    ] {
        let mut ingest = Ingest::new("vm1", Room(1 << 20), 5);
        ingest.host_is_live(host_s * SECOND);
        // One that could not record at first and said so.
        let end = AgentMessage::End(End {
            mono_ns: SECOND,
            reason: "no debugfs".to_owned(),
        });
        let tried = bytes(&[hello_at(SECOND), end]);
        ingest.feed(&tried, hello_s * SECOND).unwrap();
        ingest.feed(&begin(SECOND), live_s * SECOND).unwrap();
        let expected: Vec<_> = from_s
            .map(|from_s| (from_s * SECOND, live_s * SECOND))
            .into_iter()
            .collect();
        assert_eq!(gaps(&ingest), expected, "live at {live_s} s");
    }
}

#[test]
fn a_clock_that_goes_ahead_begins_another_side() {
    let mut ingest = recorded();
    show(&mut ingest, 11 * SECOND, 11 * SECOND);
    assert_eq!(record(&mut ingest, 11 * SECOND, 11 * SECOND), 1);
    // Events of the new time cannot tell a jump from a lie: an answer to what was asked does.
    assert_eq!(record(&mut ingest, HOUR + 12 * SECOND, 12 * SECOND), 1);
    assert!(!ingest.clock_jumped());
    show(&mut ingest, HOUR + 12 * SECOND, 12 * SECOND);
    assert!(ingest.clock_jumped() && !ingest.clock_jumped());
    begin_anew(&mut ingest, HOUR + 13 * SECOND, 13 * SECOND).unwrap();
    assert_eq!(record(&mut ingest, HOUR + 14 * SECOND, 14 * SECOND), 2);
    show(&mut ingest, HOUR + 15 * SECOND, 15 * SECOND);
    ingest.flush(15 * SECOND);
    assert!(!ingest.clock_jumped());
    let [before, after] = ingest.account.sides.as_slice() else {
        panic!("{:?}", ingest.account);
    };
    let shown = |side: &nestrace_trace::manifest::GuestSide| -> Vec<u64> {
        side.clock_samples.iter().map(|s| s.guest_ns).collect()
    };
    assert_eq!(shown(before), [11 * SECOND]);
    assert_eq!(shown(after), [HOUR + 15 * SECOND]);
    assert_eq!(after.start_mono_ns, HOUR + 13 * SECOND);
    assert_eq!(refused(&ingest, "jump of the guest's clock"), 1);
    assert_eq!(refused(&ingest, "event ahead"), 1);
    let message = told(&ingest, "guest_clock_ahead").unwrap();
    assert!(message.starts_with("guest vm1: its clock went ahead by 3600.0 s, "));
}

#[test]
fn a_time_far_ahead_that_answers_nothing_is_refused() {
    let mut ingest = recorded();
    show(&mut ingest, 11 * SECOND, 11 * SECOND);
    // A question that was never asked, and the numbers of those that were.
    for token in [99, 0, 1] {
        let guest_ns = HOUR;
        let pong = bytes(&[AgentMessage::Pong { token, guest_ns }]);
        ingest.feed(&pong, 12 * SECOND).unwrap();
    }
    let live = Live {
        mono_ns: HOUR,
        probes: Vec::new(),
        translation: None,
    };
    let live = bytes(&[AgentMessage::Live(live)]);
    ingest.feed(&live, 12 * SECOND).unwrap();
    assert!(!ingest.clock_jumped());
    assert_eq!(refused(&ingest, "answer without a request"), 3);
    assert_eq!(refused(&ingest, "time ahead"), 1);
    assert_eq!(ingest.account.sides.len(), 1);
    // The clock is what it was.
    show(&mut ingest, 12 * SECOND, 12 * SECOND);
    assert_eq!(record(&mut ingest, 12 * SECOND, 12 * SECOND), 1);
}

/// An agent whose facts have changed says Hello and goes on, without another Live and with the counts that it had.
#[test]
fn facts_of_another_time_ask_for_a_session() {
    for guest_ns in [3 * SECOND, HOUR] {
        let mut ingest = recorded();
        show(&mut ingest, 11 * SECOND, 11 * SECOND);
        ingest
            .feed(&bytes(&[hello_at(guest_ns)]), 12 * SECOND)
            .unwrap();
        assert!(ingest.clock_jumped());
        assert_eq!(refused(&ingest, "jump of the guest's clock"), 1);
        assert_eq!(ingest.account.sides.len(), 1);
        begin_anew(&mut ingest, guest_ns, 13 * SECOND).unwrap();
        assert_eq!(ingest.account.sides.len(), 2);
        assert_eq!(ingest.account.state, State::Live);
        assert_eq!(record(&mut ingest, guest_ns + 1, 13 * SECOND), 1);
    }
}

#[test]
fn an_agent_that_comes_back_with_a_time_far_ahead_is_believed() {
    let mut ingest = recorded();
    begin_anew(&mut ingest, HOUR + 11 * SECOND, 11 * SECOND).unwrap();
    assert_eq!(ingest.account.sides.len(), 2);
    assert!(told(&ingest, "guest_clock_ahead").is_some());
    assert_eq!(record(&mut ingest, HOUR + 12 * SECOND, 12 * SECOND), 1);
}

#[test]
fn a_clock_that_jumps_for_ever_ends_it() {
    let mut ingest = recorded();
    let mut jumps = 0;
    let error = loop {
        jumps += 1;
        let now_ns = (10 + jumps) * SECOND;
        show(&mut ingest, jumps * HOUR, now_ns);
        assert!(ingest.clock_jumped());
        if let Err(error) = begin_anew(&mut ingest, jumps * HOUR, now_ns) {
            break error;
        }
    };
    assert!(matches!(error, IngestError::TooManySides(16)), "{error}");
    assert_eq!((jumps, ingest.account.sides.len()), (16, 16));
    // Without another session: each answer is a refused one.
    let mut ingest = recorded();
    let HostMessage::Ping { token, .. } = ingest.ping(11 * SECOND) else {
        panic!("no ping");
    };
    let guest_ns = HOUR;
    let pong = bytes(&[AgentMessage::Pong { token, guest_ns }]);
    let errors: Vec<IngestError> = (0..=MAX_REFUSED_FRAMES)
        .filter_map(|_| ingest.feed(&pong, 11 * SECOND).err())
        .collect();
    assert!(matches!(errors[..], [IngestError::TooMuchRefused(_)]));
    assert_eq!(ingest.account.sides.len(), 1);
    assert!(told(&ingest, "guest_clock_ahead").is_none());
}

/// What waits in the port when a guest is set to another time is never answered.
#[test]
fn questions_that_are_lost_do_not_stand_in_the_way_of_others() {
    let mut ingest = recorded();
    for _ in 0..16 {
        ingest.ping(11 * SECOND);
    }
    say(&mut ingest, 13 * SECOND);
    assert_eq!(ingest.n_open_pings(), 16);
    say(&mut ingest, 13 * SECOND + 1);
    assert_eq!(ingest.n_open_pings(), 0);
}

#[test]
fn another_backend_is_no_reboot() {
    let mut ingest = recorded();
    let other = AgentMessage::Hello(Box::new(AgentHello {
        protocol: VERSION,
        session: 5,
        mono_ns: 11 * SECOND,
        backend: "blktrace".to_owned(),
        ..AgentHello::default()
    }));
    ingest.feed(&bytes(&[other]), 11 * SECOND).unwrap();
    let notices = ingest.account.notices.iter();
    let told: Vec<&str> = notices.map(|notice| notice.what.as_str()).collect();
    assert!(told.contains(&"agent_backend") && !told.contains(&"guest_rebooted"));
    assert_eq!(ingest.account.sides.len(), 2);
}

#[test]
fn a_stream_s_name_that_another_guest_has_is_passed_over() {
    let mut ingest = Ingest::new("vm2", Room(1 << 20), 5);
    ingest.feed(&begin(SECOND), SECOND).unwrap();
    assert_eq!(ingest.account.sides[0].file, "guest-vm2.3.arrows");
    let next = ingest.account.next_stream();
    assert_eq!(next.as_deref(), Some("guest-vm2.4.arrows"));
}

#[test]
fn what_a_full_disk_leaves_out_is_marked_nowhere() {
    let mut ingest = Ingest::new("vm1", Room(20_000), 5);
    let lost = |total| {
        let source = DROPPED_BUFFERS;
        AgentMessage::Loss(Lost {
            source,
            total,
            mono_ns: 0,
        })
    };
    let all = &events(8000);
    let all = AgentMessage::Buffer {
        number: 0,
        bytes: all,
    };
    let said = bytes(&[hello(5), live(), lost(7), all, COMPLETE]);
    ingest.feed(&said, 1).unwrap();
    ingest.flush(1);
    ingest.feed(&bytes(&[lost(10)]), 1).unwrap();
    assert_eq!((ingest.account.events, ingest.account.n_lost()), (0, 8010));
}

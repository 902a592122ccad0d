//! Sessions over real sockets: the test is QEMU's port and the agent behind it.

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use nestrace_abi::{Kind, Source};
use nestrace_trace::manifest::{GuestDisk, Machine};
use nestrace_trace::wire::{
    AgentHello, AgentMessage, BatchEncoder, DROPPED_BATCHES, End, FrameKind, FrameReader, Live,
    Lost, VERSION, encode_frame,
};
use nestrace_trace::{Event, StreamReader};
use nix::sys::socket::{MsgFlags, recv};

use super::super::account::Account;
use super::super::agents::Agents;
use super::*;

const VDA: u32 = 254 << 20;
/// Longest that anything here may take.
const SOON: Duration = Duration::from_secs(10);

/// A bundle's folder, a port, and the recorder's side of it.
struct Rig {
    dir: tempfile::TempDir,
    listener: UnixListener,
    agents: Agents,
}

/// What stands at the guest's end.
struct Agent {
    port: UnixStream,
    reader: FrameReader,
    session: u64,
    boot: String,
    clock_ns: u64,
}

impl Rig {
    fn new() -> Self {
        Self::with_limit(u64::MAX)
    }

    /// The guest's streams may have so many bytes.
    fn with_limit(limit_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("port");
        let listener = UnixListener::bind(&path).unwrap();
        let bundle = HeldDir::around(&path).unwrap().make_dir("bundle").unwrap();
        let place = Place {
            guest: "../vm 1".to_owned(),
            address: Address::Unix {
                pid: std::process::id(),
                path: path.to_str().unwrap().to_owned(),
            },
        };
        let agents = Agents::start(&[place], &Arc::new(bundle), "full", limit_bytes).unwrap();
        Self {
            dir,
            listener,
            agents,
        }
    }

    fn accept(&self) -> Agent {
        // The first one leaves at once.
        let port = loop {
            let (port, _) = self.listener.accept().unwrap();
            port.set_read_timeout(Some(SOON)).unwrap();
            if recv(port.as_raw_fd(), &mut [0], MsgFlags::MSG_PEEK).unwrap() > 0 {
                break port;
            }
        };
        port.set_write_timeout(Some(SOON)).unwrap();
        Agent {
            port,
            reader: FrameReader::new(),
            session: 0,
            boot: "boot-1".to_owned(),
            clock_ns: 1_000_000_000_000,
        }
    }

    fn account(&self) -> Account {
        self.agents.sessions[0].shared.lock().clone()
    }

    /// Waits until the account is as wanted.
    fn until(&self, what: &str, wanted: impl Fn(&Account) -> bool) -> Account {
        let begin = Instant::now();
        loop {
            let account = self.account();
            if wanted(&account) {
                return account;
            }
            assert!(begin.elapsed() < SOON, "not {what}: {account:?}");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends the sessions; how long that took.
    fn stop(&self) -> (Duration, Account) {
        let begin = Instant::now();
        self.agents.stop();
        while !self.agents.all_ended() {
            assert!(begin.elapsed() < SOON);
            thread::sleep(Duration::from_millis(2));
        }
        (begin.elapsed(), self.account())
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.dir.path().join("bundle")).unwrap();
        let mut names: Vec<String> = entries
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// Every event of a stream, which must be whole and closed.
    fn events(&self, file: &str) -> Vec<Event> {
        let path = self.dir.path().join("bundle").join(file);
        let index = File::open(path.with_extension("arrows.idx")).unwrap();
        let mut reader = StreamReader::new(File::open(path).unwrap(), Some(index)).unwrap();
        let events = reader.events().collect();
        assert!(reader.is_closed() && reader.diagnostics().is_empty());
        events
    }
}

impl Agent {
    fn send(&mut self, message: &AgentMessage<'_>) {
        let mut bytes = Vec::new();
        message.encode_to(&mut bytes);
        self.port.write_all(&bytes).unwrap();
    }

    /// The recorder's next message.
    fn next(&mut self) -> HostMessage {
        let mut buffer = [0; 4096];
        loop {
            if let Some(frame) = self.reader.next_frame().unwrap() {
                return HostMessage::parse(frame).unwrap().unwrap();
            }
            let n = match self.port.read(&mut buffer) {
                // Whoever stops this process for a moment ends a read with a timeout.
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                read => read.unwrap(),
            };
            assert!(n > 0, "the recorder left");
            assert_eq!(self.reader.feed(&buffer[..n]), n);
        }
    }

    /// Waits for the question and answers it.
    fn begin(&mut self) {
        loop {
            if let HostMessage::Start(start) = self.next() {
                self.session = start.session;
                break;
            }
        }
        self.answer();
    }

    /// Its clock goes ahead by so much; begins anew when the recorder, which asks for its clock, asks for that. How often
    /// it was asked for its clock until then.
    fn jump_and_begin(&mut self, by_ns: u64) -> usize {
        self.clock_ns += by_ns;
        let (session, mut n_pings) = (self.session, 0);
        while self.session == session {
            match self.next() {
                HostMessage::Ping { token, .. } => {
                    n_pings += 1;
                    self.send(&AgentMessage::Pong {
                        token,
                        guest_ns: self.clock_ns,
                    });
                }
                HostMessage::Start(start) => self.session = start.session,
                HostMessage::Stop => panic!("told to stop"),
            }
        }
        self.answer();
        n_pings
    }

    /// Says what it is, and that it records: at once, because one that is refused for its Hello finds
    /// the port closed.
    fn answer(&mut self) {
        let mut bytes = Vec::new();
        AgentMessage::Hello(Box::new(self.hello())).encode_to(&mut bytes);
        let live = Live {
            mono_ns: self.clock_ns,
            probes: vec![],
        };
        AgentMessage::Live(live).encode_to(&mut bytes);
        self.port.write_all(&bytes).unwrap();
    }

    fn hello(&self) -> AgentHello {
        AgentHello {
            protocol: VERSION,
            session: self.session,
            agent_version: "0.1".to_owned(),
            backend: "ebpf".to_owned(),
            machine: Machine {
                boot_id: self.boot.clone(),
                ..Machine::default()
            },
            mono_ns: self.clock_ns,
            disks: vec![GuestDisk {
                name: "vda".to_owned(),
                dev: VDA,
                ..GuestDisk::default()
            }],
            ..AgentHello::default()
        }
    }

    /// Answers pings until told to stop.
    fn serve_to_the_end(&mut self) {
        loop {
            match self.next() {
                HostMessage::Ping { token, .. } => self.send(&AgentMessage::Pong {
                    token,
                    guest_ns: self.clock_ns,
                }),
                HostMessage::Stop => break,
                HostMessage::Start(start) => assert_eq!(start.session, self.session),
            }
        }
        self.send(&AgentMessage::End(End {
            mono_ns: self.clock_ns,
            reason: "stop".to_owned(),
            out_of_order: 0,
        }));
    }

    fn batch(&mut self, events: &[Event]) {
        let bytes = batch(events);
        self.send(&AgentMessage::Batch(&bytes));
    }

    fn event(&self, after_ns: u64) -> Event {
        Event {
            ts_ns: self.clock_ns + after_ns,
            kind: Kind::Issue as u8,
            dev: VDA,
            bytes: 4096,
            ..Event::default()
        }
    }
}

fn batch(events: &[Event]) -> Vec<u8> {
    let (mut encoder, _) = BatchEncoder::new().unwrap();
    for event in events {
        encoder.push(event).unwrap();
    }
    encoder.take().unwrap()
}

fn refused(account: &Account, reason: &str) -> u64 {
    let all = account.sides.iter().flat_map(|s| &s.refused);
    let found = all.filter(|r| r.reason.contains(reason)).map(|r| r.times);
    found.sum()
}

/// Bytes of all that the manifest will have of the guest.
fn account_bytes(account: &Account) -> usize {
    let sides = serde_json::to_vec(&account.sides).unwrap().len();
    sides + serde_json::to_vec(&account.notices).unwrap().len()
}

const FIRST: &str = "guest-..%2Fvm%201.arrows";
const SECOND: &str = "guest-..%2Fvm%201.2.arrows";

#[test]
fn a_session_from_the_question_to_the_last_word() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let events: Vec<Event> = (0..1000).map(|n| agent.event(n)).collect();
    agent.batch(&events);
    rig.until("live", |a| a.state == State::Live && a.events == 1000);
    let serving = thread::spawn(move || agent.serve_to_the_end());
    rig.until("asked for its clock", |a| {
        a.sides[0]
            .clock_samples
            .iter()
            .any(|s| s.guest_ns == 1_000_000_000_000)
    });
    let (_, account) = rig.stop();
    serving.join().unwrap();
    assert_eq!(rig.events(FIRST), events);
    assert_eq!(account.state, State::Ended);
    let side = &account.sides[0];
    assert_eq!(
        (side.guest.as_str(), side.file.as_str()),
        ("../vm 1", FIRST)
    );
    assert_eq!(
        (side.live_mono_ns, side.end_mono_ns),
        (1_000_000_000_000, 1_000_000_000_000)
    );
    let sample = side.clock_samples[0];
    assert!(sample.host_sent_ns < sample.host_received_ns);
    assert_eq!(side.refused, []);
    // A machine that stood still for two seconds leaves a silence and no more.
    let silence = |what: &str| ["agent_silent", "agent_back"].contains(&what);
    assert!(account.notices.iter().all(|n| silence(&n.what)));
    let n_silent = account.notices.iter().filter(|n| n.what == "agent_silent");
    assert!(side.gaps.len() <= n_silent.count(), "{side:?}");
    assert!(account.news[0].contains("live (ebpf"));
}

#[test]
fn nobody_answers() {
    let rig = Rig::new();
    let _agent = rig.accept();
    thread::sleep(Duration::from_millis(100));
    let (_, account) = rig.stop();
    assert_eq!(account.state, State::NoAnswer);
    assert_eq!(account.notices[0].what, "agent_none");
    assert!(rig.files().is_empty());
}

#[test]
fn last_words_are_waited_for_where_they_may_come() {
    let ms = |state, is_connected| patience_ns(state, is_connected) / 1_000_000;
    for state in [State::Live, State::Attaching] {
        assert_eq!((ms(state, true), ms(state, false)), (2000, 0));
    }
    assert_eq!(
        (ms(State::Silent, true), ms(State::NoAnswer, true)),
        (200, 50)
    );
    for state in [State::Ended, State::NotConnected] {
        assert_eq!((ms(state, true), ms(state, false)), (0, 0));
    }
}

#[test]
fn an_agent_that_falls_silent_is_waited_for_two_seconds() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    rig.until("live", |a| a.state == State::Live);
    let (took, account) = rig.stop();
    // It may have been silent before it was told to end, and was waited for less then.
    let was_silent = account.state == State::Silent;
    assert!(
        was_silent || took >= Duration::from_millis(1900),
        "{took:?}"
    );
    assert_eq!(account.sides[0].end_mono_ns, 0);
    assert_eq!(account.notices[0].what, "agent_silent");
    assert_eq!(rig.events(FIRST), []);
}

#[test]
fn a_pause_is_a_gap() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    rig.until("silent", |a| a.state == State::Silent);
    agent.clock_ns += 100;
    let event = agent.event(0);
    agent.batch(&[event]);
    // The question that was repeated is that of the same session.
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let account = rig.until("back", |a| a.state == State::Live && a.events == 1);
    let gap = &account.sides[0].gaps[0];
    assert!(gap.to_host_ns - gap.from_host_ns >= SILENT_NS, "{gap:?}");
    let what: Vec<&str> = account.notices.iter().map(|n| n.what.as_str()).collect();
    assert!(
        what.starts_with(&["agent_silent", "agent_back"]),
        "{what:?}"
    );
    rig.stop();
    serving.join().unwrap();
}

/// Disks or mounts have changed in the pause: the first word after it is a Hello, and no Live follows.
#[test]
fn a_pause_that_ends_with_changed_facts_is_a_gap() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    rig.until("silent", |a| a.state == State::Silent);
    agent.clock_ns += 100;
    let event = agent.event(0);
    let mut bytes = Vec::new();
    AgentMessage::Hello(Box::new(agent.hello())).encode_to(&mut bytes);
    AgentMessage::Batch(&batch(&[event])).encode_to(&mut bytes);
    agent.port.write_all(&bytes).unwrap();
    let account = rig.until("back", |a| a.events == 1 && !a.sides[0].gaps.is_empty());
    let gap = &account.sides[0].gaps[0];
    assert!(gap.to_host_ns - gap.from_host_ns >= SILENT_NS, "{gap:?}");
    // It is as live as before: two seconds without a word are a silence again, and no minute.
    let is_silent_again = |a: &Account| {
        a.notices
            .iter()
            .filter(|n| n.what == "agent_silent")
            .count()
            >= 2
    };
    rig.until("silent again", is_silent_again);
    let account = rig.stop().1;
    let reasons: Vec<&str> = account.sides[0]
        .gaps
        .iter()
        .map(|g| g.reason.as_str())
        .collect();
    assert!(
        reasons.iter().all(|r| r.starts_with("no word")),
        "{reasons:?}"
    );
}

#[test]
fn one_that_takes_long_to_attach_is_not_silent() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    loop {
        if let HostMessage::Start(start) = agent.next() {
            agent.session = start.session;
            break;
        }
    }
    let hello = Box::new(agent.hello());
    agent.send(&AgentMessage::Hello(hello));
    rig.until("attaching", |a| a.state == State::Attaching);
    thread::sleep(Duration::from_nanos(SILENT_NS) + Duration::from_millis(300));
    // Not all of what it says then comes at once.
    let (_, schema) = BatchEncoder::new().unwrap();
    agent.send(&AgentMessage::Batch(&schema));
    thread::sleep(Duration::from_millis(100));
    let account = rig.account();
    assert_eq!((account.state, account.notices), (State::Attaching, vec![]));
    agent.send(&AgentMessage::Live(Live {
        mono_ns: agent.clock_ns,
        probes: vec![],
    }));
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let is_told = |a: &Account| a.news.iter().any(|news| news.contains("live (ebpf"));
    rig.until("live", is_told);
    rig.stop();
    serving.join().unwrap();
}

#[test]
fn a_reboot_is_another_stream() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let first = agent.event(5);
    agent.batch(&[first]);
    rig.until("written", |a| a.events == 1);
    // The port stays connected while the guest is started again; its clock begins anew.
    agent.boot = "boot-2".to_owned();
    agent.clock_ns = 7_000_000_000;
    agent.begin();
    let second = agent.event(5);
    agent.batch(&[
        second,
        Event {
            ts_ns: first.ts_ns,
            ..second
        },
    ]);
    rig.until("written", |a| a.events == 2);
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let (_, account) = rig.stop();
    serving.join().unwrap();
    assert_eq!(rig.events(FIRST), [first]);
    assert_eq!(rig.events(SECOND), [second]);
    assert_eq!(account.sides.len(), 2);
    assert_eq!(account.sides[1].start_mono_ns, 7_000_000_000);
    assert_eq!(
        account.sides[1].refused[0].reason,
        "event ahead of the guest's clock"
    );
    assert!(account.notices.iter().any(|n| n.what == "guest_rebooted"));
    assert_eq!(account.sides[0].gaps, []);
    assert_eq!(account.sides[1].gaps[0].reason, "it was started again");
}

#[test]
fn an_agent_that_was_killed_within_a_frame_comes_back() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let event = agent.event(5);
    let mut bytes = Vec::new();
    AgentMessage::Batch(&batch(&vec![event; 5000])).encode_to(&mut bytes);
    agent.port.write_all(&bytes[..bytes.len() / 2]).unwrap();
    // Its successor in the same boot finds the repeated question.
    agent.begin();
    agent.batch(&[event]);
    // The frames before the first one that is whole again may be lost: the successor is asked once more.
    let account = rig.until("live again", |a| a.state == State::Live);
    assert_eq!(account.sides.len(), 1);
    agent.begin();
    agent.batch(&[event]);
    rig.until("heard", |a| a.events >= 1);
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let (_, account) = rig.stop();
    serving.join().unwrap();
    assert_eq!(account.sides.len(), 1);
    assert!(!account.sides[0].refused.is_empty());
    assert!(!rig.events(FIRST).is_empty());
}

#[test]
fn a_connection_that_breaks_is_made_again() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let event = agent.event(5);
    agent.batch(&[event]);
    rig.until("written", |a| a.events == 1);
    drop(agent);
    rig.until("silent", |a| a.state == State::Silent);
    let mut agent = rig.accept();
    // Nobody has answered yet.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.account().state, State::Silent);
    agent.begin();
    let later = agent.event(6);
    agent.batch(&[later]);
    let account = rig.until("written", |a| a.events == 3);
    assert_eq!(account.sides.len(), 1);
    let gap = &account.sides[0].gaps[0];
    assert!(
        gap.to_host_ns - gap.from_host_ns >= 300_000_000,
        "too short: {gap:?}"
    );
    let serving = thread::spawn(move || agent.serve_to_the_end());
    rig.stop();
    serving.join().unwrap();
    // Between what was seen before and after stands a loss, at the time of the last word before.
    let loss = Event {
        ts_ns: event.ts_ns,
        kind: Kind::Loss as u8,
        sub: Source::Block as u8,
        object: 1,
        ..Event::default()
    };
    assert_eq!(rig.events(FIRST), [event, loss, later]);
}

#[test]
fn a_loss_stands_where_batches_are_missing() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let [first, second, third] = [5, 6, 7].map(|n| agent.event(n));
    let lost = |source, total| AgentMessage::Loss(Lost { source, total });
    agent.batch(&[first]);
    agent.send(&lost(DROPPED_BATCHES, 100));
    // The same place.
    agent.send(&lost(DROPPED_BATCHES, 150));
    agent.batch(&[second]);
    agent.send(&lost(DROPPED_BATCHES, 150));
    agent.send(&lost(Source::File as u32, 9));
    agent.send(&AgentMessage::Batch(b"no batch"));
    agent.batch(&[third]);
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let (_, account) = rig.stop();
    serving.join().unwrap();
    let loss = |after: Event, object| Event {
        ts_ns: after.ts_ns,
        kind: Kind::Loss as u8,
        sub: Source::Block as u8,
        object,
        ..Event::default()
    };
    let expected = [first, loss(first, 1), second, loss(second, 2), third];
    assert_eq!(rig.events(FIRST), expected);
    // One mark is of the 150; what the batch had that cannot be read, nobody knows.
    let losses = account.losses().into_iter().map(|l| (l.source, l.events));
    let expected = [("block", 2), ("file", 9), ("guest_stream", 149)];
    assert!(losses.eq(expected.map(|(source, n)| (source.to_owned(), n))));
}

#[test]
fn a_guest_whose_time_goes_back_is_asked_anew() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    rig.until("live", |a| a.state == State::Live);
    let session = agent.session;
    agent.clock_ns -= 100_000_000_000;
    let begin = Instant::now();
    while agent.session == session {
        assert!(begin.elapsed() < SOON, "not asked anew");
        match agent.next() {
            HostMessage::Ping { token, .. } => agent.send(&AgentMessage::Pong {
                token,
                guest_ns: agent.clock_ns,
            }),
            HostMessage::Start(start) => agent.session = start.session,
            HostMessage::Stop => panic!("told to stop"),
        }
    }
    agent.answer();
    let event = agent.event(5);
    agent.batch(&[event]);
    let account = rig.until("written", |a| a.events == 1);
    assert_eq!(account.sides.len(), 2);
    let serving = thread::spawn(move || agent.serve_to_the_end());
    rig.stop();
    serving.join().unwrap();
    assert_eq!(rig.events(SECOND), [event]);
}

/// Its questions for the clock are enough: nothing has to be said of the jump.
#[test]
fn a_guest_whose_time_goes_ahead_is_recorded_on_soon() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let before = agent.event(5);
    agent.batch(&[before]);
    rig.until("written", |a| a.events == 1);
    // As many as may wait in the port, and as many more while the first answer is on its way.
    let n_pings = agent.jump_and_begin(3_600_000_000_000);
    assert!(n_pings <= 2 * MAX_OPEN_PINGS, "{n_pings}");
    let after = agent.event(5);
    agent.batch(&[after]);
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let account = rig.until("live again", |a| a.state == State::Live && a.events == 2);
    let of_guest = account.notices.iter().map(|n| n.what.as_str());
    let of_guest: Vec<&str> = of_guest.filter(|what| what.starts_with("guest_")).collect();
    assert_eq!(of_guest, ["guest_clock_ahead"]);
    rig.stop();
    serving.join().unwrap();
    assert_eq!(rig.events(FIRST), [before]);
    assert_eq!(rig.events(SECOND), [after]);
}

#[test]
fn a_guest_whose_time_goes_ahead_for_ever_is_given_up() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    for _ in 0..15 {
        agent.jump_and_begin(3_600_000_000_000);
    }
    rig.until("live", |a| {
        a.sides.len() == 16 && a.sides[15].live_mono_ns != 0
    });
    agent.jump_and_begin(3_600_000_000_000);
    let account = rig.until("given up", |a| a.state == State::Ended);
    assert_eq!(account.sides.len(), 16);
    let refused = account.notices.iter().find(|n| n.what == "agent_refused");
    let refused = &refused.unwrap().message;
    assert!(refused.contains("jumped, 16 times"), "{refused}");
    rig.stop();
}

#[test]
fn half_a_frame_holds_nobody_up() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    let mut bytes = Vec::new();
    AgentMessage::Notice("x".repeat(1000)).encode_to(&mut bytes);
    agent.port.write_all(&bytes[..500]).unwrap();
    thread::sleep(Duration::from_millis(50));
    let (_, account) = rig.stop();
    assert!(account.sides.is_empty() && rig.files().is_empty());
    drop(agent);
}

#[test]
fn a_port_that_takes_nothing_holds_nobody_up() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    // From here on nothing is read: pings pile up and stay bounded.
    rig.until("silent", |a| a.state == State::Silent);
    thread::sleep(Duration::from_secs(1));
    let (_, account) = rig.stop();
    assert_eq!(account.sides[0].gaps.len(), 1);
}

#[test]
fn time_travel_foreign_kinds_and_devices_are_refused_and_counted() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let good = agent.event(1000);
    let mut events = vec![good];
    events.extend(vec![
        Event {
            ts_ns: u64::MAX,
            ..good
        };
        3
    ]);
    events.extend(vec![Event { ts_ns: 5, ..good }; 4]);
    events.extend(vec![
        Event {
            kind: Kind::AcctStart as u8,
            ..good
        };
        5
    ]);
    events.extend(vec![Event { kind: 255, ..good }; 6]);
    events.extend(vec![
        Event {
            dev: 8 << 20,
            ..good
        };
        7
    ]);
    events.push(good);
    agent.batch(&events);
    agent.send(&AgentMessage::Pong {
        token: 99,
        guest_ns: 0,
    });
    let mut unknown = Vec::new();
    encode_frame(FrameKind::Hello, b"{\"session\": []}", &mut unknown);
    encode_frame(FrameKind::Stop, b"", &mut unknown);
    agent.port.write_all(&unknown).unwrap();
    agent.send(&AgentMessage::Batch(b"no batch"));
    let account = rig.until("counted", |a| refused(a, "cannot be decoded") == 1);
    for (reason, times) in [
        ("ahead of the guest's clock", 3),
        ("behind the newest", 4),
        ("no guest has", 5),
        ("does not know", 7),
        ("did not name", 7),
        ("no question", 1),
        ("cannot be read", 1),
    ] {
        assert_eq!(refused(&account, reason), times, "{reason}: {account:?}");
    }
    let serving = thread::spawn(move || agent.serve_to_the_end());
    rig.stop();
    serving.join().unwrap();
    assert_eq!(rig.events(FIRST), [good, good]);
}

/// How much of the guest is missing at the end, and why, after `last` and half a second more.
fn missing_at_the_end(last: impl FnOnce(&Agent) -> AgentMessage<'static>) -> (u64, String) {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    rig.until("live", |a| a.state == State::Live);
    let last = last(&agent);
    agent.send(&last);
    rig.until("ended", |a| a.state == State::Ended);
    thread::sleep(Duration::from_millis(500));
    let account = rig.stop().1;
    let [gap] = account.sides[0].gaps.as_slice() else {
        panic!("{account:?}");
    };
    (gap.to_host_ns - gap.from_host_ns, gap.reason.clone())
}

#[test]
fn what_is_not_listened_to_any_more_is_missing_to_the_end() {
    let (missing_ns, reason) = missing_at_the_end(|agent| {
        AgentMessage::Hello(Box::new(AgentHello {
            protocol: VERSION + 1,
            ..agent.hello()
        }))
    });
    assert!(missing_ns >= 500_000_000, "{missing_ns}");
    assert_eq!(reason, "its agent was not listened to any more");
}

#[test]
fn what_comes_after_an_agent_s_own_end_is_missing() {
    let (missing_ns, reason) = missing_at_the_end(|agent| {
        AgentMessage::End(End {
            mono_ns: agent.clock_ns,
            reason: "signal".to_owned(),
            out_of_order: 0,
        })
    });
    assert!(missing_ns >= 500_000_000, "{missing_ns}");
    assert_eq!(reason, "its agent had ended");
}

#[test]
fn names_and_paths_of_a_guest_name_no_file() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let hello = format!(
        r#"{{"protocol":{VERSION},"session":{},"guest":"other","file":"../../etc/x","backend":"../x",
            "machine":{{"boot_id":"../../boot\u001b[2J","hostname":"../h"}},
            "mounts":[{{"mount_point":"/a/../../etc\u0007","disk":"../vda"}}]}}"#,
        agent.session
    );
    let mut bytes = Vec::new();
    encode_frame(FrameKind::Hello, hello.as_bytes(), &mut bytes);
    agent.port.write_all(&bytes).unwrap();
    let account = rig.until("a second side", |a| a.sides.len() == 2);
    let side = &account.sides[1];
    assert_eq!(
        (side.guest.as_str(), side.file.as_str()),
        ("../vm 1", SECOND)
    );
    assert_eq!(side.mounts[0].mount_point, "/a/../../etc\u{fffd}");
    assert!(!side.machine.boot_id.contains('\u{1b}'));
    assert_eq!(
        rig.files(),
        [
            SECOND.to_owned(),
            format!("{SECOND}.idx"),
            FIRST.to_owned(),
            format!("{FIRST}.idx")
        ]
    );
}

#[test]
fn garbage_does_not_last_long() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut chunk = vec![0; 64 << 10];
    let begin = Instant::now();
    let mut sent = 0;
    while begin.elapsed() < SOON {
        for byte in &mut chunk {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state as u8;
        }
        match agent.port.write(&chunk) {
            Ok(n) => sent += n,
            Err(_) => break,
        }
    }
    assert!(sent < 64 << 20, "{sent} bytes of garbage were read");
    let account = rig.until("given up", |a| a.state == State::Ended);
    assert_eq!(account.notices[0].what, "agent_refused");
    let (_, account) = rig.stop();
    assert!(account_bytes(&account) < 64 << 10);
    assert!(rig.files().is_empty());
}

#[test]
fn a_flood_is_slowed_down_and_its_stream_is_bounded() {
    let rig = Rig::with_limit(1 << 20);
    let mut agent = rig.accept();
    agent.begin();
    rig.until("live", |a| a.sides.len() == 1);
    // Noise in every column but those that are checked.
    let mut state = 1_u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        state
    };
    let base = agent.event(0);
    let events: Vec<Event> = (0..8000)
        .map(|_| Event {
            object: noise(),
            related: noise(),
            offset: noise(),
            ..base
        })
        .collect();
    let bytes = batch(&events);
    let mut frame = Vec::new();
    AgentMessage::Batch(&bytes).encode_to(&mut frame);
    agent
        .port
        .set_write_timeout(Some(Duration::from_millis(500)))
        .unwrap();
    let begin = Instant::now();
    let mut sent = 0;
    // On a machine that is busy, until there is something to look at.
    let enough = || begin.elapsed() > 4 * SOON || rig.account().n_lost() > 8000;
    while begin.elapsed() < Duration::from_secs(4) || !enough() {
        match agent.port.write(&frame[sent % frame.len()..]) {
            Ok(n) => sent += n,
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => panic!("{error}"),
        }
    }
    // Two seconds' worth may come at once, and a second's lies in the socket and in what was read last.
    let took = begin.elapsed();
    let most = (took.as_secs_f64() + 3.0) * f64::from(64 << 20);
    assert!((sent as f64) < most, "{sent} bytes in {took:?}");
    let (_, account) = rig.stop();
    assert!(account_bytes(&account) < 256 << 10);
    assert!(account.bytes < 4 << 20, "{} bytes", account.bytes);
    assert!(account.n_lost() > 8000);
    assert!(
        account
            .notices
            .iter()
            .any(|n| n.what == "guest_stream_limit")
    );
    assert!(rig.events(FIRST).len() as u64 == account.events);
}

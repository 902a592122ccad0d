//! Sessions over real sockets: the test is QEMU's port and the agent behind it.

mod hostile;
mod missing;

use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Instant;

use nestrace_abi::{Kind, Source};
use nestrace_trace::manifest::{GuestDisk, GuestFile, MAX_FILES, Machine};
use nestrace_trace::{Event, StreamReader};
use nestrace_wire::{
    AgentHello, AgentMessage, DROPPED_BUFFERS, End, FrameKind, FrameReader, Live, Lost, VERSION,
    encode_frame,
};
use nix::sys::socket::{MsgFlags, recv};

use super::super::account::Account;
use super::super::agents::{Agents, Asked};
use super::super::probe_records::{put_events, translation};
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
        Self::asking(true, limit_bytes)
    }

    fn asking(paths: bool, limit_bytes: u64) -> Self {
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
        let asked = Asked {
            detail: "full".to_owned(),
            cpu: true,
            paths,
            rings: None,
        };
        let bundle = Arc::new(bundle);
        let mut agents = Agents::connect(&[place], &bundle, &asked, limit_bytes, None).unwrap();
        agents.listen().unwrap();
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
                message @ (HostMessage::Stop | HostMessage::AskSums(_)) => {
                    panic!("{message:?} was sent")
                }
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
            translation: Some(translation()),
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

    /// Answers pings until asked to stop.
    fn serve_to_the_end(&mut self) {
        loop {
            match self.next() {
                HostMessage::Ping { token, .. } => self.send(&AgentMessage::Pong {
                    token,
                    guest_ns: self.clock_ns,
                }),
                HostMessage::Stop | HostMessage::AskSums(_) => break,
                HostMessage::Start(start) => assert_eq!(start.session, self.session),
            }
        }
        self.send(&AgentMessage::End(End {
            mono_ns: self.clock_ns,
            reason: "stop".to_owned(),
        }));
    }

    fn record(&mut self, events: &[Event]) {
        let bytes = frames(events);
        self.port.write_all(&bytes).unwrap();
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

fn frames(events: &[Event]) -> Vec<u8> {
    let mut bytes = Vec::new();
    put_events(events, &mut bytes);
    bytes
}

const FIRST: &str = "guest-..%2Fvm%201.arrows";
const SECOND: &str = "guest-..%2Fvm%201.2.arrows";

#[test]
fn a_session_from_the_question_to_the_last_word() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let events: Vec<Event> = (0..1000).map(|n| agent.event(n)).collect();
    agent.record(&events);
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
        assert_eq!((ms(state, true), ms(state, false)), (3500, 0));
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
    // It may have been silent before it was asked to end, and was waited for less then.
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
fn a_reboot_is_another_stream() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let first = agent.event(5);
    agent.record(&[first]);
    rig.until("written", |a| a.events == 1);
    // The port stays connected while the guest is started again; its clock begins anew.
    agent.boot = "boot-2".to_owned();
    agent.clock_ns = 7_000_000_000;
    agent.begin();
    let second = agent.event(5);
    agent.record(&[
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
    assert_eq!(account.sides[1].gaps[0].reason, "it was rebooted");
}

#[test]
fn an_agent_that_was_killed_within_a_frame_comes_back() {
    let rig = Rig::new();
    let mut agent = rig.accept();
    agent.begin();
    let event = agent.event(5);
    let bytes = frames(&vec![event; 5000]);
    agent.port.write_all(&bytes[..bytes.len() / 2]).unwrap();
    // Its successor in the same boot finds the repeated question.
    agent.begin();
    agent.record(&[event]);
    // The frames before the first one that is whole again may be lost: the successor is asked once more.
    let account = rig.until("live again", |a| a.state == State::Live);
    assert_eq!(account.sides.len(), 1);
    agent.begin();
    agent.record(&[event]);
    rig.until("heard", |a| a.events >= 1);
    let serving = thread::spawn(move || agent.serve_to_the_end());
    let (_, account) = rig.stop();
    serving.join().unwrap();
    assert_eq!(account.sides.len(), 1);
    assert!(!account.sides[0].refused.is_empty());
    assert!(!rig.events(FIRST).is_empty());
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
            message @ (HostMessage::Stop | HostMessage::AskSums(_)) => {
                panic!("{message:?} was sent")
            }
        }
    }
    agent.answer();
    let event = agent.event(5);
    agent.record(&[event]);
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
    agent.record(&[before]);
    rig.until("written", |a| a.events == 1);
    // As many as may wait in the port, and as many more while the first answer is on its way.
    let n_pings = agent.jump_and_begin(3_600_000_000_000);
    assert!(n_pings <= 2 * MAX_OPEN_PINGS, "{n_pings}");
    let after = agent.event(5);
    agent.record(&[after]);
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

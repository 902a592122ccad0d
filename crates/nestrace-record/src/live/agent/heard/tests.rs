use nestrace_wire::{End, Live, MAX_PAYLOAD};
use proptest::prelude::*;

use super::*;

const S: u64 = 1_000_000_000;
const DEV: u32 = 254 << 20;

/// An agent, as far as its bytes go.
struct Agent {
    heard: Heard,
    now_ns: u64,
    session: u64,
}

impl Agent {
    fn connected() -> Self {
        let mut heard = Heard::default();
        let disk = Disk {
            name: "root".to_owned(),
            serial: Some("A".to_owned()),
            ..Disk::default()
        };
        heard.set_disks(vec![("root".to_owned(), disk)]);
        heard.connected(5 * S);
        let mut agent = Self {
            heard,
            now_ns: 5 * S,
            session: 0,
        };
        agent.session = agent.asked().expect("it is asked at once");
        agent
    }

    /// The session that is asked for now.
    fn asked(&mut self) -> Option<u64> {
        let bytes = self.heard.question(self.now_ns);
        let mut reader = FrameReader::new();
        assert_eq!(reader.feed(&bytes), bytes.len());
        let mut asked = None;
        while let Some(frame) = reader.next_frame().unwrap() {
            if let Some(HostMessage::AskSums(ask)) = HostMessage::parse(frame).unwrap() {
                asked = Some(ask.session);
            }
        }
        asked
    }

    fn says(&mut self, message: &AgentMessage<'_>) {
        let mut bytes = Vec::new();
        message.encode_to(&mut bytes);
        assert_eq!(self.heard.feed(&bytes, self.now_ns), Ok(()));
    }

    fn says_hello(&mut self) {
        self.says(&hello(self.session, 1));
    }

    fn is_live() -> Self {
        let mut agent = Self::connected();
        agent.says_hello();
        agent.says(&AgentMessage::Live(Live::default()));
        agent
    }

    fn after(&mut self, ns: u64) {
        self.now_ns += ns;
    }

    /// Reads that have ended, as a snapshot has them, or why there are none.
    fn reads(&mut self) -> Result<u64, String> {
        let layer = self.heard.read(self.now_ns);
        let reads = layer.of("root", 0).map_err(str::to_owned);
        reads.map(|op| op.layer.n)
    }

    fn why(&mut self) -> String {
        self.reads().expect_err("there is no layer")
    }
}

fn hello(session: u64, diskseq: u64) -> AgentMessage<'static> {
    let disk = GuestDisk {
        name: "vda".to_owned(),
        dev: DEV,
        serial: "A".to_owned(),
        diskseq,
        ..GuestDisk::default()
    };
    AgentMessage::Hello(Box::new(AgentHello {
        session,
        disks: vec![disk],
        ..AgentHello::default()
    }))
}

/// So many reads of 2 µs in all.
fn sums(n: u64) -> AgentMessage<'static> {
    let op = OpSums {
        bytes: n * 4096,
        sum_ns: n * 2000,
        max_ns: 2000,
        in_flight: 3,
        oldest_ns: 7,
        buckets: vec![(8, n)],
    };
    AgentMessage::Sums(Sums {
        lost: n,
        disks: vec![DiskSums {
            dev: DEV,
            ops: vec![op],
        }],
    })
}

#[test]
fn sums_add_up_over_messages() {
    let mut agent = Agent::is_live();
    agent.says(&sums(10));
    let layer = agent.heard.read(agent.now_ns);
    let read = layer.of("root", 0).unwrap();
    assert_eq!((read.layer.n, read.bytes, read.in_flight), (10, 40_960, 3));
    assert_eq!((read.layer.max_ns, read.oldest_ns), (Some(2000), Some(7)));
    assert_eq!((read.layer.sum_ns, read.layer.buckets[8]), (20_000, 10));
    assert_eq!(layer.of("root", 1).unwrap().layer.n, 0);
    assert_eq!(layer.lost, 10);
    agent.says(&sums(12));
    assert_eq!(agent.reads(), Ok(12));
    // The longest is that since the snapshot before.
    let layer = agent.heard.read(agent.now_ns);
    assert_eq!(layer.of("root", 0).unwrap().layer.max_ns, Some(0));
    let unknown = layer.of("other", 0).unwrap_err();
    assert!(unknown.contains("which of the guest's disks"), "{unknown}");
}

#[test]
fn a_counter_that_goes_back_is_refused() {
    let mut agent = Agent::is_live();
    agent.says(&sums(10));
    agent.says(&sums(9));
    assert_eq!((agent.reads(), agent.heard.refused), (Ok(10), 1));
    agent.says(&sums(11));
    assert_eq!(agent.reads(), Ok(11));
    // Another disk with the number counts from 0.
    agent.says(&hello(agent.session, 2));
    agent.says(&sums(5));
    assert_eq!((agent.reads(), agent.heard.refused), (Ok(16), 1));
    // A device that the guest has not listed.
    let disk = DiskSums {
        dev: 7,
        ..DiskSums::default()
    };
    let other = Sums {
        lost: 0,
        disks: vec![disk],
    };
    agent.says(&AgentMessage::Sums(other));
    assert_eq!(agent.heard.refused, 2);
}

#[test]
fn an_older_agent_answers_pings_alone() {
    let mut agent = Agent::connected();
    assert!(agent.why().contains("no agent has answered"));
    agent.after(11 * S);
    assert!(agent.why().contains("no agent has answered"));
    let pong = AgentMessage::Pong {
        token: agent.session,
        guest_ns: 1,
    };
    agent.says(&pong);
    assert!(agent.why().contains("older release"));
    // It was a slow one.
    agent.says_hello();
    assert!(agent.why().contains("loads its probes"));
    agent.says(&AgentMessage::Live(Live::default()));
    assert_eq!(agent.heard.read(agent.now_ns).missing, None);
}

#[test]
fn an_agent_that_cannot_sum_says_why() {
    let mut agent = Agent::connected();
    agent.says_hello();
    agent.says(&AgentMessage::End(End {
        mono_ns: 1,
        reason: "--backend blktrace was given".to_owned(),
    }));
    assert!(
        agent
            .why()
            .ends_with("does not sum: --backend blktrace was given")
    );
    agent.after(10 * S);
    assert_eq!(agent.asked(), None);
    agent.after(21 * S);
    let again = agent.asked();
    assert!(again.is_some_and(|session| session != agent.session));
}

#[test]
fn what_another_session_left_is_passed_over() {
    let mut agent = Agent::connected();
    let mut bytes = Vec::new();
    hello(agent.session ^ 1, 1).encode_to(&mut bytes);
    sums(7).encode_to(&mut bytes);
    // The beginning of a frame that would hold all that follows.
    let mut cut = Vec::new();
    let long = vec![0; MAX_PAYLOAD / 2];
    AgentMessage::Buffer {
        number: 0,
        bytes: &long,
    }
    .encode_to(&mut cut);
    bytes.extend_from_slice(&cut[..1000]);
    sums(8).encode_to(&mut bytes);
    hello(agent.session, 1).encode_to(&mut bytes);
    AgentMessage::Live(Live::default()).encode_to(&mut bytes);
    sums(3).encode_to(&mut bytes);
    for piece in bytes.chunks(777) {
        assert_eq!(agent.heard.feed(piece, agent.now_ns), Ok(()));
    }
    assert_eq!(agent.reads(), Ok(3));
}

#[test]
fn silence_ends_the_layer_and_nothing_is_counted_twice() {
    let mut agent = Agent::is_live();
    agent.says(&sums(10));
    assert_eq!(agent.reads(), Ok(10));
    agent.after(5 * S);
    assert!(agent.why().contains("silent"));
    // It was paused: what it has done since the last message is new.
    agent.says(&sums(14));
    assert_eq!(agent.reads(), Ok(4));
    // It was killed, and another one begins to sum.
    agent.after(5 * S);
    assert!(agent.why().contains("silent"));
    agent.session = agent.asked().expect("it is asked again");
    assert!(agent.why().contains("silent"));
    agent.says_hello();
    agent.says(&AgentMessage::Live(Live::default()));
    agent.says(&sums(2));
    assert_eq!(agent.reads(), Ok(2));
}

#[test]
fn nothing_but_rubbish_is_given_up() {
    let mut agent = Agent::connected();
    let mut given_up = false;
    for _ in 0..64 {
        given_up |= agent.heard.feed(&[0x4e; 64 << 10], agent.now_ns).is_err();
    }
    assert!(given_up && agent.why().contains("nothing in what it sends"));
    let mut agent = Agent::connected();
    let mut bytes = Vec::new();
    sums(1).encode_to(&mut bytes);
    given_up = (0..=MAX_REFUSED).any(|_| agent.heard.feed(&bytes, 6 * S).is_err());
    assert!(given_up && agent.why().contains("too much"));
}

#[test]
fn absurd_numbers_do_no_harm() {
    let mut agent = Agent::is_live();
    let op = OpSums {
        bytes: u64::MAX,
        sum_ns: u64::MAX,
        max_ns: u64::MAX,
        in_flight: u64::MAX,
        oldest_ns: u64::MAX,
        buckets: OpSums::buckets_of(&[u64::MAX; BUCKETS]),
    };
    let absurd = Sums {
        lost: u64::MAX,
        disks: vec![DiskSums {
            dev: DEV,
            ops: vec![op; SUM_OPS],
        }],
    };
    agent.says(&AgentMessage::Sums(absurd));
    assert_eq!((agent.reads(), agent.heard.refused), (Ok(0), 1));
    // As many as may be, in one session after the other.
    for _ in 0..100 {
        agent.says(&AgentMessage::Live(Live::default()));
        let op = OpSums {
            sum_ns: u64::MAX,
            buckets: vec![(0, MAX_REQUESTS / 10), (7, 1)],
            ..OpSums::default()
        };
        let many = DiskSums {
            dev: DEV,
            ops: vec![op],
        };
        agent.says(&AgentMessage::Sums(Sums {
            lost: u64::MAX,
            disks: vec![many],
        }));
    }
    let layer = agent.heard.read(agent.now_ns);
    let read = &layer.of("root", 0).unwrap().layer;
    assert!((1..=MAX_REQUESTS).contains(&read.n), "{}", read.n);
    let mut twice = read.clone();
    twice.add(read);
    assert_eq!(nestrace_sums::interval::latency(&twice).n, 2 * read.n);
}

proptest! {
    #[test]
    fn no_bytes_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..2000),
        at in 0_usize..400,
        byte in any::<u8>(),
    ) {
        let mut agent = Agent::is_live();
        let mut good = Vec::new();
        sums(3).encode_to(&mut good);
        hello(agent.session, 3).encode_to(&mut good);
        sums(4).encode_to(&mut good);
        if let Some(changed) = good.get_mut(at) {
            *changed = byte;
        }
        let _ = agent.heard.feed(&good, agent.now_ns);
        let _ = agent.heard.feed(&bytes, agent.now_ns);
        let _ = agent.heard.read(agent.now_ns);
    }
}

//! The messages of both sides.
#![deny(
    clippy::indexing_slicing,
    clippy::arithmetic_side_effects,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic
)]

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::MAX_JSON;
use crate::frame::{Frame, FrameKind, encode_frame, encode_frame_of};
use crate::hello::{AgentHello, bound_probes, bound_refused, bound_text};
use crate::kernel_buffers::Translation;
use crate::sums::{AskSums, Sums};
use nestrace_trace::manifest::{GuestFile, Probe, Refused};
use nestrace_trace::{Event, Kind, Source};

/// A notice is never longer, bytes; a longer one is cut.
pub const MAX_NOTICE: usize = 4 << 10;
/// Bytes of one [`AgentMessage::Buffer`] are never more.
pub const MAX_BUFFER: usize = crate::MAX_PAYLOAD - size_of::<u32>();
/// [`Lost::source`] of events in buffers that the agent dropped because the port was slow; other
/// numbers are those of [`nestrace_trace::Source`].
pub const DROPPED_BUFFERS: u32 = 0x100;

/// Why a message was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MessageError {
    /// A message of fixed length has another one.
    #[error("read a message of kind {kind:?}: it has {length} bytes")]
    Length {
        /// Its kind.
        kind: FrameKind,
        /// Its length.
        length: usize,
    },
    /// The JSON is longer than any.
    #[error("read a message of kind {kind:?}: its JSON has {length} bytes, more than {MAX_JSON}")]
    TooLong {
        /// Its kind.
        kind: FrameKind,
        /// Its length.
        length: usize,
    },
    /// The JSON is not what this kind has.
    #[error("read a message of kind {kind:?}: its JSON is not that of this kind")]
    Json {
        /// Its kind.
        kind: FrameKind,
        /// What the parser said.
        source: serde_json::Error,
    },
    /// A list is longer than any, or out of order.
    #[error("read a message of kind {kind:?}: a list in it is none that an agent sends")]
    List {
        /// Its kind.
        kind: FrameKind,
    },
}

/// Asks an agent to record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Start {
    /// [`crate::VERSION`] of the recorder.
    pub protocol: u16,
    /// A number that the answer repeats.
    pub session: u64,
    /// `full`, `io` or `light`; empty is `full`, and so is `io` to an agent that does not know it.
    pub detail: String,
    /// Kernel names of the disks (`vda`); empty is every disk.
    pub devices: Vec<String>,
    /// `auto`, `ebpf` or `blktrace`; empty leaves it to the agent.
    pub backend: String,
    /// Whether names of files are wanted. A recorder that does not know [`AgentMessage::Files`] does not ask.
    pub paths: bool,
    /// Whether it is wanted when the threads that carry I/O have a processor. A recorder that does not know
    /// [`Kind::Switch`](nestrace_abi::Kind::Switch) does not ask.
    pub cpu: bool,
}

/// The agent's probes are attached.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Live {
    /// Guest's `CLOCK_MONOTONIC`; events that are stamped later are complete.
    pub mono_ns: u64,
    /// What is attached.
    pub probes: Vec<Probe>,
    /// How records of [`AgentMessage::Buffer`] read, where they are those of probes.
    pub translation: Option<Translation>,
}

/// The agent's last word.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct End {
    /// Guest's `CLOCK_MONOTONIC` when its probes were detached.
    pub mono_ns: u64,
    /// Why: `stop`, `signal`, `new session`, or a sentence.
    pub reason: String,
}

/// Events that were lost since the session began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lost {
    /// Number of a [`nestrace_trace::Source`], or [`DROPPED_BUFFERS`].
    pub source: u32,
    /// How many so far.
    pub total: u64,
    /// Guest's `CLOCK_MONOTONIC`. Of a source: when the agent found that its kernel had lost more. Of
    /// [`DROPPED_BUFFERS`]: the last [`AgentMessage::Until`] before the first buffer that is missing here.
    pub mono_ns: u64,
}

impl Lost {
    /// The loss as it stands in a stream; `None` of [`DROPPED_BUFFERS`], because the stream counts no such source.
    #[must_use]
    pub fn event(&self) -> Option<Event> {
        let is_source = Source::ALL.iter().any(|it| *it as u32 == self.source);
        let sub = u8::try_from(self.source).ok().filter(|_| is_source)?;
        Some(Event {
            ts_ns: self.mono_ns,
            kind: Kind::Loss as u8,
            sub,
            object: self.total,
            ..Event::default()
        })
    }
}

/// What the recorder says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostMessage {
    /// Begin. One that comes during a session ends it and begins another.
    Start(Start),
    /// Sum, and send the sums. One that comes during a session ends it, as another [`Self::Start`] does.
    AskSums(AskSums),
    /// End the session; the agent stays and waits for the next.
    Stop,
    /// Answer at once.
    Ping {
        /// Comes back in the answer.
        token: u64,
        /// Host's `CLOCK_MONOTONIC`.
        host_ns: u64,
    },
}

impl HostMessage {
    /// Reads a frame; `None` for a kind that is not the recorder's or not known.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn parse(frame: Frame<'_>) -> Result<Option<Self>, MessageError> {
        let Some(kind) = FrameKind::from_number(frame.kind) else {
            return Ok(None);
        };
        Ok(match kind {
            FrameKind::Start => Some(Self::Start(from_json(kind, frame.payload)?)),
            FrameKind::AskSums => Some(Self::AskSums(from_json(kind, frame.payload)?)),
            FrameKind::Stop => Some(Self::Stop),
            FrameKind::Ping => {
                let (token, host_ns) = two_numbers(kind, frame.payload)?;
                Some(Self::Ping { token, host_ns })
            }
            _ => None,
        })
    }

    /// Appends the frame to `to`.
    pub fn encode_to(&self, to: &mut Vec<u8>) {
        match self {
            Self::Start(start) => encode_json(FrameKind::Start, start, to),
            Self::AskSums(ask) => encode_json(FrameKind::AskSums, ask, to),
            Self::Stop => {
                encode_frame(FrameKind::Stop, &[], to);
            }
            Self::Ping { token, host_ns } => {
                encode_two(FrameKind::Ping, *token, *host_ns, to);
            }
        }
    }
}

/// What an agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AgentMessage<'a> {
    /// The first message of a session; again when facts have changed.
    Hello(Box<AgentHello>),
    /// The probes are attached.
    Live(Live),
    /// Events were lost.
    Loss(Lost),
    /// Probes that could not be attached.
    Refused(Vec<Refused>),
    /// Answer to a ping.
    Pong {
        /// That of the ping.
        token: u64,
        /// Guest's `CLOCK_MONOTONIC`.
        guest_ns: u64,
    },
    /// A text for a person.
    Notice(String),
    /// The session is over.
    End(End),
    /// Bytes that follow those before in one of the kernel's buffers, in one of the formats of [`crate::kernel_buffers`].
    Buffer {
        /// Which of them.
        number: u32,
        /// At most [`MAX_BUFFER`].
        bytes: &'a [u8],
    },
    /// Everything that the guest's kernel stamped before this time of its `CLOCK_MONOTONIC` has been sent.
    Until(u64),
    /// In buffers up to the next [`Self::Until`], records may be missing: the kernel had no room for them. How many
    /// [`Self::Loss`] says.
    Incomplete,
    /// Names of files with recorded I/O. An empty path: that inode was used again, and no name of it counts. At most what [`crate::files::portions`]
    /// puts into one.
    Files(Vec<GuestFile>),
    /// What disks have done since the session began, in a session that [`HostMessage::AskSums`] began. Once a second at least
    /// one, and as many as the disks need.
    Sums(Sums),
}

impl<'a> AgentMessage<'a> {
    /// Reads a frame; `None` for a kind that is not an agent's or not known. Texts and lists are
    /// bounded and free of control characters; nothing in them may be used as a path. Names of files come as they are:
    /// [`crate::files::Names`] bounds them.
    ///
    /// # Errors
    /// [`MessageError`].
    pub fn parse(frame: Frame<'a>) -> Result<Option<Self>, MessageError> {
        let Some(kind) = FrameKind::from_number(frame.kind) else {
            return Ok(None);
        };
        let payload = frame.payload;
        Ok(match kind {
            FrameKind::Hello => {
                let mut hello: AgentHello = from_json(kind, payload)?;
                hello.bound();
                Some(Self::Hello(Box::new(hello)))
            }
            FrameKind::Live => {
                let mut live: Live = from_json(kind, payload)?;
                bound_probes(&mut live.probes);
                if let Some(translation) = &mut live.translation {
                    translation.bound();
                }
                Some(Self::Live(live))
            }
            FrameKind::Loss => Some(Self::Loss(lost(kind, payload)?)),
            FrameKind::Refused => {
                let mut refused: Vec<Refused> = from_json(kind, payload)?;
                bound_refused(&mut refused);
                Some(Self::Refused(refused))
            }
            FrameKind::Pong => {
                let (token, guest_ns) = two_numbers(kind, payload)?;
                Some(Self::Pong { token, guest_ns })
            }
            FrameKind::Notice => {
                let cut = payload.get(..MAX_NOTICE).unwrap_or(payload);
                let mut text = String::from_utf8_lossy(cut).into_owned();
                bound_text(&mut text);
                Some(Self::Notice(text))
            }
            FrameKind::End => {
                let mut end: End = from_json(kind, payload)?;
                bound_text(&mut end.reason);
                Some(Self::End(end))
            }
            FrameKind::Buffer => Some(buffer(kind, payload)?),
            FrameKind::Until => Some(Self::Until(number(kind, payload)?)),
            FrameKind::Incomplete => Some(Self::Incomplete),
            FrameKind::Files => Some(Self::Files(from_json(kind, payload)?)),
            FrameKind::Sums => {
                let sums: Sums = from_json(kind, payload)?;
                if !sums.is_bounded() {
                    return Err(MessageError::List { kind });
                }
                Some(Self::Sums(sums))
            }
            FrameKind::Start | FrameKind::AskSums | FrameKind::Stop | FrameKind::Ping => None,
        })
    }

    /// Appends the frame to `to`. What is too long for a frame is left out: a buffer's bytes beyond [`MAX_BUFFER`], or
    /// facts that no machine has.
    pub fn encode_to(&self, to: &mut Vec<u8>) {
        match self {
            Self::Hello(hello) => encode_json(FrameKind::Hello, hello, to),
            Self::Live(live) => encode_json(FrameKind::Live, live, to),
            Self::Loss(lost) => {
                let Lost {
                    source,
                    total,
                    mono_ns,
                } = lost;
                let [total, mono_ns] = [total, mono_ns].map(|number| number.to_le_bytes());
                encode_frame_of(
                    FrameKind::Loss,
                    &[&source.to_le_bytes(), &total, &mono_ns],
                    to,
                );
            }
            Self::Refused(refused) => encode_json(FrameKind::Refused, refused, to),
            Self::Pong { token, guest_ns } => {
                encode_two(FrameKind::Pong, *token, *guest_ns, to);
            }
            Self::Notice(text) => {
                let bytes = text.as_bytes();
                let cut = bytes.get(..MAX_NOTICE).unwrap_or(bytes);
                encode_frame(FrameKind::Notice, cut, to);
            }
            Self::End(end) => encode_json(FrameKind::End, end, to),
            Self::Buffer { number, bytes } => {
                encode_frame_of(FrameKind::Buffer, &[&number.to_le_bytes(), bytes], to);
            }
            Self::Until(mono_ns) => {
                encode_frame(FrameKind::Until, &mono_ns.to_le_bytes(), to);
            }
            Self::Incomplete => {
                encode_frame(FrameKind::Incomplete, &[], to);
            }
            Self::Files(files) => encode_json(FrameKind::Files, files, to),
            Self::Sums(sums) => encode_json(FrameKind::Sums, sums, to),
        }
    }
}

fn from_json<T: DeserializeOwned>(kind: FrameKind, payload: &[u8]) -> Result<T, MessageError> {
    if payload.len() > MAX_JSON {
        return Err(MessageError::TooLong {
            kind,
            length: payload.len(),
        });
    }
    serde_json::from_slice(payload).map_err(|source| MessageError::Json { kind, source })
}

fn encode_json(kind: FrameKind, value: &impl Serialize, to: &mut Vec<u8>) {
    // Only maps with keys that are no strings can fail, and there are none.
    let json = serde_json::to_vec(value).unwrap_or_default();
    encode_frame(kind, &json, to);
}

fn encode_two(kind: FrameKind, first: u64, second: u64, to: &mut Vec<u8>) {
    encode_frame_of(kind, &[&first.to_le_bytes(), &second.to_le_bytes()], to);
}

fn two_numbers(kind: FrameKind, payload: &[u8]) -> Result<(u64, u64), MessageError> {
    split_two(payload).ok_or(MessageError::Length {
        kind,
        length: payload.len(),
    })
}

fn lost(kind: FrameKind, payload: &[u8]) -> Result<Lost, MessageError> {
    let source_and_rest = payload.split_first_chunk();
    source_and_rest
        .and_then(|(source, rest)| {
            let (total, mono_ns) = split_two(rest)?;
            Some(Lost {
                source: u32::from_le_bytes(*source),
                total,
                mono_ns,
            })
        })
        .ok_or(MessageError::Length {
            kind,
            length: payload.len(),
        })
}

fn buffer(kind: FrameKind, payload: &[u8]) -> Result<AgentMessage<'_>, MessageError> {
    let (number, bytes) = payload.split_first_chunk().ok_or(MessageError::Length {
        kind,
        length: payload.len(),
    })?;
    let number = u32::from_le_bytes(*number);
    Ok(AgentMessage::Buffer { number, bytes })
}

fn number(kind: FrameKind, payload: &[u8]) -> Result<u64, MessageError> {
    let bytes = payload.try_into().map_err(|_| MessageError::Length {
        kind,
        length: payload.len(),
    })?;
    Ok(u64::from_le_bytes(bytes))
}

/// Two numbers of 8 bytes, and nothing more.
fn split_two(payload: &[u8]) -> Option<(u64, u64)> {
    let (first, second) = payload.split_first_chunk()?;
    let second = second.try_into().ok()?;
    Some((u64::from_le_bytes(*first), u64::from_le_bytes(second)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]

    use super::*;
    use crate::FrameReader;

    fn through_the_wire(bytes: &[u8], check: impl FnOnce(Frame<'_>)) {
        let mut reader = FrameReader::new();
        assert_eq!(reader.feed(bytes), bytes.len());
        check(reader.next_frame().unwrap().unwrap());
    }

    #[test]
    fn the_recorders_messages_come_back() {
        let start = Start {
            protocol: 1,
            session: u64::MAX,
            detail: "full".to_owned(),
            devices: vec!["vda".to_owned()],
            backend: "auto".to_owned(),
            paths: true,
            cpu: true,
        };
        let ping = HostMessage::Ping {
            token: 1,
            host_ns: u64::MAX,
        };
        for message in [HostMessage::Start(start), HostMessage::Stop, ping] {
            let mut bytes = Vec::new();
            message.encode_to(&mut bytes);
            through_the_wire(&bytes, |frame| {
                assert_eq!(HostMessage::parse(frame).unwrap(), Some(message));
                assert_eq!(AgentMessage::parse(frame).unwrap(), None);
            });
        }
    }

    #[test]
    fn the_agents_messages_come_back() {
        let refused = Refused {
            name: "iomap_dio_rw_begin".to_owned(),
            ..Refused::default()
        };
        for message in [
            AgentMessage::Hello(Box::new(AgentHello {
                session: 9,
                ..AgentHello::default()
            })),
            AgentMessage::Live(Live {
                mono_ns: 5,
                probes: vec![Probe::default()],
                translation: Some(Translation {
                    end_io: [(u64::MAX, 1)].into(),
                    ..Translation::default()
                }),
            }),
            AgentMessage::Loss(Lost {
                source: DROPPED_BUFFERS,
                total: 77,
                mono_ns: u64::MAX,
            }),
            AgentMessage::Refused(vec![refused]),
            AgentMessage::Pong {
                token: 3,
                guest_ns: 4,
            },
            AgentMessage::Notice("a text".to_owned()),
            AgentMessage::End(End {
                mono_ns: 6,
                reason: "stop".to_owned(),
            }),
            AgentMessage::Buffer {
                number: 7,
                bytes: b"records",
            },
            AgentMessage::Until(u64::MAX),
            AgentMessage::Incomplete,
        ] {
            let mut bytes = Vec::new();
            message.encode_to(&mut bytes);
            through_the_wire(&bytes, |frame| {
                assert_eq!(HostMessage::parse(frame).unwrap(), None);
                assert_eq!(AgentMessage::parse(frame).unwrap(), Some(message));
            });
        }
    }

    #[test]
    fn wrong_payloads_are_refused_with_their_kind() {
        for (kind, payload, expected) in [
            (
                FrameKind::Pong,
                &[0; 15][..],
                "read a message of kind Pong: it has 15 bytes",
            ),
            (
                FrameKind::Loss,
                &[0; 12],
                "read a message of kind Loss: it has 12 bytes",
            ),
            (
                FrameKind::Until,
                &[0; 7],
                "read a message of kind Until: it has 7 bytes",
            ),
            (
                FrameKind::Buffer,
                &[0; 3],
                "read a message of kind Buffer: it has 3 bytes",
            ),
            (
                FrameKind::Hello,
                b"[",
                "read a message of kind Hello: its JSON is not that of this kind",
            ),
            (
                FrameKind::End,
                &[b' '; MAX_JSON + 1],
                "read a message of kind End: its JSON has 262145 bytes, more than 262144",
            ),
        ] {
            let frame = Frame {
                kind: kind as u16,
                payload,
            };
            let error = AgentMessage::parse(frame).unwrap_err();
            assert_eq!(error.to_string(), expected);
        }
        let newer = Frame {
            kind: 0x7fff,
            payload: b"?",
        };
        assert_eq!(AgentMessage::parse(newer).unwrap(), None);
        assert_eq!(HostMessage::parse(newer).unwrap(), None);
    }

    #[test]
    fn a_loss_of_a_source_is_an_event_of_the_stream() {
        let lost = |source| Lost {
            source,
            total: 7,
            mono_ns: 5,
        };
        let event = lost(Source::HostFs as u32).event().unwrap();
        assert_eq!((event.ts_ns, event.object), (5, 7));
        assert_eq!(event.kind(), Some(Kind::Loss));
        assert_eq!(event.sub, Source::HostFs as u8);
        for source in [DROPPED_BUFFERS, DROPPED_BUFFERS | 1, 77, u32::MAX] {
            assert_eq!(lost(source).event(), None);
        }
    }

    #[test]
    fn a_notice_is_cut() {
        let text = "\x1b]0;x".repeat(MAX_NOTICE);
        let frame = Frame {
            kind: FrameKind::Notice as u16,
            payload: text.as_bytes(),
        };
        let Some(AgentMessage::Notice(text)) = AgentMessage::parse(frame).unwrap() else {
            panic!("not a notice");
        };
        assert!(text.chars().count() <= 1024 && !text.contains('\x1b'));
    }
}

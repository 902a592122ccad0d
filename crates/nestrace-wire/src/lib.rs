//! What an agent in a guest and the recorder say to each other over a port or a socket: frames, the
//! messages in them, and the bytes of the kernel's buffers that they carry ([`kernel_buffers`]).
//! And what an agent's word on its disks and mounts ([`disks`], [`mounts`]) means for what was said before, and what is
//! kept of the names of files ([`files`]). Instead of events, an agent sends [`sums`] to a recorder that asks for them.
//!
//! Sits above `nestrace-trace` and `nestrace-blktrace`, and below the agent and the recorder.
//!
//! ```text
//! recorder                          agent
//! Start{session} ─────────────────►            (until then the agent says nothing)
//!                ◄───────────────── Hello{session}
//!                ◄───────────────── Refused, Live
//! Ping           ─────────────────►
//!                ◄───────────────── Pong       (at once, before buffers that wait)
//!                ◄───────────────── Buffer … Until … Loss … Files … Notice … Hello (again: facts have changed)
//! Stop           ─────────────────►
//!                ◄───────────────── Buffer … Loss … Until … Files … End
//! AskSums{session} ───────────────►
//!                ◄───────────────── Hello{session}, Live, Sums (once a second) … Hello (again) … End
//! ```
//!
//! A frame is a header of 16 bytes, little endian, and a payload of at most [`MAX_PAYLOAD`] bytes:
//!
//! | bytes | what |
//! |---|---|
//! | 0–3 | [`MAGIC`], `NSTR` |
//! | 4–5 | [`VERSION`] |
//! | 6–7 | the kind, a [`FrameKind`] |
//! | 8–11 | bytes of the payload |
//! | 12–15 | CRC-32 of bytes 4 to 11 and of the payload |
//!
//! Neither side trusts the other. [`FrameReader`] is a push parser: whoever owns the port feeds it
//! bytes, it holds at most one frame, and a length counts only after it was bounded. A frame that is
//! damaged ends the session. Kinds that a release does not know are passed over, however many: they cost the time that
//! their bytes do, and the recorder counts them.
//!
//! This crate opens nothing, waits for nothing and reads no clock.
//!
//! ```
//! use nestrace_abi::{Kind, OwnedRecord, Owner, Record};
//! use nestrace_wire::kernel_buffers::{Format, KernelBuffers, Translation, put_record, record_bytes};
//! use nestrace_wire::{AgentMessage, FrameReader};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The agent's side.
//! let record = Record { ts_ns: 7, kind: Kind::Issue as u8, ..Record::default() };
//! let mut bytes = Vec::new();
//! put_record(&record_bytes(&OwnedRecord { record, owner: Owner::default() }), &mut bytes);
//! let mut port = Vec::new();
//! AgentMessage::Buffer { number: 0, bytes: &bytes }.encode_to(&mut port);
//! AgentMessage::Until(8).encode_to(&mut port);
//!
//! // The recorder's side.
//! let mut reader = FrameReader::new();
//! let mut buffers = KernelBuffers::new(Format::Probes(Translation::default()));
//! let mut events = Vec::new();
//! let mut bytes = &port[..];
//! while !bytes.is_empty() {
//!     let taken = reader.feed(bytes);
//!     bytes = &bytes[taken..];
//!     while let Some(frame) = reader.next_frame()? {
//!         match AgentMessage::parse(frame)? {
//!             Some(AgentMessage::Buffer { number, bytes }) => buffers.push(number, bytes),
//!             Some(AgentMessage::Until(mono_ns)) => events.extend(buffers.until(mono_ns)),
//!             _ => {}
//!         }
//!     }
//! }
//! assert_eq!((events.len(), events[0].ts_ns), (1, 7));
//! # Ok(())
//! # }
//! ```

pub mod disks;
pub mod files;
mod frame;
mod hello;
pub mod kernel_buffers;
mod message;
pub mod mounts;
pub mod sums;

pub use frame::{Frame, FrameError, FrameKind, FrameReader, HEADER_BYTES, MAX_FRAME, encode_frame};
pub use hello::{AgentHello, bound_probes, bound_refused, bound_text};
pub use message::{
    AgentMessage, DROPPED_BUFFERS, End, HostMessage, Live, Lost, MAX_BUFFER, MAX_NOTICE,
    MessageError, Start,
};

/// What every frame begins with.
pub const MAGIC: u32 = u32::from_le_bytes(*b"NSTR");
/// Version of the frames and of what they mean. Another one is refused.
pub const VERSION: u16 = 1;
/// A payload is never longer, bytes.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// JSON of a message is never longer, bytes.
pub const MAX_JSON: usize = 256 << 10;
/// Name of the virtio-serial port.
pub const PORT_NAME: &str = "org.nestrace.agent.0";

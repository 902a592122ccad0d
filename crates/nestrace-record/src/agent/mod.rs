//! The agents in the guests: finding their channel, starting them, and taking in what they send.
//!
//! Each guest has a thread of its own, so a slow or hostile one holds up neither the host's side nor
//! another guest. `agents` starts the threads, [`crate::agent_address`] connects, `session` talks, `ingest` takes in, `event_check` and `throttle`
//! say what a guest may send, `stream_losses` keeps the totals of a stream over sessions, `round_trips` asks for its clock, `account` is what the manifest says.
//!
//! **What comes from a guest is hostile.** Frames, texts and lists are bounded by
//! [`nestrace_wire`]; here events are bounded in kind, device and time, streams in size, and
//! every refusal is counted. Which guest it is, is said by the channel alone.

pub mod account;
mod agents;
pub mod clock_round_trips;
pub mod event_check;
pub mod ingest;
#[cfg(test)]
mod probe_records;
mod session;
pub mod stream_losses;
pub mod throttle;

pub use account::{Account, State};
pub use agents::{Agents, Asked, Place};

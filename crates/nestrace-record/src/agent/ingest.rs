//! From the bytes of an agent to a stream of the bundle: frames, messages, buffers, events, each
//! checked before the next.
//!
//! Pure apart from where the streams go, so that a fuzzer can drive it. Nothing that a guest says is
//! used as a path, a name of a file, or a size that is allocated.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

mod recorded;
mod sides;
mod writing;

use std::io::Write;

use nestrace_trace::address::Shift;
use nestrace_trace::manifest::{Addresses, GuestFile};
use nestrace_trace::{Event, StreamWriter};
use nestrace_wire::files::Names;
use nestrace_wire::kernel_buffers::KernelBuffers;
use nestrace_wire::{
    AgentMessage, Frame, FrameError, FrameKind, FrameReader, HostMessage, Lost, MAX_JSON, Start,
    VERSION,
};

use super::account::{Account, State};
use super::clock_round_trips::RoundTrips;
use super::event_check::{EventCheck, EventRefusal};
use super::stream_losses::StreamLosses;
use super::throttle::Throttle;
use recorded::Recorded;

/// Frames that cannot be used; with more, the agent is given up.
const MAX_REFUSED_FRAMES: u64 = 10_000;
/// A question that an agent has not answered for so long, and yet was heard, is lost: so are those that wait in
/// the port when a guest is set to another time.
const LOST_PING_NS: u64 = 2_000_000_000;

/// What writes a stream that [`Streams::open`] made.
pub type WriterOf<S> = StreamWriter<<S as Streams>::Stream, <S as Streams>::Index>;

/// Where the streams of a guest go.
pub trait Streams {
    /// Takes the stream's bytes.
    type Stream: Write;
    /// Takes the index's.
    type Index: Write;

    /// Makes a new stream of this name, which is safe as a file's name. `None` where there is one already.
    ///
    /// # Errors
    /// Why not, in words.
    fn open(&mut self, file: &str) -> Result<Option<WriterOf<Self>>, String>;

    /// How many bytes all streams of this guest together may have now.
    fn limit_bytes(&mut self) -> u64;

    /// Looks at an event that is written.
    fn passes(&mut self, _event: &Event) {}

    /// What was before this time of the host is not needed any more; 0: all is.
    fn oldest_ns(&self) -> u64 {
        0
    }
}

/// Why no more is taken of an agent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IngestError {
    /// Its bytes are no frames.
    #[error("understand the agent")]
    Frame(#[from] FrameError),
    /// It speaks another version.
    #[error("understand the agent: it speaks version {0}, this release speaks {VERSION}")]
    Protocol(u16),
    /// It began too many sessions.
    #[error("go on with the agent: the guest was started, or its clock jumped, {0} times")]
    TooManySides(usize),
    /// What it says of the guest changes without end.
    #[error("go on with the agent: it sent the guest's disks and mounts too often")]
    TooManyHellos,
    /// Too much of it was of no use.
    #[error("go on with the agent: {0} of its messages were refused")]
    TooMuchRefused(u64),
    /// Its stream could not be made or begun.
    #[error("begin the guest's stream: {0}")]
    Stream(String),
}

/// A place in a stream where events are missing.
#[derive(Clone, Copy, Debug)]
struct MissingEvents {
    /// The guest's time up to which none is missing: that of the last event before, or later.
    after_ns: u64,
    /// The agent says how many they are.
    counted: bool,
}

/// One guest's stream of bytes, taken in.
pub struct Ingest<S: Streams> {
    streams: S,
    writer: Option<WriterOf<S>>,
    /// Bytes of the streams before this one.
    bytes_before: u64,
    reader: FrameReader,
    /// What the session sent of its kernel's buffers.
    buffers: KernelBuffers,
    is_light: bool,
    check: EventCheck,
    trips: RoundTrips,
    throttle: Throttle,
    session: u64,
    in_session: bool,
    refused_frames: u64,
    stream_losses: StreamLosses,
    /// Events that are missing before the next one that is written.
    missing_events: Option<MissingEvents>,
    /// Whether there is anything in the stream that what is missing could be confused with.
    wrote: bool,
    /// Disks that were asked for and that its newest Hello does not find.
    missing: Vec<String>,
    recorded: Recorded,
    /// Why the newest side is not the one before.
    begun_by: &'static str,
    /// Since when the host's side is live; 0 if it is not yet.
    host_live_ns: u64,
    clock_jumped: bool,
    /// Names of the guest's files; `None` where they are not wanted.
    names: Option<Names>,
    /// How the guest's addresses are hidden; `None` where they are not.
    shift: Option<Shift>,
    /// What the manifest will say.
    pub account: Account,
}

impl<S: Streams> Ingest<S> {
    /// For a guest of this name. `session` is a number that no earlier recorder is likely to have
    /// taken.
    #[must_use]
    pub fn new(guest: &str, streams: S, session: u64) -> Self {
        Self {
            streams,
            writer: None,
            bytes_before: 0,
            reader: FrameReader::new(),
            buffers: KernelBuffers::default(),
            is_light: false,
            check: EventCheck::default(),
            trips: RoundTrips::default(),
            throttle: Throttle::default(),
            session,
            in_session: false,
            refused_frames: 0,
            stream_losses: StreamLosses::default(),
            missing_events: None,
            wrote: false,
            missing: Vec::new(),
            recorded: Recorded::default(),
            begun_by: sides::AGAIN,
            host_live_ns: 0,
            clock_jumped: false,
            names: None,
            shift: None,
            account: Account::new(guest),
        }
    }

    /// What is written has the guest's addresses shifted by this.
    #[must_use]
    pub fn shifted(mut self, shift: Shift) -> Self {
        self.shift = Some(shift);
        self.account.addresses = Addresses::Shifted;
        self
    }

    /// Names of files are wanted, and kept up to this.
    #[must_use]
    pub fn with_names(mut self, names: Option<Names>) -> Self {
        self.names = names;
        self
    }

    /// Asks the agent to begin. With `anew`, whatever it is doing is over; without, an agent that is in
    /// this session goes on with it, and only one that was started since begins.
    pub fn start(&mut self, detail: &str, cpu: bool, anew: bool) -> HostMessage {
        if anew {
            self.session = self.session.wrapping_add(1);
            (self.in_session, self.clock_jumped) = (false, false);
        }
        if anew || self.account.state != State::Live {
            // An agent that was killed within a frame left the front of it behind.
            self.reader.search();
        }
        self.is_light = detail == "light";
        HostMessage::Start(Start {
            protocol: VERSION,
            session: self.session,
            detail: detail.to_owned(),
            paths: self.names.is_some(),
            cpu,
            ..Start::default()
        })
    }

    /// Asks for the guest's clock. The message is to be sent at once.
    pub fn ping(&mut self, host_ns: u64) -> HostMessage {
        HostMessage::Ping {
            token: self.trips.ask(host_ns),
            host_ns,
        }
    }

    /// Questions that may still be answered.
    #[must_use]
    pub fn n_open_pings(&self) -> usize {
        let since_ns = self.heard_ns().saturating_sub(LOST_PING_NS);
        self.trips.n_open_since(since_ns)
    }

    /// When the agent was last heard; 0 if never.
    #[must_use]
    pub fn heard_ns(&self) -> u64 {
        self.recorded.heard_ns()
    }

    /// Since when the guest's recording is missing if nothing more comes, 0 if there was none: an agent that attaches
    /// anew has said something, and records nothing.
    #[must_use]
    pub fn missing_since_ns(&self) -> u64 {
        self.recorded.missing_since_ns()
    }

    /// Whether the guest's clock has jumped since the last call, back or ahead, so that its events are of no use
    /// until it begins a session anew.
    pub fn clock_jumped(&mut self) -> bool {
        std::mem::take(&mut self.clock_jumped)
    }

    /// How long nothing is to be read from the port, so that a guest gets no more than its share.
    #[must_use]
    pub fn wait_ns(&self, now_ns: u64) -> u64 {
        self.throttle.wait_ns(now_ns)
    }

    /// Takes bytes that came from the port at this time of the host.
    ///
    /// # Errors
    /// [`IngestError`]: the session is over.
    pub fn feed(&mut self, bytes: &[u8], now_ns: u64) -> Result<(), IngestError> {
        self.throttle.charge(bytes.len() as u64, 0, now_ns);
        // Out of `self`, because a frame borrows its reader.
        let mut reader = std::mem::take(&mut self.reader);
        let result = self.read_frames(&mut reader, bytes, now_ns);
        self.reader = reader;
        self.account.fit();
        result
    }

    fn read_frames(
        &mut self,
        reader: &mut FrameReader,
        bytes: &[u8],
        now_ns: u64,
    ) -> Result<(), IngestError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let taken = reader.feed(rest);
            rest = rest.get(taken..).unwrap_or_default();
            let skipped = reader.skipped();
            while let Some(frame) = reader.next_frame()? {
                self.frame(frame, now_ns)?;
                if !self.in_session {
                    // What another session left in the port may itself be cut off.
                    reader.search();
                }
            }
            if reader.skipped() > skipped {
                self.events_missing(None, now_ns);
                self.account.refuse("bytes that belong to no frame", 1);
            }
        }
        Ok(())
    }

    fn frame(&mut self, frame: Frame<'_>, now_ns: u64) -> Result<(), IngestError> {
        self.throttle.charge(message_bytes(frame.kind), 0, now_ns);
        match AgentMessage::parse(frame) {
            Ok(Some(AgentMessage::Hello(hello))) => self.hello(*hello, now_ns),
            Ok(Some(_)) if !self.in_session => self.refuse_frame("message of another session"),
            Ok(Some(message)) => {
                self.recorded.hear(now_ns);
                self.message(message, now_ns)
            }
            Ok(None) => {
                // A newer agent may send one as often as it likes. It costs what its bytes do.
                let reason = "message of a kind that this release does not know";
                self.account.refuse(reason, 1);
                Ok(())
            }
            Err(_) => self.refuse_frame("message that cannot be read"),
        }
    }

    fn refuse_frame(&mut self, reason: &str) -> Result<(), IngestError> {
        self.account.refuse(reason, 1);
        self.refused_frames += 1;
        if self.refused_frames > MAX_REFUSED_FRAMES {
            return Err(IngestError::TooMuchRefused(self.refused_frames));
        }
        Ok(())
    }

    /// What an agent in our session says of its clock cannot be of the side's time.
    fn refuse_jump(&mut self) -> Result<(), IngestError> {
        self.clock_jumped = true;
        let fitted_ns = self.check.shown_host_ns();
        self.recorded.clock_fits_no_more(fitted_ns);
        self.refuse_frame("message that shows a jump of the guest's clock")
    }

    fn message(&mut self, message: AgentMessage<'_>, now_ns: u64) -> Result<(), IngestError> {
        match message {
            AgentMessage::Hello(_) => {}
            AgentMessage::Buffer { number, bytes } => self.take_buffer(number, bytes, now_ns),
            AgentMessage::Incomplete => self.buffers.incomplete(),
            AgentMessage::Until(mono_ns) => self.take_until(mono_ns, now_ns),
            AgentMessage::Pong { token, guest_ns } => {
                if !self.trips.is_open(token) {
                    return self.refuse_frame("answer without a request");
                }
                if self.check.shows(guest_ns, now_ns).is_err() {
                    return self.refuse_jump();
                }
                self.recorded.clock_fits();
                self.trips.answered(token, guest_ns, now_ns);
            }
            AgentMessage::Live(live) if live.mono_ns > self.check.latest_ns(now_ns) => {
                return self.refuse_frame("time ahead of the guest's clock");
            }
            AgentMessage::Live(mut live) => {
                let Some(since_ns) = self.recorded.live() else {
                    return self.refuse_frame("Live without a Hello before it");
                };
                self.begin_buffers(live.translation.take(), now_ns);
                self.begins(since_ns, now_ns);
                self.account.live(live);
                self.account.state = State::Live;
            }
            AgentMessage::Refused(refused) => self.account.probes_refused(refused),
            AgentMessage::Loss(lost) => return self.lost(lost, now_ns),
            AgentMessage::Files(files) => return self.take_names(files),
            AgentMessage::Sums(_) => return self.refuse_frame("sums that were not asked for"),
            AgentMessage::Notice(text) => {
                let message = format!("its agent says: {text}");
                self.account.note_said(now_ns, "agent_says", &message);
            }
            AgentMessage::End(end) => {
                let latest = self.check.latest_ns(now_ns);
                if let Some(side) = self.account.side() {
                    side.end_mono_ns = end.mono_ns.min(latest);
                }
                self.end_buffers(now_ns);
                self.recorded.end(now_ns);
                self.account.state = State::Ended;
                if end.reason != "stop" {
                    let message = format!("its agent ended: {}", end.reason);
                    self.account.note_said(now_ns, "agent_ended", &message);
                }
            }
        }
        Ok(())
    }

    fn take_names(&mut self, files: Vec<GuestFile>) -> Result<(), IngestError> {
        let Some(names) = &mut self.names else {
            return self.refuse_frame("names of files that were not asked for");
        };
        // The session's Hello has begun a side.
        let side = self.account.sides.len().saturating_sub(1);
        let n_refused = names.take(side, files);
        if n_refused > 0 {
            let reason = "name of a file that is none, or for which there is no room";
            self.account.refuse(reason, n_refused);
        }
        Ok(())
    }

    /// Puts the names of files into the account, which is copied four times a second before.
    pub fn hand_over_names(&mut self) {
        let names = self.names.iter_mut().flat_map(Names::drain);
        for (side, file) in names {
            if let Some(side) = self.account.sides.get_mut(side) {
                side.files.push(file);
            }
        }
    }

    fn lost(&mut self, lost: Lost, now_ns: u64) -> Result<(), IngestError> {
        let dropped = self.account.dropped();
        if !self.account.lost(lost) {
            return self.refuse_frame("loss of an unknown source");
        }
        if let Some(event) = lost.event() {
            self.take_loss(event, now_ns);
        } else if self.account.dropped() > dropped {
            self.events_missing(Some(lost.mono_ns), now_ns);
        }
        Ok(())
    }

    fn take_events(&mut self, events: impl Iterator<Item = Event>, now_ns: u64) {
        let latest_ns = self.check.latest_ns(now_ns);
        let full = self.is_full();
        for mut event in events {
            match self.check.check(&mut event, latest_ns) {
                Ok(()) if full => self.account.not_written(1),
                Ok(()) => {
                    self.mark_missing(now_ns);
                    self.stream_losses.go_on(&mut event);
                    self.write(&event, now_ns);
                }
                Err(refusal) => self.refuse_event(refusal),
            }
        }
        if full && self.writer.is_some() {
            self.close_writer();
            self.account.note(
                now_ns,
                "guest_stream_limit",
                "its stream has reached its size limit; further events are counted as lost",
            );
        }
    }

    fn refuse_event(&mut self, refusal: EventRefusal) {
        self.account.refuse(refusal.reason(), 1);
    }
}

/// What a message counts for besides its bytes. After one of JSON a whole side may have to be measured, however short
/// it was, so each counts as the longest.
fn message_bytes(kind: u16) -> u64 {
    let is_json = matches!(
        FrameKind::from_number(kind),
        Some(
            FrameKind::Hello
                | FrameKind::Live
                | FrameKind::Refused
                | FrameKind::End
                | FrameKind::Files
                | FrameKind::Sums
        )
    );
    if is_json { MAX_JSON as u64 } else { 0 }
}

#[cfg(test)]
mod tests;

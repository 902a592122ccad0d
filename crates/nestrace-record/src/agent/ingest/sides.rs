//! Sessions of agents, and which of them are of one side: the same boot, backend and clock.

use nestrace_wire::{AgentHello, VERSION};

use super::super::account::State;
use super::super::event_check::{ClockJump, EventCheck};
use super::super::stream_losses::StreamLosses;
use super::{Ingest, IngestError, MissingEvents, Streams, WriterOf};

/// Why there is a gap before a Live: within a side, and before the guest's first recording.
pub(super) const AGAIN: &str = "its agent started to record again";
const LATE: &str = "its agent began later than the recording";

/// An agent has four seconds from the recording's start, so less is no gap.
const LATE_NS: u64 = 4_000_000_000;

impl<S: Streams> Ingest<S> {
    /// The host's side is live since then, or 0: it is not yet. From there on a guest's side is missed.
    pub fn host_is_live(&mut self, since_ns: u64) {
        self.host_live_ns = since_ns;
    }

    /// The guest's recording is missing between these two times of the host, `from_ns` 0: since the recording began.
    /// Which of that is worth a word.
    pub fn gap(&mut self, from_ns: u64, to_ns: u64, reason: &str) {
        if from_ns > 0 {
            self.account.gap(from_ns, to_ns, reason);
        } else if self.host_live_ns > 0 && to_ns.saturating_sub(self.host_live_ns) > LATE_NS {
            self.account.gap(self.host_live_ns, to_ns, reason);
        }
    }

    pub(super) fn hello(&mut self, hello: AgentHello, now_ns: u64) -> Result<(), IngestError> {
        if hello.session != self.session {
            return self.refuse_frame("answer to another recorder");
        }
        if hello.protocol != VERSION {
            return Err(IngestError::Protocol(hello.protocol));
        }
        if !self.throttle.take_hello(now_ns) {
            return Err(IngestError::TooManyHellos);
        }
        let was_in_session = std::mem::replace(&mut self.in_session, true);
        let is_same_side = self.account.is_same_side(&hello);
        let jump = if is_same_side {
            self.check.shows(hello.mono_ns, now_ns).err()
        } else {
            None
        };
        if jump.is_some() && was_in_session {
            // Perhaps only facts that changed: an agent that goes on says Live no more, and counts on.
            self.recorded.hear(now_ns);
            return self.refuse_jump();
        }
        if jump.is_some() {
            self.recorded.clock_fits_no_more(self.check.shown_host_ns());
        }
        let may_go_on = was_in_session && is_same_side;
        self.recorded.hello(now_ns, may_go_on);
        if is_same_side && jump.is_none() {
            self.account.update_side(&hello, now_ns);
        } else {
            self.begin_side(&hello, jump, now_ns)?;
        }
        // Also those that the manifest has no room for: their events are what the bundle has of them.
        self.check.know(hello.disks.iter().map(|disk| disk.dev));
        // One that goes on was live and is: a silence before this word ends as any other does.
        if !self.recorded.records() {
            self.account.state = State::Attaching;
        }
        for name in &hello.missing {
            if !self.missing.contains(name) {
                let message = format!("its agent finds no disk {name}");
                self.account.note_said(now_ns, "agent_says", &message);
            }
        }
        self.missing = hello.missing;
        Ok(())
    }

    /// The guest's first side, that of another boot or backend, or of the same ones after a jump of its clock.
    fn begin_side(
        &mut self,
        hello: &AgentHello,
        jump: Option<ClockJump>,
        now_ns: u64,
    ) -> Result<(), IngestError> {
        let n_sides = self.account.sides.len();
        let (file, writer) = self.new_stream()?;
        if n_sides > 0 {
            self.end_buffers(now_ns);
            self.close_writer();
            let samples = self.trips.take();
            if let Some(side) = self.account.side() {
                side.clock_samples = samples;
            }
            let change = Change::to(jump, self.account.is_same_boot(hello));
            self.begun_by = change.gap;
            let message = format!("{}; a new stream begins here", change.told);
            self.account.note(now_ns, change.notice, &message);
            self.account.tell(&message);
        }
        self.writer = Some(writer);
        self.check = EventCheck::new(hello.mono_ns, now_ns);
        self.stream_losses = StreamLosses::default();
        (self.missing_events, self.wrote) = (None, false);
        self.account.begin_side(hello, &file);
        self.account.state = State::Attaching;
        Ok(())
    }

    fn new_stream(&mut self) -> Result<(String, WriterOf<S>), IngestError> {
        let n_sides = self.account.sides.len();
        loop {
            let file = self
                .account
                .next_stream()
                .ok_or(IngestError::TooManySides(n_sides))?;
            if let Some(writer) = self.streams.open(&file).map_err(IngestError::Stream)? {
                return Ok((file, writer));
            }
            if !self.account.stream_is_taken() {
                let message = format!("{file} and those before it exist");
                return Err(IngestError::Stream(message));
            }
        }
    }

    /// The agent is live after the guest's recording was missing since then, or from the start (0). The gap is reported with
    /// the side that is live at its end.
    pub(super) fn begins(&mut self, since_ns: u64, now_ns: u64) {
        let begun_by = std::mem::replace(&mut self.begun_by, AGAIN);
        if self.account.was_live() {
            self.begins_again(now_ns);
            self.gap(since_ns, now_ns, AGAIN);
        } else {
            let reason = if since_ns > 0 { begun_by } else { LATE };
            self.gap(since_ns, now_ns, reason);
        }
    }

    /// A session goes on with the stream of one before: what happened since its last word is missing, and what
    /// was in flight then must not be taken for what is in flight now.
    fn begins_again(&mut self, now_ns: u64) {
        let loss = self.stream_losses.interrupted(self.check.newest_ns());
        self.throttle.charge(0, 1, now_ns);
        if self.is_full() {
            self.account.not_written(1);
        } else {
            self.write(&loss, now_ns);
            (self.missing_events, self.wrote) = (None, false);
        }
        self.account.note(now_ns, "agent_back", AGAIN);
    }

    /// Events are missing at this place of the stream, if it has any. `dropped_after_ns`: the agent dropped them, has
    /// counted them, and had sent everything up to this time of the guest.
    pub(super) fn events_missing(&mut self, dropped_after_ns: Option<u64>, now_ns: u64) {
        self.take_until(u64::MAX, now_ns);
        self.buffers.interrupted();
        if !self.wrote {
            return;
        }
        let counted = dropped_after_ns.is_some();
        let complete_ns = dropped_after_ns.filter(|ns| *ns <= self.check.latest_ns(now_ns));
        let missing = self.missing_events.get_or_insert(MissingEvents {
            after_ns: self.check.newest_ns().max(complete_ns.unwrap_or(0)),
            counted,
        });
        missing.counted &= counted;
    }

    /// Before an event is written: a loss stands where others are missing, so that what was in flight there is
    /// not taken for what is in flight now.
    pub(super) fn mark_missing(&mut self, now_ns: u64) {
        if self.writer.is_none() {
            return;
        }
        if let Some(missing) = self.missing_events.take() {
            let loss = self.stream_losses.missing(missing.after_ns);
            self.throttle.charge(0, 1, now_ns);
            self.account.marked(missing.counted);
            self.write(&loss, now_ns);
        }
    }
}

/// Why one side follows another: the kind of the notice and its words, and the reason of the gap between them.
struct Change {
    notice: &'static str,
    told: String,
    gap: &'static str,
}

impl Change {
    fn to(jump: Option<ClockJump>, is_same_boot: bool) -> Self {
        match jump {
            Some(ClockJump::Back) => Self {
                notice: "guest_reverted",
                told: "its clock went back, as when a snapshot is loaded".to_owned(),
                gap: "its clock went back, and its agent started again",
            },
            Some(ClockJump::Ahead { by_ns }) => {
                let seconds = by_ns as f64 / 1e9;
                Self {
                    notice: "guest_clock_ahead",
                    told: format!(
                        "its clock went ahead by {seconds:.1} s, as when the host sleeps or a later snapshot is loaded; \
                         events before its agent started again are missing or counted as refused"
                    ),
                    gap: "its clock went ahead, and its agent started again",
                }
            }
            None if is_same_boot => Self {
                notice: "agent_backend",
                told: "its agent records with another backend from here on".to_owned(),
                gap: "its agent started again with another backend",
            },
            None => Self {
                notice: "guest_rebooted",
                told: "it was rebooted".to_owned(),
                gap: "it was rebooted",
            },
        }
    }
}

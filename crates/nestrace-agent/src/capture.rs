//! A recording from its start to its end, whoever takes it: batches of events, losses, changed facts.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use nestrace_abi::Kind;
use nestrace_kernel::plan::Detail;
use nestrace_record::clock;
use nestrace_trace::Event;
use nestrace_trace::wire::AgentHello;

use crate::backend::{Attached, Backend, Backends, Chosen};
use crate::guest::{Facts, Surroundings};

/// How often losses, disks and mounts are looked at.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// A running recording.
pub struct Capture<'b> {
    backend: &'b mut dyn Backend,
    names: &'b [String],
    facts: Facts,
    surroundings: Surroundings,
    reason: String,
    /// What the start attached and what not.
    pub attached: Attached,
    /// `CLOCK_MONOTONIC` when it was live.
    pub live_ns: u64,
    lost: BTreeMap<u32, u64>,
    correction: clock::Correction,
    correction_grew: bool,
    next_drain: Instant,
    next_look: Instant,
}

impl<'b> Capture<'b> {
    /// Starts a backend.
    ///
    /// # Errors
    /// Why nothing can be recorded.
    pub fn start(
        backends: &'b mut Backends,
        names: &'b [String],
        asked: &str,
        facts: Facts,
        detail: Detail,
    ) -> Result<Self, String> {
        let Chosen {
            backend,
            reason,
            attached,
        } = backends.start(asked, &facts, detail)?;
        let live_ns = clock::monotonic_ns();
        let now = Instant::now();
        Ok(Self {
            next_drain: now + backend.period(),
            next_look: now + LOOK_AROUND,
            backend,
            names,
            facts,
            surroundings: Surroundings::now(),
            reason,
            attached,
            live_ns,
            lost: BTreeMap::new(),
            correction: clock::Correction::watch(),
            correction_grew: false,
        })
    }

    /// Who records what.
    pub fn hello(&self, session: u64) -> AgentHello {
        AgentHello {
            clock_correction_ppm: self.correction.most_ppm(),
            ..self.facts.hello(session, self.backend.name(), &self.reason)
        }
    }

    /// How long nothing is due.
    pub fn idle_for(&self) -> Duration {
        self.next_drain.saturating_duration_since(Instant::now())
    }

    /// Hands over events if that is due.
    pub fn tick(&mut self, sink: &mut dyn FnMut(&Event)) {
        let now = Instant::now();
        if now >= self.next_drain {
            self.backend.drain(sink);
            self.next_drain = Instant::now() + self.backend.period();
        }
        self.correction_grew |= self.correction.look();
    }

    /// Looks around if that is due; whether [`Self::hello`] says something new.
    pub fn look(&mut self, sink: &mut dyn FnMut(&Event)) -> bool {
        if Instant::now() < self.next_look {
            return false;
        }
        self.next_look = Instant::now() + LOOK_AROUND;
        self.backend.look();
        self.note_losses(sink);
        let correction_grew = std::mem::take(&mut self.correction_grew);
        self.look_at_facts() || correction_grew
    }

    fn look_at_facts(&mut self) -> bool {
        let surroundings = Surroundings::now();
        if surroundings == self.surroundings {
            return false;
        }
        self.surroundings = surroundings;
        let facts = self.facts.again(self.names);
        if facts == self.facts {
            return false;
        }
        self.backend.update(&facts);
        self.facts = facts;
        true
    }

    /// Ends it and hands over the rest; [`Self::hello`] may have something new to say. Gives `CLOCK_MONOTONIC` of the
    /// end.
    pub fn stop(&mut self, sink: &mut dyn FnMut(&Event)) -> u64 {
        let end_ns = clock::monotonic_ns();
        self.correction.look_last();
        self.backend.stop(sink);
        self.note_losses(sink);
        end_ns
    }

    /// Losses so far, by number of a [`nestrace_trace::Source`].
    pub fn lost(&self) -> &BTreeMap<u32, u64> {
        &self.lost
    }

    /// Events handed over after a younger one.
    pub fn out_of_order(&self) -> u64 {
        self.backend.out_of_order()
    }

    /// Each change is an event too, so that even a stream that was cut off knows what it lost.
    fn note_losses(&mut self, sink: &mut dyn FnMut(&Event)) {
        for (source, total) in self.backend.lost() {
            let before = self.lost.insert(source, total).unwrap_or(0);
            if total > before {
                sink(&Event {
                    ts_ns: clock::monotonic_ns(),
                    kind: Kind::Loss as u8,
                    sub: u8::try_from(source).unwrap_or(u8::MAX),
                    object: total,
                    ..Event::default()
                });
            }
        }
    }
}

/// Whether it was stopped or not, nothing stays attached.
impl Drop for Capture<'_> {
    fn drop(&mut self) {
        self.backend.release();
    }
}

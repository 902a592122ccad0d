//! Where events go, and what is noticed of them on the way.

use std::collections::BTreeSet;
use std::sync::Arc;

use nestrace_abi::Kind;
use nestrace_condition::Side;
use nestrace_output::bundle_dir::HostStream;
use nestrace_trace::{Event, StreamRing, address::Shift, writer::WriteError};

use super::guest_state::MAX_BACKENDS;
use crate::flight::rings::Rings;

/// BlockBackends of all guests that are remembered.
const MAX_SEEN: usize = 16 * MAX_BACKENDS;

/// Where events go, and what is noticed of them on the way.
pub(super) struct Sink {
    pub stream: HostStream,
    pub events: u64,
    pub ios: u64,
    pub failed: Option<WriteError>,
    /// BlockBackends seen for the first time: guest index and address.
    pub new_backends: BTreeSet<(u32, u64)>,
    /// Resets, stops and starts of guests that were not reported.
    pub machine_states: Vec<Event>,
    seen_backends: BTreeSet<(u32, u64)>,
    /// What is written has no address of this machine.
    pub shift: Shift,
    /// A flight recorder's streams, and the host's among them.
    pub kept: Option<(Arc<Rings>, StreamRing)>,
    /// When the events came that are taken now, on the host's clock.
    pub now_ns: u64,
}

impl Sink {
    /// An empty one.
    pub fn new(stream: HostStream, shift: Shift, kept: Option<(Arc<Rings>, StreamRing)>) -> Self {
        Self {
            stream,
            events: 0,
            ios: 0,
            failed: None,
            new_backends: BTreeSet::new(),
            machine_states: Vec::new(),
            seen_backends: BTreeSet::new(),
            shift,
            kept,
            now_ns: 0,
        }
    }

    /// Writes an event; the first failure is kept.
    pub fn take(&mut self, event: &Event) {
        match event.kind() {
            Some(Kind::Complete) if event.remaining_bytes() == 0 => self.ios += 1,
            Some(Kind::RequestDone) => self.ios += 1,
            Some(Kind::GuestRun | Kind::GuestReset) => self.machine_states.push(*event),
            Some(kind)
                if kind.is_aio_call()
                    && self.seen_backends.len() < MAX_SEEN
                    && self.seen_backends.insert((event.dev, event.backend())) =>
            {
                self.new_backends.insert((event.dev, event.backend()));
            }
            _ => {}
        }
        self.events += 1;
        let mut written = *event;
        self.shift.event(&mut written);
        if let Some((rings, ring)) = &self.kept {
            rings.take(Side::Host, &written, self.now_ns);
            ring.note(&written);
        }
        if let Err(error) = self.stream.push(&written) {
            self.failed.get_or_insert(error);
        }
    }
}

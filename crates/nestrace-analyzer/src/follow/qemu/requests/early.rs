//! Calls on virtio-blk before the distance to their requests is certain.

use nestrace_trace::Event;

use super::{Call, Requests, Step};

/// A call of a batch on virtio-blk before the distance to its request is certain: the first of a recording.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlyCall {
    call: Call,
    acct: usize,
    opaque: u64,
    tid: u32,
}

/// Such calls that are remembered.
const MAX_EARLY: usize = 256;

impl Requests {
    pub(super) fn is_early(&mut self, call: Call, acct: usize, event: &Event) {
        if self.early.len() >= MAX_EARLY {
            self.early.remove(0);
        }
        self.early.push(EarlyCall {
            call,
            acct,
            opaque: event.object,
            tid: event.tid,
        });
    }

    /// The distance is certain: the calls before it find their requests, where these have not ended.
    pub(super) fn tie_early(&mut self, distance: u64) {
        for early in std::mem::take(&mut self.early) {
            let cookie = early.opaque.wrapping_add(distance);
            let is_its_own = self.in_flight.get(&cookie).is_some_and(|request| {
                request.kind == early.acct
                    && request.tid == early.tid
                    && request.calls.is_empty()
                    && request.start_ns <= early.call.start_ns
            });
            if is_its_own {
                let call = Call {
                    unaccounted: false,
                    ..early.call
                };
                self.serves(cookie, &call, early.opaque, early.tid);
                self.steps.push(Step::Called(call));
            }
        }
    }
}

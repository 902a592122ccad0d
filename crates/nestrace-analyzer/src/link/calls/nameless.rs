//! Ended calls of threads without a name. A call that is recorded at its return may be the first event of its thread, and
//! the event with the name comes a moment later.

use crate::model::call::Call;
use crate::model::threads::Threads;

/// Calls that wait for a name.
const MOST: usize = 1 << 10;
/// The event with a thread's name comes with its first other event.
const NAME_COMES_NS: u64 = 1_000_000;

#[derive(Debug, Default)]
pub(super) struct NamelessCalls(Vec<Call>);

impl NamelessCalls {
    /// Keeps a call whose thread may get a name; gives back any other.
    pub(super) fn keep(&mut self, call: Call, threads: &Threads) -> Option<Call> {
        let named = threads.get(call.caller.tid).is_some();
        if !call.recorded_at_return || named || self.0.len() >= MOST {
            return Some(call);
        }
        self.0.push(call);
        None
    }

    /// Takes out the calls whose threads have a name by now, and those whose name does not come.
    pub(super) fn take(&mut self, now_ns: u64, threads: &Threads) -> Vec<Call> {
        if self.0.is_empty() {
            return Vec::new();
        }
        let is_ready = |call: &mut Call| {
            let named = threads.get(call.caller.tid).is_some();
            named || now_ns > call.end_ns.saturating_add(NAME_COMES_NS)
        };
        self.0.extract_if(.., is_ready).collect()
    }
}

//! What a guest has in flight is bounded: it is not trusted, and may begin I/O for ever and end none.

use super::Session;
use crate::result::unlinked::UnlinkedReason;

/// Bios without an end, requests without one, flushes, and ended requests of bios without an end, of each
/// so many: a guest that has more in flight on all its disks together lost events, or lies. The oldest are
/// given up, of bios that were split into very many requests those with the most.
const MAX_IN_FLIGHT: usize = 1 << 16;
/// Block events between two looks at that.
const BOUND_EVENTS: u64 = 1 << 14;

impl Session {
    /// Gives up what is in flight for too long where it is too much.
    pub(super) fn bound(&mut self, ts_ns: u64) {
        if !self.block_events.is_multiple_of(BOUND_EVENTS) {
            return;
        }
        let given_up =
            self.change_block(|block, above| block.give_up_beyond(MAX_IN_FLIGHT, ts_ns, above));
        self.have_no_end(given_up, ts_ns, UnlinkedReason::NoEnd);
        // Some of them began another life, and had no end to report.
        if let Some(numbers) = self
            .numbers
            .as_mut()
            .filter(|n| n.len() > 2 * MAX_IN_FLIGHT)
        {
            let mut queued: Vec<u64> = numbers.keys().map(|(_, queued_ns)| *queued_ns).collect();
            let (_, middle, _) = queued.select_nth_unstable(MAX_IN_FLIGHT);
            let middle = *middle;
            numbers.retain(|(_, queued_ns), _| *queued_ns > middle);
        }
    }
}

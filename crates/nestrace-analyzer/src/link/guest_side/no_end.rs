//! Bios of a guest that are given up without an end. Its stream lacks events: the agent's rings were full, or it was
//! started again. Or too much is in flight: a guest is not trusted, and may begin I/O for ever and end none.

use nestrace_abi::Source;
use nestrace_trace::Event;

use super::Session;
use crate::model::clocks::GuestNs;
use crate::model::span::BioSpan;
use crate::result::loss_counts::LossCounts;
use crate::result::unlinked::UnlinkedReason;

/// Bios without an end, requests without one, flushes, and ended requests of bios without an end, of each
/// so many: a guest that has more in flight on all its disks together lost events, or lies. The oldest are
/// given up, of bios that were split into very many requests those with the most.
const MAX_IN_FLIGHT: usize = 1 << 16;
/// Block events between two looks at that.
const BOUND_EVENTS: u64 = 1 << 14;

impl Session {
    pub(super) fn loss(&mut self, event: &Event) {
        if !self.losses.grow(event) {
            return;
        }
        if event.sub == Source::Cpu as u8 {
            return self.cpu.guest.borrow_mut().interrupted(event.ts_ns);
        }
        self.calls.interrupted(&self.threads);
        if !LossCounts::is_of_blocks(event) {
            return;
        }
        self.reasons.lost_so_far = true;
        self.qemu.pairing.guest_lost(GuestNs(event.ts_ns));
        // Bios that were not walked are in flight all the same, and everything else was seen.
        if event.sub == Source::Block as u8 {
            self.interrupted(event.ts_ns);
        }
    }

    fn interrupted(&mut self, ts_ns: u64) {
        let in_flight = self.change_block(|block, above| block.interrupted(ts_ns, above));
        self.have_no_end(in_flight, ts_ns, UnlinkedReason::LostEvents);
    }

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

    /// Bios that are not waited for any more, and why.
    pub(super) fn have_no_end(&mut self, bios: Vec<BioSpan>, ts_ns: u64, reason: UnlinkedReason) {
        for mut bio in bios {
            // Not the requests that it had: it needs them all to be followed.
            bio.requests.clear();
            bio.ended_ns = ts_ns.max(bio.queued_ns);
            self.bio(bio, Some(reason));
        }
    }
}

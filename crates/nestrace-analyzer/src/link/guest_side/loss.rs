//! What a session does where its stream lacks events: the agent's rings were full, or it was started again.

use nestrace_abi::Source;
use nestrace_trace::Event;

use super::Session;
use crate::model::span::BioSpan;
use crate::result::loss_counts::LossCounts;
use crate::result::unlinked::UnlinkedReason;

impl Session {
    pub(super) fn loss(&mut self, event: &Event) {
        if !self.losses.grow(event) {
            return;
        }
        if let Some(calls) = &mut self.calls {
            calls.interrupted(&self.threads);
        }
        if !LossCounts::is_of_blocks(event) {
            return;
        }
        self.reasons.lost_so_far = true;
        self.pairing.guest_lost(event.ts_ns);
        // Bios that were not walked are in flight all the same, and everything else was seen.
        if event.sub == Source::Block as u8 {
            self.interrupted(event.ts_ns);
        }
    }

    fn interrupted(&mut self, ts_ns: u64) {
        let in_flight = self.change_block(|block, above| block.interrupted(ts_ns, above));
        self.have_no_end(in_flight, ts_ns, UnlinkedReason::LostEvents);
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

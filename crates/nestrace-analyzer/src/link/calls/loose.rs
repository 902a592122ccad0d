//! Metadata that threads read in no known call: a call that is recorded at its return may have waited for it.

use std::collections::VecDeque;

use crate::model::call::{Call, WaitedBio, Why};
use crate::model::span::BioSpan;

/// Bios that are kept, and for how long.
const MOST: usize = 1 << 10;
const KEPT_NS: u64 = 1_000_000_000;

/// A bio that a thread queued in no call that is known yet.
#[derive(Clone, Copy, Debug)]
struct Loose {
    tid: u32,
    bio: WaitedBio,
}

/// The oldest first.
#[derive(Debug, Default)]
pub(super) struct LooseBios(VecDeque<Loose>);

impl LooseBios {
    pub(super) fn keep(&mut self, bio: &BioSpan, id: u64) {
        self.0.push_back(Loose {
            tid: bio.tid,
            bio: WaitedBio {
                id,
                why: Why::Own,
                own: true,
                queued_ns: bio.queued_ns,
                ended_ns: bio.ended_ns,
            },
        });
    }

    /// Takes out a bio that no call can have waited for any more.
    pub(super) fn forget(&mut self, now_ns: u64) -> Option<u64> {
        let oldest = self.0.front()?;
        let is_old = oldest.bio.ended_ns.saturating_add(KEPT_NS) < now_ns;
        let forgotten = (is_old || self.0.len() > MOST).then(|| self.0.pop_front());
        forgotten.flatten().map(|loose| loose.bio.id)
    }

    /// Gives a call what its thread waited for in its time.
    pub(super) fn claimed_by(&mut self, call: &mut Call) {
        let (begin_ns, end_ns) = (call.start_ns, call.end_ns);
        let tid = call.caller.tid;
        self.0.retain(|loose| {
            let its =
                loose.tid == tid && loose.bio.queued_ns >= begin_ns && loose.bio.ended_ns <= end_ns;
            if its {
                call.bios.push(loose.bio);
            }
            !its
        });
    }
}

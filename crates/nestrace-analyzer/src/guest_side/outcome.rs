//! What the pairing has decided of requests, and what it leaves open.

use super::Session;
use crate::chains::Link;
use crate::clock::Outcome;

impl Session {
    pub(super) fn take_outcomes(&mut self) {
        while let Some(outcome) = self.pairing.next_outcome() {
            match outcome {
                Outcome::Paired(paired) => {
                    let link = self.served.remove(&paired.host).map(|served| Link {
                        served,
                        offset_ns: paired.offset_ns,
                        bound_ns: paired.band.bound_ns(),
                        stretched: paired.stretched,
                    });
                    self.join.decide(paired.guest, link.ok_or("no_match"));
                }
                Outcome::Unpaired(unpaired) => self
                    .join
                    .decide(unpaired.guest, Err(unpaired.reason.name())),
                Outcome::Unclaimed(host) => {
                    self.unclaimed.extend(self.served.remove(&host));
                }
            }
        }
    }

    /// Why what has no decision at the end has none.
    pub(super) fn reason_of_open(&self) -> &'static str {
        if self.reasons.lost_so_far || self.reasons.lost_sometime {
            "lost_events"
        } else {
            "after_end"
        }
    }
}

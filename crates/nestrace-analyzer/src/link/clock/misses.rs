//! When a clock is doubted: misses in a row, and the search for another offset.

use super::pending::Pending;

/// Requests that have to agree on an offset that nothing else points to.
pub(super) const CONSENSUS: u64 = 24;

/// What a request without a partner counts against one with: after a step some still find one by chance.
pub(super) const MISS_WEIGHS: u64 = 3;

/// A search for the offset.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    /// First guest request that takes part.
    pub from: u64,
    /// First host request that came after the doubt.
    pub host_from: u64,
    /// Tried again when so many are there.
    pub at: usize,
    /// No clock was known before.
    pub first: bool,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            from: 0,
            host_from: 0,
            at: CONSENSUS as usize,
            first: true,
        }
    }
}

impl Search {
    /// Guest and host requests that have come for it: those of the host from before it were there for the
    /// old clock, and there may be thousands of them that no guest request came for.
    pub(super) fn seen(&self, pending: &Pending) -> (u64, u64) {
        (
            pending.guests.end() - self.from.max(pending.guests.first()),
            pending.hosts.end() - self.host_from.max(pending.hosts.first()),
        )
    }
}

/// How many guest requests of late had no partner.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Misses {
    /// Misses times [`MISS_WEIGHS`], less the pairs since.
    pub score: u64,
    /// The first miss since the score was 0.
    pub from: u64,
    /// Doubts about requests before this one have been settled.
    pub trusted_before: u64,
}

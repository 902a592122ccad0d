//! Which `blk_aio_*` call belongs to which accounted request.
//!
//! On virtio-blk the call's `opaque`, and the element that `virtqueue_push` gets, is the request
//! that contains the cookie: both lie at one constant distance below it (216 bytes in QEMU 7.2 and
//! 10.0). The distance is learnt: every call votes for the distances to the cookies that its
//! thread has started. Adjacent heap objects give other small distances now and then, but only the
//! true one recurs for every call: while another has nearly as many votes, nothing is tied.

use crate::model::pointer::PointerMap;

/// The accounting cookie lies within the request, whose head is smaller than this.
const MAX_DISTANCE: u64 = 1024;

/// Cookies of one thread that may wait for their call; virtio-blk merges at most 32.
const MAX_WAITING: usize = 256;

/// Votes that the distance has more than any other before it ties anything, where there is another.
const AHEAD: u64 = 2;
/// Votes of a call that has one cookie near it.
const ALONE: u64 = 2;

/// Distances to calls that may be a request's own.
#[derive(Clone, Debug, Default)]
pub(super) struct Deltas(Vec<u64>);

impl Deltas {
    pub(super) fn add(&mut self, delta: u64) {
        if self.0.len() < 8 && !self.0.contains(&delta) {
            self.0.push(delta);
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u64> {
        self.0.iter().copied()
    }
}

/// Cookies by thread, and the votes.
#[derive(Debug, Default)]
pub(super) struct AioCalls {
    waiting: PointerMap<u32, Vec<u64>>,
    votes: PointerMap<u64, u64>,
    best: Option<(u64, u64)>,
    /// Most votes of another distance.
    second: u64,
    /// Distances of the call at hand; kept for its room.
    near: Vec<u64>,
    /// `blk_aio_*` was seen.
    pub recorded: bool,
}

impl AioCalls {
    pub(super) fn started(&mut self, tid: u32, cookie: u64) {
        let waiting = self.waiting.entry(tid).or_default();
        if waiting.len() == MAX_WAITING {
            waiting.remove(0);
        }
        waiting.push(cookie);
    }

    pub(super) fn ended(&mut self, tid: u32, cookie: u64) {
        if let Some(waiting) = self.waiting.get_mut(&tid)
            && let Some(place) = waiting.iter().rposition(|known| *known == cookie)
        {
            waiting.swap_remove(place);
        }
    }

    /// A call: `candidate` is asked for each cookie near enough, and says whether it fits.
    pub(super) fn called(
        &mut self,
        tid: u32,
        opaque: u64,
        mut candidate: impl FnMut(u64, u64) -> bool,
    ) {
        self.recorded = true;
        let Some(waiting) = self.waiting.get(&tid) else {
            return;
        };
        let mut near = std::mem::take(&mut self.near);
        near.extend(waiting.iter().filter_map(|cookie| {
            let delta = cookie.wrapping_sub(opaque);
            let fits = delta != 0 && delta < MAX_DISTANCE && candidate(*cookie, delta);
            fits.then_some(delta)
        }));
        let weight = if near.len() == 1 { ALONE } else { 1 };
        near.drain(..).for_each(|delta| self.vote(delta, weight));
        self.near = near;
    }

    fn vote(&mut self, delta: u64, weight: u64) {
        let votes = self.votes.entry(delta).or_default();
        *votes += weight;
        match self.best {
            Some((best, most)) if best != delta && *votes <= most => {
                self.second = self.second.max(*votes);
            }
            Some((best, most)) if best != delta => {
                self.second = most;
                self.best = Some((delta, *votes));
            }
            _ => self.best = Some((delta, *votes)),
        }
    }

    /// The cookie of a virtio request, once the distance is certain.
    pub(super) fn cookie_of(&self, element: u64) -> Option<u64> {
        let sure = |votes: u64| self.second == 0 || votes >= self.second.saturating_add(AHEAD);
        let (delta, _) = self.best.filter(|(_, votes)| sure(*votes))?;
        Some(element.wrapping_add(delta))
    }

    /// The distance with the most votes.
    pub(super) fn distance(&self) -> Option<u64> {
        self.best.map(|(delta, _)| delta)
    }
}

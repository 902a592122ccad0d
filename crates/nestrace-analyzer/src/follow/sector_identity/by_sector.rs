//! I/Os on their way, found by their first byte.

use std::ops::{Deref, DerefMut};

use super::guesses::{Guesses, OfBios, take_guessing};
use super::line::Line;
use super::{Extent, in_flush_sequence, needs_flush_behind};
use crate::model::places::Places;
use crate::model::spare::MAX_LISTED;

/// At the device for so long, a request is passed over for a younger one at its place.
const LONG_NS: u64 = 100_000_000;

/// A bio that is in no request yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub address: u64,
    /// The one that was queued: of a split bio's front half another one than itself.
    pub bio: u64,
    /// Task that queued it.
    pub tid: u32,
    pub since_ns: u64,
    pub extent: Extent,
    pub flags: u32,
}

/// A bio in a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    pub address: u64,
    /// [`Waiting::bio`].
    pub bio: u64,
    pub flags: u32,
}

impl Waiting {
    pub(super) const fn carried(&self) -> Carried {
        Carried {
            address: self.address,
            bio: self.bio,
            flags: self.flags,
        }
    }
}

/// A request from G to its last C. It moves from place to place on its way, so only its address does.
#[derive(Clone, Debug)]
pub(super) struct Request(Box<OnItsWay>);

/// What is known of a request.
#[derive(Clone, Debug)]
pub(super) struct OnItsWay {
    pub address: u64,
    /// The step that it is in began: G, D, or, where a flush is to follow it, the C of its data.
    pub since_ns: u64,
    pub extent: Extent,
    pub inserted: bool,
    pub in_sequence: bool,
    /// The flush machinery sends a flush behind its data.
    pub postflush: bool,
    /// In ascending order of their sectors.
    pub bios: Line<Carried>,
}

impl Request {
    pub(super) fn empty(address: u64, since_ns: u64, extent: Extent) -> Self {
        Self(Box::new(OnItsWay {
            address,
            since_ns,
            extent,
            inserted: false,
            in_sequence: false,
            postflush: false,
            bios: Line::default(),
        }))
    }

    /// The same in the memory of one that has ended.
    pub(super) fn empty_in(
        mut ended: Box<OnItsWay>,
        address: u64,
        since_ns: u64,
        extent: Extent,
    ) -> Self {
        ended.address = address;
        ended.since_ns = since_ns;
        ended.extent = extent;
        ended.inserted = false;
        ended.in_sequence = false;
        ended.postflush = false;
        Self(ended)
    }

    /// The memory of one that has ended, without what few need.
    pub(super) fn into_memory(mut self) -> Box<OnItsWay> {
        self.0.bios.clear(MAX_LISTED);
        self.0
    }
}

impl OnItsWay {
    /// Whether one of its bios goes through the flush machinery, at a D with these flags, or did.
    pub(super) fn is_in_flush_sequence(&self, at_issue: u32) -> bool {
        let mut bios = self.bios.iter();
        self.in_sequence || bios.any(|bio| in_flush_sequence(bio.flags, at_issue))
    }

    /// Whether the flush machinery sends a flush behind its data, at a D with these flags, or did.
    pub(super) fn needs_flush_behind(&self, at_issue: u32) -> bool {
        let mut bios = self.bios.iter();
        self.postflush || bios.any(|bio| needs_flush_behind(bio.flags, at_issue))
    }
}

impl Deref for Request {
    type Target = OnItsWay;

    #[inline]
    fn deref(&self) -> &OnItsWay {
        &self.0
    }
}

impl DerefMut for Request {
    #[inline]
    fn deref_mut(&mut self) -> &mut OnItsWay {
        &mut self.0
    }
}

impl OfBios for Waiting {
    fn bios(&self) -> impl Iterator<Item = u64> {
        std::iter::once(self.bio)
    }
}

impl OfBios for Request {
    fn bios(&self) -> impl Iterator<Item = u64> {
        self.bios.iter().map(|carried: &Carried| carried.bio)
    }
}

/// Things at a sector, the oldest first.
pub(super) type BySector<T> = Places<Line<T>, 64>;

/// Things at one sector that are distinguished: the oldest of more are forgotten. They are looked through one by
/// one, and captures are not trusted.
const MAX_ALIKE: usize = 1 << 10;

/// Adds the youngest at `offset`.
#[inline]
pub(super) fn put<T>(map: &mut BySector<T>, offset: u64, thing: T) {
    let line = map.get_or_default(offset);
    if line.len() >= MAX_ALIKE {
        line.pop_front();
    }
    line.push_back(thing);
}

/// Takes out the oldest at `offset` that is the one.
pub(super) fn take<T>(map: &mut BySector<T>, offset: u64, is_it: impl Fn(&T) -> bool) -> Option<T> {
    take_from(map, offset, |line| line.take(is_it))
}

/// Takes out the oldest bio or request at `offset` that is the one; where there are others like it, all are marked.
pub(super) fn take_one<T: OfBios>(
    map: &mut BySector<T>,
    offset: u64,
    guesses: &mut Guesses,
    is_it: impl Fn(&T) -> bool,
) -> Option<T> {
    take_from(map, offset, |line| take_guessing(line, guesses, is_it))
}

/// The same of a bio about which its own task says something: what is behind Q in the block layer happens in the task that
/// queued it, or in one that queued nothing.
#[inline]
pub(super) fn take_waiting(
    map: &mut BySector<Waiting>,
    offset: u64,
    guesses: &mut Guesses,
    tid: u32,
    is_it: impl Fn(&Waiting) -> bool,
) -> Option<Waiting> {
    take_from(map, offset, |line| {
        take_guessing(line, guesses, |bio| bio.tid == tid && is_it(bio))
            .or_else(|| take_guessing(line, guesses, &is_it))
    })
}

/// Takes out the oldest at `offset` that is the one, but one that is there for very long only if there is no
/// other: its own C was lost, or else every later request at its place would end with the next one's C.
pub(super) fn take_issued(
    map: &mut BySector<Request>,
    offset: u64,
    guesses: &mut Guesses,
    now_ns: u64,
    is_it: impl Fn(&Request) -> bool,
) -> Option<Request> {
    let recent = |request: &Request| request.since_ns.saturating_add(LONG_NS) >= now_ns;
    take_from(map, offset, |line| {
        let taken = line
            .take(|request| is_it(request) && recent(request))
            .or_else(|| line.take(&is_it))?;
        // The one that was passed over may have been it all the same.
        guesses.mark(&taken, line.iter().filter(|other| is_it(other)));
        Some(taken)
    })
}

/// Takes something out of the line at `offset`; a sector without any is not kept.
fn take_from<T>(
    map: &mut BySector<T>,
    offset: u64,
    from: impl FnOnce(&mut Line<T>) -> Option<T>,
) -> Option<T> {
    map.change(offset, from, Line::is_empty)?
}

/// Keeps some, and no sector without any.
pub(super) fn keep<T>(map: &mut BySector<T>, is_kept: impl Fn(&T) -> bool) {
    map.retain(|_, line| {
        line.retain(&is_kept);
        !line.is_empty()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_whose_end_was_lost_does_not_shift_those_after_it() {
        let extent = Extent {
            offset: 4096,
            bytes: 512,
            op: 0,
        };
        let mut map = BySector::default();
        let issued = [(1, 0), (2, LONG_NS), (3, LONG_NS + 5)];
        for (address, since_ns) in issued {
            let request = Request::empty(address, since_ns, extent);
            put(&mut map, 4096, request);
        }
        let mut take = |now_ns| {
            let guesses = &mut Guesses::default();
            let taken = take_issued(&mut map, 4096, guesses, now_ns, |_| true);
            taken.map(|request| request.address)
        };
        // The oldest ends first, unless it is too old for that.
        assert_eq!(take(LONG_NS + 10), Some(2));
        assert_eq!(take(LONG_NS + 20), Some(3));
        assert_eq!((take(LONG_NS + 30), take(LONG_NS + 40)), (Some(1), None));
    }
}

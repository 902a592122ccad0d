//! I/Os on their way, found by their first byte.

use std::collections::VecDeque;

use super::Extent;
use crate::pointer::PointerMap;

/// At the device for so long, a request is passed over for a younger one at its place.
const LONG_NS: u64 = 100_000_000;

/// A bio that is in no request yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub address: u64,
    pub since_ns: u64,
    pub extent: Extent,
    pub flags: u32,
}

/// A bio in a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    pub address: u64,
    pub flags: u32,
}

/// A request from G to its last C.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub address: u64,
    pub since_ns: u64,
    pub extent: Extent,
    pub inserted: bool,
    pub in_sequence: bool,
    /// In ascending order of their sectors.
    pub bios: VecDeque<Carried>,
}

impl Request {
    pub(super) fn empty(address: u64, since_ns: u64, extent: Extent) -> Self {
        Self {
            address,
            since_ns,
            extent,
            inserted: false,
            in_sequence: false,
            bios: VecDeque::new(),
        }
    }
}

/// Things at a sector, the oldest first. Most sectors have one.
pub(super) type BySector<T> = PointerMap<u64, VecDeque<T>>;

/// Things at one sector that are told apart: the oldest of more are forgotten. They are looked through one by
/// one, and whoever wrote the capture is not trusted.
pub(super) const MOST_ALIKE: usize = 1 << 10;

/// Adds the youngest at `offset`.
pub(super) fn put<T>(map: &mut BySector<T>, offset: u64, thing: T) {
    let list = map.entry(offset).or_default();
    if list.len() >= MOST_ALIKE {
        list.pop_front();
    }
    list.push_back(thing);
}

/// Takes out the oldest at `offset` that is the one.
pub(super) fn take<T>(map: &mut BySector<T>, offset: u64, is_it: impl Fn(&T) -> bool) -> Option<T> {
    let list = map.get_mut(&offset)?;
    let place = list.iter().position(is_it)?;
    let found = list.remove(place);
    if list.is_empty() {
        map.remove(&offset);
    }
    found
}

/// Takes out the oldest at `offset` that is the one, but one that is there for very long only if there is no
/// other: its own C was lost, or else every later request at its place would end with the next one's C.
pub(super) fn take_issued(
    map: &mut BySector<Request>,
    offset: u64,
    now_ns: u64,
    is_it: impl Fn(&Request) -> bool,
) -> Option<Request> {
    let list = map.get_mut(&offset)?;
    let recent = |request: &Request| request.since_ns.saturating_add(LONG_NS) >= now_ns;
    let place = list
        .iter()
        .position(|request| is_it(request) && recent(request))
        .or_else(|| list.iter().position(&is_it))?;
    let found = list.remove(place);
    if list.is_empty() {
        map.remove(&offset);
    }
    found
}

/// Keeps some, and no sector without any.
pub(super) fn keep<T>(map: &mut BySector<T>, is_kept: impl Fn(&T) -> bool) {
    map.retain(|_, list| {
        list.retain(&is_kept);
        !list.is_empty()
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
            let taken = take_issued(&mut map, 4096, now_ns, |_| true);
            taken.map(|request| request.address)
        };
        // The oldest ends first, unless it is too old for that.
        assert_eq!(take(LONG_NS + 10), Some(2));
        assert_eq!(take(LONG_NS + 20), Some(3));
        assert_eq!((take(LONG_NS + 30), take(LONG_NS + 40)), (Some(1), None));
    }
}

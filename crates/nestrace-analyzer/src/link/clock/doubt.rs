//! Doubts about the clock: noticing that it made a step, and finding where it is now.
//!
//! Requests without a partner are counted against those with one. When they become too many, whatever
//! was not reported is taken back and the offset is looked for anew among the requests since the first
//! of them.

use std::collections::HashMap;

use super::corridor::Corridor;
use super::fitting::Fitting;
use super::misses::{CONSENSUS, MISS_WEIGHS, Search};
use super::pairing::{MAX_GUESTS, Pairing};
use super::pending::State;
use super::request::{Band, GuestRequest, UnpairedReason};
use super::search::{self, Wanted};
use crate::model::clocks::GuestNs;

/// Requests without a partner, in a row, after which the clock itself is doubted.
const DOUBT: u64 = 16;
/// Guest requests after which a doubt is given up: QEMU's side is missing.
const DOUBT_ENDS: usize = 4096;
/// The same at the end of a recording, or after a pause, where less is left to be found out.
const SMALL_CONSENSUS: u64 = 6;
/// How far the wall clocks of host and guest may be apart when they decide between offsets.
const WALL_CLOCKS_AGREE_NS: i64 = 2_000_000_000;
/// So many more requests that a clock does not explain than it does show that it does not hold yet.
const NOT_YET: i64 = 8;

impl Pairing {
    /// Counts a request without a partner; `true` if there are so many in a row that the clock may have
    /// made a step.
    pub(super) fn doubt(&mut self, number: u64, request: &GuestRequest, weighs: u64) -> bool {
        if weighs == 0 || !self.tally.expected(request) {
            return false;
        }
        if self.misses.score == 0 {
            self.misses.from = number;
        }
        self.misses.score += weighs;
        let doubted =
            self.misses.score >= DOUBT * MISS_WEIGHS && number >= self.misses.trusted_before;
        if doubted {
            self.begin_search();
        }
        doubted
    }

    /// At the end there is no more to wait for: fewer misses are enough.
    pub(super) fn doubt_at_end(&mut self) -> bool {
        let doubted = self.misses.score >= SMALL_CONSENSUS * MISS_WEIGHS
            && self.ties.pending.guests.end() > self.misses.trusted_before;
        if doubted {
            self.begin_search();
        }
        doubted
    }

    /// What was tied of late was tied by a clock that is in doubt: takes it back.
    fn begin_search(&mut self) {
        let unreported = self.reported_before.max(self.ties.pending.guests.first());
        self.ties.pending.untie(unreported);
        self.ties.timeline.take_back();
        self.ties.queues.forget();
        self.search = Some(Search {
            from: self.misses.from.max(unreported),
            host_from: self.ties.pending.hosts.end(),
            at: DOUBT as usize,
            first: false,
        });
    }

    /// Looks for the offset if there is enough to look at; `false` if more has to be seen first.
    pub(super) fn search_on(&mut self, end: bool) -> bool {
        let Some(search) = self.search else {
            return true;
        };
        let from = search.from.max(self.ties.pending.guests.first());
        let n_guests = usize::try_from(self.ties.pending.guests.end() - from).unwrap_or(0);
        if n_guests < search.at && !end {
            return false;
        }
        let found = self.look(from, search.first, end);
        let step = found.is_some_and(|found| self.take_offset(found, from, search.first));
        let most = if search.first { MAX_GUESTS } else { DOUBT_ENDS };
        if found.is_some() || end || (n_guests >= most && !search.first) {
            self.search = None;
            self.misses.score = 0;
            self.misses.trusted_before = self.trusted_after(found.filter(|_| step));
            self.tied_before = self.reported_before.max(self.ties.pending.guests.first());
            self.unsure.clear();
            return true;
        }
        if n_guests >= most {
            self.drop_oldest(n_guests / 2);
        }
        let at = (search.at * 2).max(n_guests + n_guests / 2).min(most);
        self.search = Some(Search { at, ..search });
        false
    }

    /// The offset that the requests from `from` on agree on.
    fn look(&self, from: u64, first: bool, end: bool) -> Option<search::Found> {
        let guests = self.ties.pending.waiting_guests(from);
        let hosts = self.ties.pending.waiting_hosts();
        let mut wanted = Wanted {
            within: None,
            at_least: CONSENSUS,
            rho_ppm: self.ties.timeline.rho_ppm(),
            host_whole: !self.ties.host_lost,
        };
        if !first {
            wanted.at_least = if end { SMALL_CONSENSUS } else { DOUBT * 3 / 4 };
        }
        let found = search::find(&guests, &hosts, wanted);
        let wall = self
            .start
            .wall_offset_ns
            .filter(|_| first && end && found.is_none());
        found.or_else(|| {
            let offset_ns = wall?;
            wanted.at_least = SMALL_CONSENSUS;
            wanted.within = Some(Band {
                lo_ns: offset_ns.saturating_sub(WALL_CLOCKS_AGREE_NS),
                hi_ns: offset_ns.saturating_add(WALL_CLOCKS_AGREE_NS),
            });
            search::find(&guests, &hosts, wanted)
        })
    }

    /// Up to which request a search has settled all doubts.
    fn trusted_after(&self, found: Option<search::Found>) -> u64 {
        let (first, end) = (self.tied_before, self.ties.pending.guests.end());
        let later = |number: &u64| {
            let entry = self.ties.pending.guests.get(*number);
            found.is_some_and(|found| {
                entry.is_some_and(|entry| entry.request.issued_ns > found.last_ns)
            })
        };
        // There may have been another step since; but every search settles some requests.
        let next = (first..end).find(later).unwrap_or(end);
        next.max(self.misses.trusted_before + 2 * DOUBT)
    }

    /// Goes on with an offset that was found: in the running piece if it lies in its band, else (`true`)
    /// in a new one.
    fn take_offset(&mut self, found: search::Found, from: u64, first: bool) -> bool {
        let seed = found.seed(self.ties.timeline.rho_ppm());
        let inside = |band: Band| found.band.lo_ns <= band.hi_ns && band.lo_ns <= found.band.hi_ns;
        if !first && self.ties.timeline.band(found.guest_ns).is_some_and(inside) {
            self.ties.timeline.hint(seed);
            return false;
        }
        let (after_ns, from_ns) = self.step(&seed, from);
        self.ties.timeline.begin(after_ns, from_ns, seed);
        true
    }

    /// Between which times of the guest's clock it made the step: after the last request that only the
    /// old clock explains, and before the first that only the new one does.
    fn step(&self, new: &Corridor, from: u64) -> (GuestNs, GuestNs) {
        let unreported = self.reported_before.max(self.ties.pending.guests.first());
        let Some(old) = self.ties.timeline.running() else {
            return (GuestNs::default(), GuestNs::default());
        };
        // Of one key there may be very many on both sides: nothing is looked through for each of them.
        let mut hosts: HashMap<u32, Fitting> = HashMap::new();
        let mut explained = |number: u64| {
            let entry = self.ties.pending.guests.get(number);
            let waiting = entry.filter(|entry| entry.state == State::Waiting);
            let (entry, place) = waiting.zip(self.ties.pending.place(number))?;
            let alike = || self.ties.pending.hosts_like(number).map(|(_, host)| host);
            let alike = hosts.entry(place).or_insert_with(|| Fitting::new(alike()));
            let guest = &entry.request;
            let by = |window| alike.any_in(window);
            Some((by(old.window(guest)), by(new.window(guest))))
        };
        let issued = |number| {
            self.ties
                .pending
                .guests
                .get(number)
                .map(|entry| entry.request.issued_ns)
        };
        let only_old = |n: &u64| explained(*n) == Some((true, false));
        let last_old = (unreported..from).rev().find(only_old);
        let first = last_old.map_or(unreported, |last| last + 1);
        let end = self.ties.pending.guests.end();
        let after: Vec<_> = (first..end)
            .filter_map(|n| Some((n, explained(n)?)))
            .collect();
        let by_new = after.iter().map(|(n, (_, new))| (*n, *new));
        let held_from = held_from(by_new).unwrap_or(first);
        let only_new = |(n, by): &&(u64, (bool, bool))| *n >= held_from && *by == (false, true);
        let first_new = after.iter().find(only_new).map(|(n, _)| *n);
        // Before, neither clock holds: what the new one explains there it does by chance.
        let not_yet = held_from.checked_sub(1).filter(|last| *last >= first);
        let after_ns = [last_old, not_yet].into_iter().flatten().filter_map(issued);
        let after_ns = after_ns.max().unwrap_or_default().max(old.last_ns());
        let from_ns = first_new.and_then(issued).unwrap_or(after_ns);
        let next_ns = after_ns.saturating_add(1);
        (next_ns, from_ns.max(next_ns))
    }

    /// No offset was found for very many requests: the older ones are given up.
    fn drop_oldest(&mut self, n: usize) {
        for _ in 0..n {
            let number = self.ties.pending.guests.first();
            let Some(entry) = self.ties.pending.guests.get(number) else {
                return;
            };
            let serial = entry.request.serial;
            let until = self.last_host_ns.bound();
            self.ties.pending.give_up_guest(number, until);
            self.unpaired(serial, UnpairedReason::OutsideClockBound);
        }
    }
}

/// From which request on a clock holds, if it does not from the first on: `explained` tells of each whether the
/// clock does. It holds where most are explained; [`NOT_YET`] more before that which are not show that it did
/// not hold there.
fn held_from(explained: impl Iterator<Item = (u64, bool)>) -> Option<u64> {
    let (mut best, mut from, mut balance) = (0, None, 0_i64);
    // The sum of all up to the request that a stretch begins with, and of the stretch so far.
    let (mut before, mut begin) = (0_i64, None);
    for (number, is_explained) in explained {
        if balance < 0 {
            before += balance;
            (balance, begin) = (0, (before <= -NOT_YET).then_some(number));
        }
        balance += if is_explained { 1 } else { -1 };
        if balance > best {
            (best, from) = (balance, begin);
        }
    }
    from
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::clock::{ClockStart, HostRequest, Key, OpClass, effort};
    use crate::model::clocks::HostNs;

    /// As many as may wait.
    const WAITING: u64 = MAX_GUESTS as u64;
    /// For each waiting request: once to index it, and a few halvings for both clocks, back and forth.
    const STEPS: u64 = 4 * 72 * WAITING;

    /// The clock that a search found: `shift_ns` after the one that was known.
    fn corridor(shift_ns: i64) -> Corridor {
        let mut corridor = Corridor::new(500);
        let band = Band {
            lo_ns: shift_ns - 1_000,
            hi_ns: shift_ns + 1_000,
        };
        corridor.assume(GuestNs(0), band);
        corridor
    }

    /// Equal requests, one every 10 µs, each an exchange with one of QEMU's; `shift_ns` between the clocks.
    fn storm(shift_ns: u64) -> Pairing {
        let key = Key {
            class: OpClass::Write,
            offset: 4096,
            bytes: 4096,
        };
        let mut pairing = Pairing::new(ClockStart::default());
        pairing
            .ties
            .timeline
            .begin(GuestNs(0), GuestNs(0), corridor(0));
        for serial in 0..WAITING {
            let at_ns = 1_000_000 + serial * 10_000;
            pairing.ties.pending.add_host(HostRequest {
                serial,
                disk: 0,
                key,
                buffer: 0,
                lane: HostRequest::ANY_LANE,
                start_ns: HostNs(at_ns),
                end_ns: HostNs(at_ns + 3_000),
            });
            let request = GuestRequest {
                serial,
                device: 0,
                key,
                buffer: 0,
                may_be_alone: false,
                flushed_with: 0,
                lane: GuestRequest::ANY_LANE,
                issued_ns: GuestNs(at_ns + shift_ns),
                completed_ns: GuestNs(at_ns + shift_ns + 3_000),
            };
            pairing.ties.pending.add_guest(0, request);
        }
        pairing
    }

    #[test]
    fn a_clock_holds_where_most_requests_are_explained() {
        let held = |runs: &[(usize, bool)]| {
            let all = runs
                .iter()
                .flat_map(|(n, is_explained)| vec![*is_explained; *n]);
            held_from((0..).zip(all))
        };
        assert_eq!(held(&[]), None);
        assert_eq!(held(&[(50, true)]), None);
        // A few that have no partner at the step, and any number after another step.
        assert_eq!(
            held(&[(7, false), (50, true), (1000, false), (3, true)]),
            None
        );
        assert_eq!(held(&[(30, false), (50, true)]), Some(30));
        // Here and there one by chance.
        let mut chance = [(9, false), (1, true)].repeat(10);
        chance.push((60, true));
        assert_eq!(held(&chance), Some(99));
    }

    /// A guest chooses what it writes: one place again and again makes the whole of the wait one list.
    #[test]
    fn a_step_is_found_among_equal_requests_without_looking_at_each_for_each() {
        // Whether the old clock explains all, the new one alone, both or neither.
        for (shift_ns, new_ns) in [(0, 5_000), (5_000, 5_000), (0, 10_000), (5_000, 6_500)] {
            let pairing = storm(shift_ns);
            let search = || pairing.step(&corridor(new_ns), WAITING / 2);
            let ((after_ns, from_ns), steps) = effort::within(STEPS, search);
            assert!(after_ns <= from_ns, "{steps} steps");
        }
    }
}

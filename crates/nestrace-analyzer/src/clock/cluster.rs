//! Equal requests in flight together: which is which, as far as the band leaves no choice.

use super::pending::Pending;
use super::request::{GuestRequest, HostRequest};
use super::timeline::Timeline;

/// Requests of one key, on each side, that are looked at together.
const MOST: usize = 64;
/// Requests of one key that are looked through for those: more are a storm that the other side does not
/// have.
const SCANNED: usize = 2048;

/// What the band leaves possible for a guest request and all that compete with it.
#[derive(Debug, Default)]
pub(super) struct Resolved {
    /// Certain pairs.
    pub pairs: Vec<Pair>,
    /// Guest requests that have partners, but not certain ones.
    pub guests: Vec<u64>,
    /// The host requests that these could be.
    pub hosts: Vec<u64>,
}

/// A certain pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub guest: u64,
    pub host: u64,
    /// The band alone tells it, over a whole group: it may narrow the band.
    pub exchange: bool,
}

/// Requests as a graph: bit `j` of `hosts_of[i]` is set if guest `i` can be host `j`.
#[derive(Debug, Default)]
struct Graph<'a> {
    guests: Vec<(u64, &'a GuestRequest)>,
    hosts: Vec<(u64, &'a HostRequest)>,
    hosts_of: Vec<u64>,
    guests_of: Vec<u64>,
}

/// Numbers of the bits that are set.
fn bits(mut set: u64) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let bit = set.trailing_zeros();
        set &= set.wrapping_sub(1);
        (bit < 64).then_some(bit as usize)
    })
}

/// Finds the partner of `guest`, and of those that compete with it for host requests.
///
/// If each guest request of such a group has exactly one QEMU request (the counts agree), a pair is
/// certain when one of the two has no other choice; with it gone, another one may become so. What is
/// left then has several solutions; there the order in the queue decides, if it is known. `settled`
/// tells of a guest request whether all of its competitors have been handed over. `host_whole`: the
/// host lost nothing, so that a guest request without another choice is certain in a group whose end
/// is not in sight, too.
pub(super) fn resolve(
    pending: &Pending,
    timeline: &Timeline,
    guest: u64,
    settled: impl Fn(&GuestRequest) -> bool,
    host_whole: bool,
) -> Resolved {
    let (mut graph, whole) = Graph::around(pending, timeline, guest);
    let Some(start) = graph.guests.iter().position(|(number, _)| *number == guest) else {
        return Resolved::default();
    };
    let (guests, hosts) = graph.component(start);
    if hosts == 0 {
        return Resolved::default();
    }
    let complete = whole && bits(guests).all(|i| settled(graph.guests[i].1));
    let mut resolved = Resolved::default();
    let (mut guests, mut hosts) = (guests, hosts);
    if complete && guests.count_ones() == hosts.count_ones() {
        graph.eliminate(&mut guests, &mut hosts, &mut resolved, |_| true, true);
        graph.by_order(&mut guests, &mut hosts, &mut resolved);
    } else if !complete && host_whole {
        // Only of these it is known what all of their choices are.
        let known = |i: usize| settled(graph.guests[i].1);
        let known: Vec<bool> = (0..graph.hosts_of.len()).map(known).collect();
        let known = |i: usize| known.get(i).is_some_and(|known| *known);
        graph.eliminate(&mut guests, &mut hosts, &mut resolved, known, false);
        // The rest belongs to a group that goes on: only what was asked about is given up.
        guests &= 1 << start;
        hosts = 0;
    } else if !complete {
        guests = 1 << start;
        hosts = 0;
    }
    resolved.guests = bits(guests).map(|i| graph.guests[i].0).collect();
    resolved.hosts = bits(hosts).map(|j| graph.hosts[j].0).collect();
    resolved
}

impl<'a> Graph<'a> {
    /// `guest` and all that compete with it, directly or through others; `false` if there are too many.
    fn around(pending: &'a Pending, timeline: &Timeline, guest: u64) -> (Self, bool) {
        let mut graph = Self::default();
        let Some(entry) = pending.guests.get(guest) else {
            return (graph, true);
        };
        graph.guests.push((guest, &entry.request));
        let mut hosts_done = 0;
        loop {
            let done = graph.hosts_of.len();
            let whole = if let Some((_, of)) = graph.guests.get(done).copied() {
                graph.add_hosts(pending, timeline, guest, of)
            } else if let Some((_, of)) = graph.hosts.get(hosts_done).copied() {
                hosts_done += 1;
                graph.add_guests(pending, timeline, guest, of)
            } else {
                return (graph, true);
            };
            if !whole {
                return (graph, false);
            }
        }
    }

    /// Adds the host requests that `of` can be: it is the next guest request whose choice is not known.
    fn add_hosts(
        &mut self,
        pending: &'a Pending,
        timeline: &Timeline,
        alike: u64,
        of: &GuestRequest,
    ) -> bool {
        let bands = timeline
            .band(of.issued_ns)
            .zip(timeline.band(of.completed_ns));
        let Some((issued, completed)) = bands else {
            return false;
        };
        let earliest = of.issued_ns.cast_signed().saturating_sub(issued.hi_ns);
        let latest = of
            .completed_ns
            .cast_signed()
            .saturating_sub(completed.lo_ns);
        let (i, mut choice) = (self.hosts_of.len(), 0);
        for (scanned, (number, host)) in pending.hosts_like(alike).enumerate() {
            if scanned == SCANNED {
                return false;
            }
            let near =
                host.start_ns.cast_signed() >= earliest && host.end_ns.cast_signed() <= latest;
            if !near || !timeline.admits(of, host) {
                continue;
            }
            let known = self.hosts.iter().position(|(known, _)| *known == number);
            let j = known.unwrap_or(self.hosts.len());
            if j == MOST {
                return false;
            }
            if known.is_none() {
                self.hosts.push((number, host));
                self.guests_of.push(0);
            }
            choice |= 1 << j;
            self.guests_of[j] |= 1 << i;
        }
        self.hosts_of.push(choice);
        true
    }

    /// Adds the guest requests that `of` can be.
    fn add_guests(
        &mut self,
        pending: &'a Pending,
        timeline: &Timeline,
        alike: u64,
        of: &HostRequest,
    ) -> bool {
        for (scanned, (number, guest)) in pending.guests_like(alike).enumerate() {
            if scanned == SCANNED {
                return false;
            }
            let length = of.end_ns - of.start_ns;
            let shorter = guest.completed_ns - guest.issued_ns + length / 1000 < length;
            let known = |(known, _): &(u64, &GuestRequest)| *known == number;
            if shorter || self.guests.iter().any(known) || !timeline.admits(guest, of) {
                continue;
            }
            if self.guests.len() == MOST {
                return false;
            }
            self.guests.push((number, guest));
        }
        true
    }

    /// All that compete with `start`, directly or through others.
    fn component(&self, start: usize) -> (u64, u64) {
        let (mut guests, mut hosts) = (1u64 << start, 0u64);
        loop {
            let choice = |i: usize| self.hosts_of.get(i).copied().unwrap_or(0);
            let more_hosts = bits(guests).fold(0, |all, i| all | choice(i));
            let more_guests = bits(more_hosts).fold(guests, |all, j| all | self.guests_of[j]);
            if more_hosts == hosts && more_guests == guests {
                return (guests, hosts);
            }
            (guests, hosts) = (more_guests, more_hosts);
        }
    }

    /// Pairs whoever has no choice, until everybody left has one. A graph with exactly one solution is
    /// solved by this; one with several is not.
    fn eliminate(
        &mut self,
        guests: &mut u64,
        hosts: &mut u64,
        resolved: &mut Resolved,
        known: impl Fn(usize) -> bool,
        both_sides: bool,
    ) {
        loop {
            let only_host = bits(*guests).find_map(|i| {
                let choice = self.hosts_of.get(i).map_or(0, |choice| choice & *hosts);
                (known(i) && choice.count_ones() == 1)
                    .then(|| (i, choice.trailing_zeros() as usize))
            });
            let only_guest = || {
                bits(*hosts).filter(|_| both_sides).find_map(|j| {
                    let choice = self.guests_of[j] & *guests;
                    (choice.count_ones() == 1).then(|| (choice.trailing_zeros() as usize, j))
                })
            };
            let Some((i, j)) = only_host.or_else(only_guest) else {
                return;
            };
            *guests &= !(1 << i);
            *hosts &= !(1 << j);
            resolved.pairs.push(Pair {
                guest: self.guests[i].0,
                host: self.hosts[j].0,
                exchange: both_sides,
            });
        }
    }

    /// The k-th with the k-th, where one queue served them all.
    fn by_order(&self, guests: &mut u64, hosts: &mut u64, resolved: &mut Resolved) {
        let mut issued: Vec<_> = bits(*guests)
            .map(|i| (self.guests[i].1.issued_ns, i))
            .collect();
        let mut started: Vec<_> = bits(*hosts)
            .map(|j| (self.hosts[j].1.start_ns, j))
            .collect();
        issued.sort_unstable();
        started.sort_unstable();
        let strict = |times: &[(u64, usize)]| times.windows(2).all(|two| two[0].0 < two[1].0);
        let guest_lane = |i: usize| self.guests[i].1.lane;
        let host_lane = |j: usize| self.hosts[j].1.lane;
        let one_queue = issued.first().zip(started.first()).is_some_and(|(g, h)| {
            let (guest, host) = (guest_lane(g.1), host_lane(h.1));
            guest != GuestRequest::ANY_LANE
                && host != HostRequest::ANY_LANE
                && issued.iter().all(|(_, i)| guest_lane(*i) == guest)
                && started.iter().all(|(_, j)| host_lane(*j) == host)
        });
        let pairs = || issued.iter().zip(&started).map(|((_, i), (_, j))| (*i, *j));
        let possible = pairs().all(|(i, j)| self.hosts_of[i] & (1 << j) != 0);
        if !one_queue || !possible || !strict(&issued) || !strict(&started) {
            return;
        }
        resolved.pairs.extend(pairs().map(|(i, j)| Pair {
            guest: self.guests[i].0,
            host: self.hosts[j].0,
            exchange: false,
        }));
        (*guests, *hosts) = (0, 0);
    }
}

//! Equal requests in flight together: which is which, as far as the band leaves no choice.

use super::corridor::{Window, longest_ns};
use super::pending::Pending;
use super::queues::Queues;
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

/// What says which requests may be one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub pending: &'a Pending,
    pub timeline: &'a Timeline,
    pub queues: &'a Queues,
}

/// A certain pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub guest: u64,
    pub host: u64,
    /// The band alone tells it, over a whole group: it may narrow the band.
    pub exchange: bool,
}

/// What makes a pair certain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Proof {
    /// The band, over a whole group.
    Band,
    /// The order of the queue as well.
    Order,
    /// The band, in a group that is not all in sight: only a guest request knows all of its choices.
    Open,
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
/// is not in sight, too. Otherwise a group with a host request that may be one of a guest request that was
/// given up has no end in sight: as many on both sides may be one too few and one too many.
pub(super) fn resolve(
    known: Known<'_>,
    guest: u64,
    settled: impl Fn(&GuestRequest) -> bool,
    host_whole: bool,
) -> Resolved {
    let (mut graph, whole) = Graph::around(known, guest);
    let Some(start) = graph.guests.iter().position(|(number, _)| *number == guest) else {
        return Resolved::default();
    };
    let (guests, hosts) = graph.component(start);
    if hosts == 0 {
        return Resolved::default();
    }
    let given_up = |j: usize| known.pending.may_be_given_up(guest, graph.hosts[j].1);
    let in_sight = host_whole || !bits(hosts).any(given_up);
    let complete = whole && in_sight && bits(guests).all(|i| settled(graph.guests[i].1));
    let mut resolved = Resolved::default();
    let members = (guests, hosts);
    let (mut guests, mut hosts) = members;
    if complete && guests.count_ones() == hosts.count_ones() {
        graph.eliminate(
            &mut guests,
            &mut hosts,
            &mut resolved,
            |_| true,
            Proof::Band,
        );
        graph.by_order(members, &mut guests, &mut hosts, &mut resolved);
    } else if !complete && host_whole {
        // Only of these it is known what all of their choices are.
        let known = |i: usize| settled(graph.guests[i].1);
        let known: Vec<bool> = (0..graph.hosts_of.len()).map(known).collect();
        let known = |i: usize| known.get(i).is_some_and(|known| *known);
        graph.eliminate(&mut guests, &mut hosts, &mut resolved, known, Proof::Open);
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
    fn around(known: Known<'a>, guest: u64) -> (Self, bool) {
        let mut graph = Self::default();
        let Some(entry) = known.pending.guests.get(guest) else {
            return (graph, true);
        };
        graph.guests.push((guest, &entry.request));
        let asked = (&entry.request, known.timeline.window(&entry.request));
        let mut hosts_done = 0;
        loop {
            let done = graph.hosts_of.len();
            let whole = if let Some((_, of)) = graph.guests.get(done).copied() {
                graph.add_hosts(known, guest, of)
            } else if let Some((_, of)) = graph.hosts.get(hosts_done).copied() {
                hosts_done += 1;
                graph.add_guests(known, guest, asked, of)
            } else {
                return (graph, true);
            };
            if !whole {
                return (graph, false);
            }
        }
    }

    /// Adds the host requests that `of` can be: it is the next guest request whose choice is not known.
    fn add_hosts(&mut self, known: Known<'a>, alike: u64, of: &GuestRequest) -> bool {
        let Known {
            pending,
            timeline,
            queues,
        } = known;
        let bands = timeline
            .band(of.issued_ns)
            .zip(timeline.band(of.completed_ns));
        let Some((issued, completed)) = bands else {
            return false;
        };
        let earliest = of.issued_ns.bound_on_host(issued.hi_ns);
        let latest = of.completed_ns.bound_on_host(completed.lo_ns);
        let (i, mut choice) = (self.hosts_of.len(), 0);
        for (scanned, (number, host)) in pending.hosts_like(alike).enumerate() {
            if scanned == SCANNED {
                return false;
            }
            let near = host.start_ns.bound() >= earliest && host.end_ns.bound() <= latest;
            let is_other = host.is_of_other_memory(of);
            if !near || is_other || !timeline.admits(of, host) || queues.rule_out(of, host) {
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
        Known {
            pending,
            timeline,
            queues,
        }: Known<'a>,
        alike: u64,
        asked: (&GuestRequest, Option<Window>),
        of: &HostRequest,
    ) -> bool {
        for (scanned, (number, guest)) in pending.guests_like(alike).enumerate() {
            if scanned == SCANNED {
                return false;
            }
            let length = of.length_ns();
            let shorter = length > longest_ns(timeline.rho_ppm(), guest);
            let known = |(known, _): &(u64, &GuestRequest)| *known == number;
            let is_other = of.is_of_other_memory(guest);
            let far = shorter || is_other || timeline.rules_out(asked, guest, of);
            let is_out = far || self.guests.iter().any(known) || !timeline.admits(guest, of);
            if is_out || queues.rule_out(guest, of) {
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
        proof: Proof,
    ) {
        loop {
            let only_host = bits(*guests).find_map(|i| {
                let choice = self.hosts_of.get(i).map_or(0, |choice| choice & *hosts);
                (known(i) && choice.count_ones() == 1)
                    .then(|| (i, choice.trailing_zeros() as usize))
            });
            let only_guest = || {
                bits(*hosts).filter(|_| proof != Proof::Open).find_map(|j| {
                    let choice = self.guests_of[j] & *guests;
                    (choice.count_ones() == 1).then(|| (choice.trailing_zeros() as usize, j))
                })
            };
            let Some((i, j)) = only_host.or_else(only_guest) else {
                return;
            };
            *guests &= !(1 << i);
            *hosts &= !(1 << j);
            (self.hosts_of[i], self.guests_of[j]) = (1 << j, 1 << i);
            resolved.pairs.push(Pair {
                guest: self.guests[i].0,
                host: self.hosts[j].0,
                exchange: proof == Proof::Band,
            });
        }
    }

    /// What the order in the queue leaves of a group with several solutions; `members` are all of its guest
    /// requests, those that are certain already among them.
    ///
    /// QEMU takes the requests of one queue in its order, and those of one processor stand there in the order
    /// of their D. Nothing is known of two processors, so this is an order of parts: it takes possibilities
    /// away, and whoever then has no choice is certain. Where one processor issued all, the k-th is the k-th.
    /// A group that no order explains is left as it was.
    fn by_order(
        &mut self,
        members: (u64, u64),
        guests: &mut u64,
        hosts: &mut u64,
        resolved: &mut Resolved,
    ) {
        let Some(started) = self.started(members.1) else {
            return;
        };
        let lanes = self.lanes(members.0);
        let (hosts_of, guests_of) = (self.hosts_of.clone(), self.guests_of.clone());
        let (mut guests_left, mut hosts_left) = (*guests, *hosts);
        let mut ordered = Resolved::default();
        loop {
            let kept = self.keep_order(&lanes, &started, (guests_left, hosts_left));
            let no_host = |i| self.hosts_of[i] & hosts_left == 0;
            let no_guest = |j: usize| self.guests_of[j] & guests_left == 0;
            let unsolved = bits(guests_left).any(no_host) || bits(hosts_left).any(no_guest);
            let Some(kept) = kept.filter(|_| !unsolved) else {
                (self.hosts_of, self.guests_of) = (hosts_of, guests_of);
                return;
            };
            if !kept {
                break;
            }
            let (left, found) = ((&mut guests_left, &mut hosts_left), &mut ordered);
            self.eliminate(left.0, left.1, found, |_| true, Proof::Order);
        }
        (*guests, *hosts) = (guests_left, hosts_left);
        resolved.pairs.append(&mut ordered.pairs);
    }

    /// Takes away what would have two requests of one processor pass each other; whether that was anything.
    /// `None` if it leaves one of them without a choice.
    fn keep_order(
        &mut self,
        lanes: &[Vec<usize>],
        started: &[usize],
        (guests, hosts): (u64, u64),
    ) -> Option<bool> {
        let mut taken = false;
        for lane in lanes {
            let choice = |graph: &Self, i: usize| {
                let all = graph.hosts_of[i];
                if guests & (1 << i) == 0 {
                    all
                } else {
                    all & hosts
                }
            };
            let mut passed = 0u64;
            for i in lane {
                let left = choice(self, *i) & !passed;
                taken |= self.narrow(*i, left);
                let first = started.iter().position(|j| left & (1 << j) != 0)?;
                passed = started[..=first].iter().fold(0, |all, j| all | 1 << j);
            }
            passed = 0;
            for i in lane.iter().rev() {
                let left = choice(self, *i) & !passed;
                taken |= self.narrow(*i, left);
                let last = started.iter().rposition(|j| left & (1 << j) != 0)?;
                passed = started[last..].iter().fold(0, |all, j| all | 1 << j);
            }
        }
        Some(taken)
    }

    /// Leaves only these hosts to a guest request; whether there were others.
    fn narrow(&mut self, guest: usize, hosts: u64) -> bool {
        let gone = self.hosts_of[guest] & !hosts;
        self.hosts_of[guest] &= hosts;
        for j in bits(gone) {
            self.guests_of[j] &= !(1 << guest);
        }
        gone != 0
    }

    /// These host requests by start, if one queue served them and no two started at once.
    fn started(&self, hosts: u64) -> Option<Vec<usize>> {
        let mut started: Vec<usize> = bits(hosts).collect();
        let lane = self.hosts[*started.first()?].1.lane;
        let one_queue = started.iter().all(|j| self.hosts[*j].1.lane == lane);
        let start_ns = |j: &usize| self.hosts[*j].1.start_ns;
        started.sort_unstable_by_key(start_ns);
        let strict = started
            .windows(2)
            .all(|two| start_ns(&two[0]) < start_ns(&two[1]));
        (one_queue && lane != HostRequest::ANY_LANE && strict).then_some(started)
    }

    /// These guest requests of each processor by D, of those that have several and no two at once.
    fn lanes(&self, guests: u64) -> Vec<Vec<usize>> {
        let of = |i: &usize| {
            let request = self.guests[*i].1;
            (request.in_order_with(), request.issued_ns)
        };
        let mut known: Vec<usize> = bits(guests).collect();
        known.retain(|i| of(i).0.is_some());
        known.sort_unstable_by_key(of);
        let lanes = known.chunk_by(|a, b| of(a).0 == of(b).0);
        let strict = |lane: &&[usize]| lane.windows(2).all(|two| of(&two[0]).1 < of(&two[1]).1);
        let several = lanes.filter(|lane| lane.len() > 1);
        several.filter(strict).map(<[usize]>::to_vec).collect()
    }
}

//! Finding the offset of two clocks from the requests alone.
//!
//! Every guest request and every host request of the same key say an interval of offsets in which they
//! could be a pair. The true offset lies in one interval of each guest request, another one only in
//! those that repeat by chance. The places where most intervals overlap are tried out over all
//! requests; the best is taken if it explains most of them and no other place comes near.

use std::cmp::Reverse;

use super::corridor::{Corridor, exchange};
use super::envelope::loss_ns;
use super::pending::DiskKey;
use super::request::{Band, GuestRequest, HostRequest, hull};
use crate::model::clocks::{GuestNs, HostBound};
use crate::model::pointer::PointerMap;

/// Guest requests of a stretch of time that vote.
const VOTERS: usize = 512;
/// Stretches (begin, middle, end) that vote on their own: the streams need not begin together.
const STRETCHES: usize = 3;
/// Host requests of one key that are voted with.
const ALIKE: usize = 512;
/// Places that are tried out, of each stretch.
const PLACES: usize = 8;
/// Room that is left on each side of the place where most intervals overlap: the usual width of an
/// interval, but at least and at most this.
const PAD_NS: (i64, i64) = (100_000, 2_000_000);
/// Requests that are looked at first, and then times four: a later step of the clock is not in the way.
const FIRST: usize = 24;

/// So many requests more that another offset does not explain tell it from the best one.
const MISSES_TELL: u64 = 8;

/// What is asked of a search.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    /// Only offsets in here.
    pub within: Option<Band>,
    /// Requests that have to be explained.
    pub at_least: u64,
    /// Fastest change of the offset.
    pub rho_ppm: u64,
    /// The host lost nothing: the only host request that fits is the right one.
    pub host_whole: bool,
}

/// An offset that explains the requests.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Guest's time at which it holds.
    pub guest_ns: GuestNs,
    /// Where it lies there, by all that it explains.
    pub band: Band,
    /// D of the last request that it explains.
    pub last_ns: GuestNs,
    explained: u64,
    missed: u64,
    /// Intervals that overlapped at the place where it began.
    votes: u32,
    pad_ns: i64,
}

impl Found {
    /// The band with room around it: where the first exchange is looked for.
    pub(super) fn seed(&self, rho_ppm: u64) -> Corridor {
        let mut corridor = Corridor::new(rho_ppm);
        corridor.assume(self.guest_ns, padded(self.band, self.pad_ns));
        corridor
    }

    /// Whether two are the same offset, seen at different times.
    fn is_same(&self, other: &Self, rho_ppm: u64) -> bool {
        let room = loss_ns(rho_ppm, self.guest_ns.abs_diff(other.guest_ns))
            .saturating_add(2 * self.pad_ns);
        self.band.lo_ns.saturating_sub(room) <= other.band.hi_ns
            && other.band.lo_ns.saturating_sub(room) <= self.band.hi_ns
    }

    /// Whether this one explains the requests, and the other one does not.
    fn excludes(&self, other: &Self) -> bool {
        let fewer = is_far_fewer(other.explained, self.explained);
        let missing = (self.explained / 10).max(MISSES_TELL);
        fewer || other.missed >= self.missed + missing
    }
}

fn padded(band: Band, pad_ns: i64) -> Band {
    Band {
        lo_ns: band.lo_ns.saturating_sub(pad_ns),
        hi_ns: band.hi_ns.saturating_add(pad_ns),
    }
}

/// A guest request and the disk that it went to.
pub(super) type Sent = (u32, GuestRequest);

/// Finds the offset of the first requests; `None` if there is none, not enough, or more than one.
pub(super) fn find(guests: &[Sent], hosts: &[HostRequest], wanted: Wanted) -> Option<Found> {
    let hosts = HostsByKey::new(hosts);
    let mut n = FIRST;
    loop {
        let found = find_in(&guests[..n.min(guests.len())], &hosts, wanted);
        if found.is_some() || n >= guests.len() {
            return found;
        }
        n *= 4;
    }
}

fn find_in(guests: &[Sent], hosts: &HostsByKey<'_>, wanted: Wanted) -> Option<Found> {
    let pad_ns = usual_width(guests, hosts).clamp(PAD_NS.0, PAD_NS.1);
    let mut tried: Vec<Found> = Vec::new();
    for stretch in stretches(guests) {
        for place in places(stretch, hosts, wanted, pad_ns) {
            tried.extend(try_out(guests, hosts, &place, wanted));
        }
    }
    let best = *tried
        .iter()
        .max_by_key(|found| (found.explained, Reverse(found.missed), found.votes))?;
    let enough = best.explained >= wanted.at_least && best.explained * 2 >= best.missed * 3;
    let alone = tried
        .iter()
        .all(|other| best.is_same(other, wanted.rho_ppm) || best.excludes(other));
    // Places that are too near to exclude each other are one: the clock may be any of them.
    let near = tried.iter().filter(|other| !best.excludes(other));
    let band = near.fold(best.band, |band, other| {
        let lost_ns = loss_ns(wanted.rho_ppm, best.guest_ns.abs_diff(other.guest_ns));
        hull(band, padded(other.band, lost_ns))
    });
    (enough && alone).then_some(Found { band, ..best })
}

/// Median width of the intervals, of each guest request the narrowest.
fn usual_width(guests: &[Sent], hosts: &HostsByKey<'_>) -> i64 {
    let narrowest = |sent: &Sent| {
        let width = |host: &&HostRequest| {
            let (lo_ns, hi_ns) = exchange(&sent.1, host);
            (lo_ns <= hi_ns).then(|| hi_ns - lo_ns)
        };
        hosts.alike(sent).iter().take(ALIKE).filter_map(width).min()
    };
    let mut widths: Vec<i64> = guests.iter().take(VOTERS).filter_map(narrowest).collect();
    widths.sort_unstable();
    widths.get(widths.len() / 2).copied().unwrap_or(0)
}

/// Begin, middle and end of the requests, as far as they differ.
fn stretches(guests: &[Sent]) -> Vec<&[Sent]> {
    let n = guests.len();
    let mut from: Vec<usize> = (0..STRETCHES)
        .map(|i| n.saturating_sub(VOTERS) * i / (STRETCHES - 1))
        .collect();
    from.dedup();
    from.into_iter()
        .map(|from| &guests[from..n.min(from + VOTERS)])
        .collect()
}

/// Host requests of each key, by start.
#[derive(Debug)]
struct HostsByKey<'a> {
    by_key: PointerMap<DiskKey, Vec<&'a HostRequest>>,
    first_ns: HostBound,
    last_ns: HostBound,
}

impl<'a> HostsByKey<'a> {
    fn new(hosts: &'a [HostRequest]) -> Self {
        let mut by_key: PointerMap<DiskKey, Vec<&HostRequest>> = PointerMap::default();
        for host in hosts {
            let key = DiskKey::new(host.disk, host.key);
            by_key.entry(key).or_default().push(host);
        }
        for alike in by_key.values_mut() {
            alike.sort_unstable_by_key(|host| host.start_ns);
        }
        let starts = hosts.iter().map(|host| host.start_ns.bound());
        let ends = hosts.iter().map(|host| host.end_ns.bound());
        Self {
            by_key,
            first_ns: starts.min().unwrap_or(HostBound(0)),
            last_ns: ends.max().unwrap_or(HostBound(0)),
        }
    }

    fn alike(&self, sent: &Sent) -> &[&'a HostRequest] {
        let key = DiskKey::new(sent.0, sent.1.key);
        self.by_key.get(&key).map_or(&[], Vec::as_slice)
    }
}

/// Where many intervals overlap.
#[derive(Clone, Copy, Debug)]
struct Place {
    guest_ns: GuestNs,
    band: Band,
    votes: u32,
    pad_ns: i64,
}

/// Where the intervals of a stretch overlap most, in the middle of its time.
fn places(stretch: &[Sent], hosts: &HostsByKey<'_>, wanted: Wanted, pad_ns: i64) -> Vec<Place> {
    let Some(at_ns) = stretch.get(stretch.len() / 2).map(|sent| sent.1.issued_ns) else {
        return Vec::new();
    };
    let mut edges: Vec<(i64, i32)> = Vec::new();
    for sent in stretch {
        let guest = &sent.1;
        let room = loss_ns(wanted.rho_ppm, guest.issued_ns.abs_diff(at_ns));
        let possible = |host: &&HostRequest| {
            let (lo_ns, hi_ns) = exchange(guest, host);
            let (lo_ns, hi_ns) = (lo_ns.saturating_sub(room), hi_ns.saturating_add(room));
            let outside = |band: Band| hi_ns < band.lo_ns || lo_ns > band.hi_ns;
            let fits = lo_ns <= hi_ns && !wanted.within.is_some_and(outside);
            fits.then_some(Band { lo_ns, hi_ns })
        };
        let alike = hosts.alike(sent).iter().take(ALIKE);
        for band in united(alike.filter_map(possible).collect()) {
            // Opening before closing at the same place: the ends belong to the interval.
            edges.push((band.lo_ns, 1));
            edges.push((band.hi_ns.saturating_add(1), -1));
        }
    }
    edges.sort_unstable();
    most_covered(&edges, pad_ns)
        .into_iter()
        .map(|(votes, band)| Place {
            guest_ns: at_ns,
            band,
            votes,
            pad_ns,
        })
        .collect()
}

/// The same offsets without overlaps: a request has one vote for each. One that was in flight during a step
/// is as long as the step, and alone would outvote all others where many of QEMU's are like it.
fn united(mut bands: Vec<Band>) -> Vec<Band> {
    bands.sort_unstable_by_key(|band| (band.lo_ns, band.hi_ns));
    let mut united: Vec<Band> = Vec::new();
    for band in bands {
        match united.last_mut() {
            Some(last) if band.lo_ns <= last.hi_ns => last.hi_ns = last.hi_ns.max(band.hi_ns),
            _ => united.push(band),
        }
    }
    united
}

/// The [`PLACES`] best local maxima of the number of open intervals.
fn most_covered(edges: &[(i64, i32)], pad_ns: i64) -> Vec<(u32, Band)> {
    let mut peaks: Vec<(u32, Band)> = Vec::new();
    let (mut open, mut rising) = (0_i32, false);
    for (i, (at, change)) in edges.iter().enumerate() {
        // A place ends where the first interval closes after the last one opened.
        if *change < 0 && rising {
            let lo_ns = edges[i - 1].0;
            peaks.push((
                u32::try_from(open).unwrap_or(0),
                Band {
                    lo_ns,
                    hi_ns: at - 1,
                },
            ));
        }
        rising = *change > 0;
        open += change;
    }
    peaks.sort_by_key(|(votes, band)| (Reverse(*votes), band.lo_ns));
    let mut chosen: Vec<Peak> = Vec::new();
    for (votes, band) in peaks {
        let near = |peak: &&mut Peak| {
            band.lo_ns.saturating_sub(pad_ns) <= peak.top.hi_ns
                && peak.top.lo_ns.saturating_sub(pad_ns) <= band.hi_ns
        };
        let mut is_near = false;
        for peak in chosen.iter_mut().filter(near) {
            is_near = true;
            if !is_far_fewer(votes.into(), peak.votes.into()) {
                peak.band = hull(peak.band, band);
            }
        }
        if !is_near && chosen.len() < PLACES {
            let top = band;
            chosen.push(Peak { votes, top, band });
        }
    }
    chosen
        .into_iter()
        .map(|peak| (peak.votes, peak.band))
        .collect()
}

/// A local maximum of the number of open intervals.
#[derive(Debug)]
struct Peak {
    votes: u32,
    top: Band,
    /// With the others near it that have hardly fewer: the clock may be any of them.
    band: Band,
}

/// Whether `n` of one place are so few that the place with `best` excludes it.
const fn is_far_fewer(n: u64, best: u64) -> bool {
    n * 10 <= best * 7
}

/// Follows the clock from a place over all requests and counts what it explains.
fn try_out(
    guests: &[Sent],
    hosts: &HostsByKey<'_>,
    place: &Place,
    wanted: Wanted,
) -> Option<Found> {
    let mut corridor = Corridor::new(wanted.rho_ppm);
    corridor.assume(place.guest_ns, padded(place.band, place.pad_ns));
    let middle = guests.partition_point(|sent| sent.1.issued_ns < place.guest_ns);
    let (before, after) = guests.split_at(middle);
    let mut found = Found {
        guest_ns: place.guest_ns,
        band: place.band,
        last_ns: GuestNs::default(),
        explained: 0,
        missed: 0,
        votes: place.votes,
        pad_ns: place.pad_ns,
    };
    for sent in after.iter().chain(before.iter().rev()) {
        let guest = &sent.1;
        let now = corridor.at(guest.issued_ns)?;
        let earliest = guest.issued_ns.bound_on_host(now.hi_ns);
        let latest = guest.completed_ns.bound_on_host(now.lo_ns);
        let alike = hosts.alike(sent);
        let from = alike.partition_point(|host| host.start_ns.bound() < earliest);
        let mut fitting = alike[from..]
            .iter()
            .take_while(|host| host.start_ns.bound() <= latest)
            .filter(|host| corridor.admits(guest, host));
        let (first, second) = (fitting.next(), fitting.next());
        if let Some(host) = first {
            found.explained += 1;
            found.last_ns = found.last_ns.max(guest.issued_ns);
            if second.is_none() && wanted.host_whole {
                corridor.accept(guest, host);
            }
        } else {
            let seen = earliest >= hosts.first_ns && latest <= hosts.last_ns;
            found.missed += u64::from(seen);
        }
    }
    found.band = corridor.at(place.guest_ns)?;
    Some(found)
}

//! Which guest request is which QEMU request, without any clock that both have.
//!
//! Requests that ask for the same and were not in flight together are the same ones in the same order:
//! QEMU takes none before its D or after its C. Of those that were in flight together, the buffer
//! tells: a page of the guest's memory is always the same page of QEMU's, and no two requests in flight
//! share one. Which page is which is learned from the requests that were alone. A flush has neither
//! place nor buffer, but the guest's kernel has one flush in flight per queue.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::hash::Hash;

use xtask::case::Case;

use super::guest::{Buffer, GuestRequest};
use super::key::{Key, Operation};
use super::qemu::QemuRequest;

/// The truth.
#[derive(Debug, Default)]
pub struct Truth {
    /// QEMU's request of each guest request, by the time of D.
    pub of_guest: HashMap<u64, QemuRequest>,
    /// Guest requests that were in flight with equal ones, so that their QEMU request is ambiguous.
    pub undecided: u64,
    /// Guest requests that others like them were in flight with, and that the buffer tells apart.
    pub by_buffer: u64,
}

/// Requests of one key that were in flight together.
struct Group<'a> {
    guest: Vec<&'a GuestRequest>,
    qemu: Vec<&'a QemuRequest>,
}

/// Tells which is which; `guest` is in the order of D, `qemu` in that in which QEMU took them.
pub fn truth(case: &mut Case, guest: &[GuestRequest], qemu: &[QemuRequest]) -> Truth {
    case.equal("requests of QEMU, of the guest's", qemu.len(), guest.len());
    let is_flush = |key: &Key| key.operation == Operation::Flush;
    let (flushes, others): (Vec<_>, Vec<_>) =
        guest.iter().partition(|request| is_flush(&request.key));
    let (qemu_flushes, qemu_others): (Vec<_>, Vec<_>) =
        qemu.iter().partition(|request| is_flush(&request.key));
    let groups = groups(case, &others, &qemu_others);
    let pages = pages(case, &groups);
    let mut truth = Truth::default();
    let mut queues: HashMap<u16, HashMap<u64, usize>> = HashMap::new();
    for group in &groups {
        let pairs = pairs_of(group, &pages);
        if group.guest.len() > 1 {
            truth.by_buffer += pairs.len() as u64;
        }
        truth.undecided += (group.guest.len() - pairs.len()) as u64;
        for (guest, qemu) in pairs {
            let of_cpu = queues.entry(guest.cpu).or_default();
            *of_cpu.entry(qemu.queue).or_default() += 1;
            truth.of_guest.insert(guest.issued_ns, *qemu);
        }
    }
    let queues = queues.into_iter().filter_map(|(cpu, n)| {
        let most = n.into_iter().max_by_key(|(_, n)| *n);
        most.map(|(queue, _)| (cpu, queue))
    });
    let flushes = flush_pairs(case, &flushes, &qemu_flushes, &queues.collect());
    truth.of_guest.extend(flushes);
    truth
}

/// Requests of one key, cut where none of them was in flight.
fn groups<'a>(
    case: &mut Case,
    guest: &[&'a GuestRequest],
    qemu: &[&'a QemuRequest],
) -> Vec<Group<'a>> {
    let mut guest = by(guest.iter().copied(), |request| request.key);
    let mut qemu = by(qemu.iter().copied(), |request| request.key);
    let keys: HashSet<Key> = guest.keys().chain(qemu.keys()).copied().collect();
    let mut groups = Vec::new();
    let mut uneven = 0_u64;
    for key in keys {
        let of_guest = guest.remove(&key).unwrap_or_default();
        let of_qemu = qemu.remove(&key).unwrap_or_default();
        if of_guest.len() == of_qemu.len() {
            cut(of_guest, of_qemu, &mut groups);
        } else {
            uneven += 1;
        }
    }
    case.equal(
        "operations and places that guest and QEMU have not equally often",
        uneven,
        0,
    );
    groups
}

fn cut<'a>(guest: Vec<&'a GuestRequest>, qemu: Vec<&'a QemuRequest>, groups: &mut Vec<Group<'a>>) {
    let mut in_flight_until_ns = 0;
    for (guest, qemu) in guest.into_iter().zip(qemu) {
        let alone = guest.issued_ns > in_flight_until_ns;
        in_flight_until_ns = in_flight_until_ns.max(guest.completed_ns);
        match groups.last_mut().filter(|_| !alone) {
            Some(group) => {
                group.guest.push(guest);
                group.qemu.push(qemu);
            }
            None => groups.push(Group {
                guest: vec![guest],
                qemu: vec![qemu],
            }),
        }
    }
}

/// QEMU's page of each of the guest's buffers: what requests that were alone say, all of them.
fn pages(case: &mut Case, groups: &[Group<'_>]) -> HashMap<Buffer, u64> {
    let mut pages: HashMap<Buffer, u64> = HashMap::new();
    let (mut all, mut elsewhere) = (0_u64, 0_u64);
    for group in groups {
        let ([guest], [qemu]) = (group.guest.as_slice(), group.qemu.as_slice()) else {
            continue;
        };
        if let Some((buffer, page)) = guest.buffer.zip(qemu.page) {
            all += 1;
            elsewhere += u64::from(*pages.entry(buffer).or_insert(page) != page);
        }
    }
    case.holds("buffers that tell requests apart", all > 0, "none");
    case.equal(
        "requests that were alone, with a buffer that is another page than before",
        elsewhere,
        0,
    );
    case.figure(format!("{all} requests alone, {} buffers", pages.len()));
    pages
}

/// The pairs of a group, as far as they are certain.
fn pairs_of<'a>(
    group: &Group<'a>,
    pages: &HashMap<Buffer, u64>,
) -> Vec<(&'a GuestRequest, &'a QemuRequest)> {
    if let ([guest], [qemu]) = (group.guest.as_slice(), group.qemu.as_slice()) {
        return vec![(guest, qemu)];
    }
    let page = |request: &GuestRequest| pages.get(&request.buffer?).copied();
    let guest = by(group.guest.iter().copied(), page);
    let mut qemu = by(group.qemu.iter().copied(), |request| request.page);
    if guest.contains_key(&None) || qemu.contains_key(&None) {
        return Vec::new();
    }
    let mut pairs = Vec::new();
    for (page, guest) in guest {
        let qemu = qemu.remove(&page).unwrap_or_default();
        // A buffer that is in use twice at once tells nothing.
        let apart = |two: &[&GuestRequest]| match two {
            [first, second] => first.completed_ns < second.issued_ns,
            _ => true,
        };
        if guest.len() == qemu.len() && guest.windows(2).all(apart) {
            pairs.extend(guest.into_iter().zip(qemu));
        }
    }
    pairs
}

/// The k-th flush of each of the guest's queues is the k-th on QEMU's. `queues`: QEMU's queue of a
/// processor's requests.
fn flush_pairs(
    case: &mut Case,
    guest: &[&GuestRequest],
    qemu: &[&QemuRequest],
    queues: &HashMap<u16, u64>,
) -> Vec<(u64, QemuRequest)> {
    // A queue has a request of its own for flushes.
    let guest = by(guest.iter().copied(), |request| request.address);
    let mut qemu = by(qemu.iter().copied(), |request| request.queue);
    let mut pairs = Vec::new();
    for flushes in guest.into_values() {
        let cpus = by(flushes.iter().copied(), |flush| flush.cpu);
        let most = cpus.into_iter().max_by_key(|(_, flushes)| flushes.len());
        let queue = most.and_then(|(cpu, _)| queues.get(&cpu));
        let of_qemu = queue.and_then(|queue| qemu.remove(queue));
        let of_qemu = of_qemu.unwrap_or_default();
        case.equal(
            "flushes on a queue of QEMU, of the guest's",
            of_qemu.len(),
            flushes.len(),
        );
        let each = flushes.into_iter().zip(of_qemu);
        pairs.extend(each.map(|(flush, qemu)| (flush.issued_ns, *qemu)));
    }
    let left: usize = qemu.values().map(Vec::len).sum();
    case.equal("flushes of QEMU that no queue of the guest has", left, 0);
    pairs
}

/// Everything by some part of it, in the same order.
fn by<'a, T, K: Hash + Eq + Ord>(
    all: impl Iterator<Item = &'a T>,
    part: impl Fn(&T) -> K,
) -> BTreeMap<K, Vec<&'a T>> {
    let mut parts: BTreeMap<K, Vec<&T>> = BTreeMap::new();
    for one in all {
        parts.entry(part(one)).or_default().push(one);
    }
    parts
}

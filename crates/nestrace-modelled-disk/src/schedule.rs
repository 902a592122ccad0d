//! Which of the requests that wait a hard disk serves next.
//!
//! The one with the shortest positioning time, seek and rotation together, goes first; those that have waited long gain
//! on it (aged shortest access time first: Jacobson and Wilkes, "Disk scheduling algorithms based on rotational
//! position", HPL-CSL-91-7, 1991).

use crate::request::DiskNs;

/// A request that could be served.
#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    /// The caller's number.
    pub number: usize,
    /// Nanoseconds until the head is there.
    pub positioning_ns: f64,
    /// Since when it waits.
    pub since: DiskNs,
}

/// The one to serve now; of equal ones the first.
#[must_use]
pub fn choose(
    candidates: impl IntoIterator<Item = Candidate>,
    now: DiskNs,
    age_weight: f64,
) -> Option<Candidate> {
    let cost = |it: &Candidate| it.positioning_ns - age_weight * now.since(it.since) as f64;
    let mut best: Option<(f64, Candidate)> = None;
    for candidate in candidates {
        let cost = cost(&candidate);
        if best.is_none_or(|(least, _)| cost < least) {
            best = Some((cost, candidate));
        }
    }
    best.map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn candidate(number: usize, positioning_ns: f64, since: u64) -> Candidate {
        Candidate {
            number,
            positioning_ns,
            since: DiskNs(since),
        }
    }

    #[test]
    fn the_nearest_goes_first_until_another_has_waited_long() {
        let waiting = [candidate(0, 9e6, 0), candidate(1, 2e6, 90_000_000)];
        let chosen = |now, weight| choose(waiting, DiskNs(now), weight).map(|it| it.number);
        assert_eq!(chosen(100_000_000, 0.0), Some(1));
        assert_eq!(chosen(100_000_000, 0.01), Some(1));
        assert_eq!(chosen(100_000_000, 0.1), Some(0));
        assert_eq!(choose([], DiskNs(0), 0.0).map(|it| it.number), None);
    }
}

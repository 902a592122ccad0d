//! Places of a guest's disk that are written again and again.

use std::collections::VecDeque;

/// Places that are remembered. A log goes back to the block that it is filling, so the last few are
/// enough; what is spread over more is no log.
const RECENT: usize = 64;
/// Guest time within which a place has to be written again.
const SOON_NS: u64 = 1_000_000_000;

/// A place that was written.
#[derive(Clone, Copy, Debug)]
struct Place {
    offset: u64,
    written_ns: u64,
}

/// What was counted of a disk.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RewriteCounts {
    /// Bios that write, data of files included.
    pub writes: u64,
    /// Of these, not data of files and to a place that was written within the second before.
    pub rewrites: u64,
    /// Their bytes.
    pub rewritten_bytes: u64,
    /// Those of them that did not begin where the write before had ended.
    pub jumps: u64,
    /// Places that were given up before a second had passed.
    pub given_up: u64,
}

impl RewriteCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.writes += other.writes;
        self.rewrites += other.rewrites;
        self.rewritten_bytes += other.rewritten_bytes;
        self.jumps += other.jumps;
        self.given_up += other.given_up;
    }
}

/// The last places of a disk.
#[derive(Debug, Default)]
pub(super) struct Rewrites {
    recent: VecDeque<Place>,
    /// Where the last write ended.
    last_end: Option<u64>,
    pub counts: RewriteCounts,
}

impl Rewrites {
    /// A bio has written. `of_file`: data of a file, which may be written as often as its owner likes.
    pub(super) fn written(&mut self, offset: u64, bytes: u64, at_ns: u64, of_file: bool) {
        self.counts.writes += 1;
        let last_end = self.last_end.replace(offset.saturating_add(bytes));
        if of_file {
            return;
        }
        let known = self.recent.iter().position(|place| place.offset == offset);
        if let Some(before) = known.and_then(|at| self.recent.remove(at))
            && at_ns.saturating_sub(before.written_ns) <= SOON_NS
        {
            self.counts.rewrites += 1;
            self.counts.rewritten_bytes += bytes;
            self.counts.jumps += u64::from(last_end != Some(offset));
        }
        if self.recent.len() >= RECENT
            && let Some(oldest) = self.recent.pop_front()
        {
            let young = at_ns.saturating_sub(oldest.written_ns) < SOON_NS;
            self.counts.given_up += u64::from(young);
        }
        self.recent.push_back(Place {
            offset,
            written_ns: at_ns,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(places: impl IntoIterator<Item = u64>, every_ns: u64) -> RewriteCounts {
        let mut rewrites = Rewrites::default();
        for (n, block) in (0u64..).zip(places) {
            rewrites.written(block * 4096, 4096, n * every_ns, false);
        }
        rewrites.counts
    }

    #[test]
    fn a_log_that_fills_one_block_after_the_other() {
        // Data, log, data, log, …: eight commits to a log's block.
        let places = (0..160).map(|n| if n % 2 == 0 { 1_000 + n } else { n / 16 });
        let counts = count(places, 1_000_000);
        assert_eq!((counts.writes, counts.rewrites), (160, 70));
        assert_eq!(counts.jumps, 70);
    }

    #[test]
    fn a_log_that_moves_on_and_places_that_are_rare_are_none() {
        assert_eq!(count(0..500, 1_000_000).rewrites, 0);
        assert_eq!(count([7; 20], 2_000_000_000).rewrites, 0, "slowly");
        let spread = count((0..1_000).map(|n| n % 200), 1_000);
        assert_eq!(spread.rewrites, 0);
        assert_eq!(spread.given_up, 1_000 - RECENT as u64);
    }
}

//! The pieces that are over, in bounded memory: a guest decides how often its clock steps.

use super::trail::Trail;

/// Pieces that are kept, in their order: as many as the result lists.
pub(super) const LISTED: usize = 1000;

/// The first pieces with links, and of those behind them the longest.
#[derive(Debug, Default)]
pub(super) struct Trails {
    first: Vec<Trail>,
    longest: Option<Trail>,
    /// How many were not kept.
    n_more: u64,
}

impl Trails {
    pub(super) fn add(&mut self, mut trail: Trail) {
        if trail.is_empty() {
            return;
        }
        trail.shrink();
        if self.first.len() < LISTED {
            return self.first.push(trail);
        }
        match &mut self.longest {
            None => self.longest = Some(trail),
            Some(longest) => {
                self.n_more += 1;
                if trail.duration_ns() >= longest.duration_ns() {
                    *longest = trail;
                }
            }
        }
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = &Trail> {
        self.first.iter().chain(&self.longest)
    }

    pub(super) const fn n_more(&self) -> u64 {
        self.n_more
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::link::clock::Band;
    use crate::model::clocks::GuestNs;

    #[test]
    fn ever_more_pieces_are_counted_and_not_kept() {
        let mut trails = Trails::default();
        for n in 0..5000u64 {
            let mut trail = Trail::default();
            trails.add(Trail::default());
            let band = Band { lo_ns: 0, hi_ns: 0 };
            trail.note(GuestNs(n << 32), band);
            // The longest is neither among the first nor the last.
            let lasted_ns = if n == 3000 { 9 << 30 } else { n };
            trail.note(GuestNs((n << 32) + lasted_ns), band);
            trails.add(trail);
        }
        assert_eq!(trails.kept().count() as u64 + trails.n_more(), 5000);
        assert_eq!(trails.kept().count(), LISTED + 1);
        let longest = trails.kept().map(Trail::duration_ns).max();
        assert_eq!(longest, Some(9 << 30));
        assert_eq!(trails.kept().next().map(Trail::last_ns), Some(GuestNs(0)));
    }
}

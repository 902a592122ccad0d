//! The pieces that are over, in bounded memory: a guest decides how often its clock steps.

use super::band_history::BandHistory;

/// Pieces that are kept, in their order: as many as the result lists.
pub(super) const LISTED: usize = 1000;

/// The first pieces with links, and of those behind them the longest.
#[derive(Debug, Default)]
pub(super) struct EndedPieces {
    first: Vec<BandHistory>,
    longest: Option<BandHistory>,
    /// How many were not kept.
    n_more: u64,
}

impl EndedPieces {
    pub(super) fn add(&mut self, mut history: BandHistory) {
        if history.is_empty() {
            return;
        }
        history.shrink();
        if self.first.len() < LISTED {
            return self.first.push(history);
        }
        match &mut self.longest {
            None => self.longest = Some(history),
            Some(longest) => {
                self.n_more += 1;
                if history.duration_ns() >= longest.duration_ns() {
                    *longest = history;
                }
            }
        }
    }

    pub(super) fn kept(&self) -> impl Iterator<Item = &BandHistory> {
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
        let mut histories = EndedPieces::default();
        for n in 0..5000u64 {
            let mut history = BandHistory::default();
            histories.add(BandHistory::default());
            let band = Band { lo_ns: 0, hi_ns: 0 };
            history.note(GuestNs(n << 32), band);
            // The longest is neither among the first nor the last.
            let lasted_ns = if n == 3000 { 9 << 30 } else { n };
            history.note(GuestNs((n << 32) + lasted_ns), band);
            histories.add(history);
        }
        assert_eq!(histories.kept().count() as u64 + histories.n_more(), 5000);
        assert_eq!(histories.kept().count(), LISTED + 1);
        let longest = histories.kept().map(BandHistory::duration_ns).max();
        assert_eq!(longest, Some(9 << 30));
        assert_eq!(
            histories.kept().next().map(BandHistory::last_ns),
            Some(GuestNs(0))
        );
    }
}

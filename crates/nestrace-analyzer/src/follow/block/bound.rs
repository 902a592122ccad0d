//! A bound on what is in flight. A guest is not trusted: one that queues bios and never ends them, or
//! issues requests without end, must not fill the memory of whoever analyzes it.

use super::bios::Bios;
use super::gathered::Gathered;
use super::interrupted::has_no_end;
use super::observer::{Lent, Observer};
use super::requests::Requests;
use crate::model::span::BioSpan;

impl Requests {
    /// Requests, or bios in the lists of what they carry, whichever are more.
    pub(super) fn n_held(&self) -> usize {
        let carried = self.live.values().map(|request| request.n_others());
        self.live.len().max(carried.sum())
    }

    pub(super) fn give_up<O: Observer>(
        &mut self,
        keep: usize,
        ts_ns: u64,
        gathered: &mut Gathered,
        lent: &mut Lent<'_, O>,
    ) {
        let mut youngest_first: Vec<_> = self
            .live
            .iter()
            .map(|(pointer, request)| (request.last_seen_ns(), pointer, request.n_others()))
            .collect();
        youngest_first.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept = (0, 0);
        for (_, pointer, carried) in youngest_first {
            kept = (kept.0 + 1, kept.1 + carried);
            if kept.0.max(kept.1) > keep
                && let Some(request) = self.live.remove(pointer)
                && request.awaits_end()
            {
                gathered.completion_missed(&request, ts_ns, lent);
            }
        }
    }
}

impl Bios {
    /// Every life has a generation, so that is its age in each of the places that know it.
    pub(super) fn give_up<O: Observer>(
        &mut self,
        keep: usize,
        ts_ns: u64,
        gathered: &mut Gathered,
        lent: &mut Lent<'_, O>,
    ) -> Vec<BioSpan> {
        let newest = self.generation;
        let age = move |generation: u32| newest.wrapping_sub(generation);
        let spans = gathered.spans.iter().flat_map(|spans| spans.generations());
        let oldest_kept = [
            nth_smallest(self.live.values().map(|bio| age(bio.generation)), keep),
            nth_smallest(self.flushes.generations().map(age), keep),
            nth_smallest(spans.map(age), keep),
        ]
        .into_iter()
        .min()
        .unwrap_or(u32::MAX);
        let is_old = |generation: u32| age(generation) >= oldest_kept;
        self.flushes.retain(|generation| !is_old(generation));
        for bio in self.live.extract_if(|bio| is_old(bio.generation)) {
            has_no_end(&bio, &mut gathered.devices, ts_ns, lent);
        }
        let spans = gathered.spans.as_mut();
        spans.map_or_else(Vec::new, |spans| spans.give_up(is_old))
    }
}

/// The smallest number that is larger than `keep` of these; `u32::MAX` where they are not so many.
fn nth_smallest(numbers: impl Iterator<Item = u32>, keep: usize) -> u32 {
    let mut numbers: Vec<u32> = numbers.collect();
    if numbers.len() <= keep {
        return u32::MAX;
    }
    *numbers.select_nth_unstable(keep).1
}

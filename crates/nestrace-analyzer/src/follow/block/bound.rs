//! A bound on what is in flight. A guest is not trusted: one that queues bios and never ends them, or
//! issues requests without end, must not fill the memory of whoever analyzes it.

use std::collections::VecDeque;

use super::BlockLayer;
use super::interrupted::has_no_end;
use super::observer::{Lent, Observer};
use crate::model::span::BioSpan;

impl BlockLayer {
    /// Gives up the oldest of what is in flight where it is more than `most`, so that at most half of
    /// that is left: bios, their spans and flushes by their age, requests and the lists of what they carry by
    /// their D (or insert). Gives
    /// the spans, which have no end. Requests count as completions that were missed, bios as open. Of bios
    /// that are split again and again, those with the most requests go first.
    pub(crate) fn give_up_beyond<O: Observer>(
        &mut self,
        most: usize,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) -> Vec<BioSpan> {
        let carried: usize = self
            .requests
            .values()
            .map(|request| request.n_others())
            .sum();
        if self.requests.len().max(carried) > most {
            self.give_up_requests(most / 2, ts_ns, lent);
        }
        if self.flush_sequences.len() > most {
            self.flush_sequences.clear();
        }
        let flushes: usize = self.flushes.iter().map(VecDeque::len).sum();
        let spans = self.spans.as_ref().map_or(0, |spans| spans.n_open());
        let mut given_up = if self.bios.len().max(flushes).max(spans) > most {
            self.give_up_bios(most / 2, ts_ns, lent)
        } else {
            Vec::new()
        };
        if let Some(spans) = &mut self.spans
            && spans.n_requests() > most
        {
            given_up.extend(spans.give_up_heaviest(most / 2));
        }
        given_up
    }

    fn give_up_requests<O: Observer>(&mut self, keep: usize, ts_ns: u64, lent: &mut Lent<'_, O>) {
        let mut youngest_first: Vec<_> = self
            .requests
            .iter()
            .map(|(pointer, request)| (request.last_seen_ns(), pointer, request.n_others()))
            .collect();
        youngest_first.sort_unstable_by(|a, b| b.cmp(a));
        let mut kept = (0, 0);
        for (_, pointer, carried) in youngest_first {
            kept = (kept.0 + 1, kept.1 + carried);
            if kept.0.max(kept.1) > keep
                && let Some(request) = self.requests.remove(pointer)
                && request.awaits_end()
            {
                self.completion_missed(&request, ts_ns, lent);
            }
        }
    }

    /// Every life has a generation, so that is its age in each of the places that know it.
    fn give_up_bios<O: Observer>(
        &mut self,
        keep: usize,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) -> Vec<BioSpan> {
        let newest = self.generation;
        let age = move |generation: u32| newest.wrapping_sub(generation);
        let flushes = self.flushes.iter().flatten();
        let spans = self.spans.iter().flat_map(|spans| spans.generations());
        let oldest_kept = [
            nth_smallest(self.bios.values().map(|bio| age(bio.generation)), keep),
            nth_smallest(flushes.map(|flush| age(flush.generation)), keep),
            nth_smallest(spans.map(age), keep),
        ]
        .into_iter()
        .min()
        .unwrap_or(u32::MAX);
        let is_old = |generation: u32| age(generation) >= oldest_kept;
        for flushes in &mut self.flushes {
            flushes.retain(|flush| !is_old(flush.generation));
        }
        for bio in self.bios.extract_if(|bio| is_old(bio.generation)) {
            has_no_end(&bio, &mut self.devices, ts_ns, lent);
        }
        let spans = self.spans.as_mut();
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

//! What the block layer hands on, if somebody asks: every bio at its end and every request at its
//! last C, as intervals with their identities.
//!
//! A bio with PREFLUSH waits for a flush of the device before its data goes out, one with FUA on a
//! device without FUA for one after its data, a flush without data for one alone. The kernel names
//! no bio in such a request. It issues a flush only when the last one of that hardware queue has
//! ended, lets none pass data of a flush sequence (`blk-flush.c`, conditions C1 to C3), and a flush
//! serves only those who asked before its D. So it is the one that ended last before the data's D
//! (or before the bio's end) and that was issued after the bio was queued (or after its data's C).
//! Each hardware queue does so for itself, with a request of its own. Where the events name that
//! request ([`Event::flushed_with`]), only its flushes count; where they do not and several queues'
//! flushes could be the one, the last is taken and the bio is marked.

use std::collections::VecDeque;

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::bio::{Bio, Ending};
use super::empty_flushes::EmptyFlush;
use super::handed_on::HandedOn;
use crate::model::owner::Owner;
use crate::model::pointer::PointerMap;
use crate::model::span::{BioSpan, RequestSpan};
use crate::result::analysis::StripeIo;

/// Ended flushes remembered for a device: enough to see that several could be the one, and to find that of one hardware
/// queue behind those of the others.
const RECENT_FLUSHES: usize = 64;
/// So many requests of a bio are looked through for one that carried two parts of it; where there are more,
/// that is done once, when it ends.
const LOOKED_THROUGH: usize = 64;

/// Parts of a bio whose pages are remembered.
const MAX_PARTS: usize = 1024;

/// What has ended and was not taken yet, and bios on their way.
#[derive(Debug, Default)]
pub(crate) struct BlockSpans {
    /// Ended bios, in the order of their ends.
    pub bios: Vec<BioSpan>,
    /// Ended requests, device flushes among them, in the order of their ends.
    pub requests: Vec<RequestSpan>,
    /// Bios between Q and their end, by the generation of the whole bio.
    open: PointerMap<u32, BioSpan>,
    /// The flushes of each device that ended last, oldest first.
    flushes: PointerMap<u16, VecDeque<RequestSpan>>,
    handed_on: HandedOn,
}

impl BlockSpans {
    /// dm or md have made a bio of one that is on its way, or have changed it; `of_stripes`: the device has parity.
    #[inline(never)]
    pub(super) fn remapped(&mut self, event: &Event, of_stripes: bool) {
        self.handed_on.remapped(event, of_stripes, &self.open);
    }

    /// A driver has made a bio for one that is on its way, which it names.
    #[inline(never)]
    pub(super) fn made(&mut self, event: &Event) {
        self.handed_on.made(event, &self.open);
    }

    /// What an array with parity did in its stripes.
    pub(crate) fn stripes_of(&self, dev: u32) -> Option<StripeIo> {
        self.handed_on.stripes.of_array(dev)
    }

    /// A bio of a device that hands it on.
    pub(super) fn on_stacked(&mut self, bio: &Bio) {
        self.handed_on.queued(bio.generation);
    }

    /// Gives the owner of the uppermost bio that it was made for.
    #[inline(never)]
    pub(super) fn queued(
        &mut self,
        bio: &Bio,
        owner: Owner,
        event: &Event,
        file_io: u64,
    ) -> Option<Owner> {
        let above = self.handed_on.arrived(event, &self.open);
        let parent = above.as_ref().and_then(|above| above.bios.first());
        let parent = parent.and_then(|parent| self.open.get(&parent.generation));
        let owner_above = parent.map(|parent| parent.owner_at_top);
        let span = BioSpan {
            dev: event.dev,
            operation: bio.operation,
            flags: event.flags,
            empty_flush: bio.empty_flush,
            offset: event.offset,
            bytes: event.bytes,
            queued_ns: event.ts_ns,
            ended_ns: 0,
            tid: event.tid,
            pointer: event.object,
            owner,
            owner_at_top: owner_above.unwrap_or(owner),
            for_another: bio.owner != owner,
            owner_kind: event.sub,
            end_io: event.end_io,
            inode: event.inode,
            owner_dev: event.owner_dev,
            file_offset: event.file_offset,
            iocb: event.iocb,
            origin: event.origin,
            page: event.first_page(),
            further_pages: Vec::new(),
            file_io,
            ambiguous: false,
            generation: bio.generation,
            above,
            requests: Vec::new(),
        };
        self.open.insert(bio.generation, span);
        owner_above
    }

    /// A life that has no end worth telling.
    #[inline(never)]
    pub(super) fn forget(&mut self, bio: &Bio) {
        if bio.root.is_none() {
            self.open.remove(&bio.generation);
        }
    }

    /// The data of a flush sequence goes to the device: what came before was the flush.
    #[inline(never)]
    pub(super) fn data_of_sequence_issued(&mut self, device: u16, bio: &Bio, flushed_with: u64) {
        if let Some(span) = self.open.get_mut(&bio.whole())
            && span.flags & flags::PREFLUSH != 0
            && span.requests.is_empty()
        {
            let since_ns = span.queued_ns.max(bio.entered_ns);
            let flushes = Flushes {
                since_ns,
                with: flushed_with,
            };
            flushes.wait(&self.flushes, device, span);
        }
    }

    /// A request has carried a bio, or a part of it, to its end.
    #[inline(never)]
    pub(super) fn carried(&mut self, whole: u32, request: RequestSpan) {
        let Some(span) = self.open.get_mut(&whole) else {
            return;
        };
        let same = |known: &RequestSpan| known.serial == request.serial;
        if span.requests.len() > LOOKED_THROUGH || !span.requests.iter().any(same) {
            span.requests.push(request);
        }
    }

    /// Where a whole bio began at its Q.
    pub(super) fn offset_of(&self, bio: &Bio) -> u64 {
        let span = self.open.get(&bio.generation);
        span.map_or(0, |span| span.offset)
    }

    /// What is left of a bio begins at `offset` and with this page.
    #[inline(never)]
    pub(super) fn split(&mut self, whole: u32, offset: u64, page: u64) {
        if let Some(span) = self.open.get_mut(&whole)
            && span.further_pages.len() < MAX_PARTS
        {
            span.further_pages.push((offset, page));
        }
    }

    /// The page identity of the byte at `offset`, where a bio or a part of it begins; 0 if unknown.
    pub(super) fn page_at(&self, whole: u32, offset: u64) -> u64 {
        let Some(span) = self.open.get(&whole) else {
            return 0;
        };
        let begins = (span.offset, span.page);
        let mut known = std::iter::once(&begins).chain(&span.further_pages);
        known.find(|(at, _)| *at == offset).map_or(0, |it| it.1)
    }

    /// A whole bio has ended.
    #[inline(never)]
    pub(super) fn ended(&mut self, whole: &Bio, last: &Bio, ending: &Ending) {
        let Some(mut span) = self.open.remove(&whole.generation) else {
            return;
        };
        let (data_ns, ended_ns) = (ending.completed_ns, ending.ts_ns);
        if ended_ns > data_ns && span.flags & flags::FUA != 0 {
            let flushes = Flushes {
                since_ns: data_ns,
                with: ending.flushed_with,
            };
            flushes.wait(&self.flushes, last.device, &mut span);
        }
        self.hand_on(span, ended_ns);
    }

    /// Bios on their way.
    pub(super) fn n_open(&self) -> usize {
        self.open.len()
    }

    /// Their generations.
    pub(super) fn generations(&self) -> impl Iterator<Item = u32> + '_ {
        self.open.keys().copied()
    }

    /// Bios that are not waited for any more, in the order of their Q.
    pub(super) fn give_up(&mut self, is_old: impl Fn(u32) -> bool) -> Vec<BioSpan> {
        let old = self.open.extract_if(|generation, _| is_old(*generation));
        let mut old: Vec<BioSpan> = old.map(|(_, span)| span).collect();
        old.sort_by_key(|span| span.queued_ns);
        old
    }

    /// Requests that ended, of bios that have not.
    pub(super) fn n_requests(&self) -> usize {
        self.open.values().map(|span| span.requests.len()).sum()
    }

    /// The bios with the most requests, so many that all others have `keep` together at most.
    fn heaviest(&self, keep: usize) -> Vec<u32> {
        let mut heavy: Vec<(usize, u32)> = self
            .open
            .iter()
            .filter(|(_, span)| !span.requests.is_empty())
            .map(|(generation, span)| (span.requests.len(), *generation))
            .collect();
        heavy.sort_unstable_by(|a, b| b.cmp(a));
        let mut left: usize = heavy.iter().map(|(n, _)| n).sum();
        heavy
            .into_iter()
            .take_while(|(n, _)| {
                let too_many = left > keep;
                left -= n;
                too_many
            })
            .map(|(_, generation)| generation)
            .collect()
    }

    /// Bios that are not waited for any more, because they were split into too many requests.
    pub(super) fn give_up_heaviest(&mut self, keep: usize) -> Vec<BioSpan> {
        let heaviest = self.heaviest(keep);
        let spans = heaviest.iter();
        spans
            .filter_map(|generation| self.open.remove(generation))
            .collect()
    }

    /// Where ended requests of bios that have not ended are more than `most`, forgets those of the bios
    /// that have the most, so that half is left. These bios are marked.
    pub(crate) fn forget_requests_beyond(&mut self, most: usize) {
        if self.n_requests() <= most {
            return;
        }
        for generation in self.heaviest(most / 2) {
            if let Some(span) = self.open.get_mut(&generation) {
                span.requests = Vec::new();
                span.ambiguous = true;
            }
        }
    }

    /// A flush without data has ended.
    #[inline(never)]
    pub(super) fn flush_ended(&mut self, device: u16, flush: EmptyFlush, event: &Event) {
        let Some(mut span) = self.open.remove(&flush.generation) else {
            return;
        };
        let flushes = Flushes {
            since_ns: flush.ready_ns,
            with: event.flushed_with(),
        };
        flushes.wait(&self.flushes, device, &mut span);
        self.hand_on(span, event.ts_ns);
    }

    fn hand_on(&mut self, mut span: BioSpan, ended_ns: u64) {
        span.ended_ns = ended_ns;
        if span.requests.len() > LOOKED_THROUGH {
            let mut known: PointerMap<u64, ()> = PointerMap::default();
            span.requests
                .retain(|request| known.insert(request.serial, ()).is_none());
        }
        span.requests.sort_by_key(|request| request.issued_ns);
        self.handed_on.ended(&span);
        self.bios.push(span);
    }

    /// A request has left the device.
    #[inline(never)]
    pub(super) fn completed(&mut self, request: RequestSpan, device: u16) {
        if request.flush {
            let recent = self.flushes.entry(device).or_default();
            if recent.len() == RECENT_FLUSHES {
                recent.pop_front();
            }
            recent.push_back(request);
        }
        self.requests.push(request);
    }

    /// D of the flush of the device that ended last.
    pub(super) fn last_flush_issued_ns(&self, device: u16) -> Option<u64> {
        let last = self.flushes.get(&device)?.back()?;
        Some(last.issued_ns)
    }
}

/// The flushes that a bio may have waited for.
#[derive(Clone, Copy, Debug)]
struct Flushes {
    /// They were issued since then.
    since_ns: u64,
    /// They are this request's; 0 if that is not known.
    with: u64,
}

impl Flushes {
    /// Gives a bio the flush that it waited for: of those that ended, the last.
    fn wait(self, ended: &PointerMap<u16, VecDeque<RequestSpan>>, device: u16, span: &mut BioSpan) {
        let Some(recent) = ended.get(&device) else {
            return;
        };
        let is_one = |flush: &&RequestSpan| {
            flush.issued_ns >= self.since_ns && (self.with == 0 || flush.pointer == self.with)
        };
        let mut candidates = recent.iter().rev().filter(is_one);
        if let Some(flush) = candidates.next() {
            // A hardware queue sends one after the other.
            span.ambiguous |= self.with == 0 && candidates.next().is_some();
            span.requests.push(*flush);
        }
    }
}

#[cfg(test)]
mod tests;

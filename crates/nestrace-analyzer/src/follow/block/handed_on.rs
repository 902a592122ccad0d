//! Which bio of dm, md or bcache a bio on a device below was made for.
//!
//! bcache and dm's mirror name the bio above. Else dm and md report a bio that they hand on (`block_bio_remap`) with the
//! device and the place that it was for before. The bio above is the one in flight on that device that covers that place; of an
//! empty flush the only one in flight, or the only one of the same thread. Where that is not one bio, the link is not certain
//! and there is none.
//!
//! RAID4, 5 and 6 work in stripes ([`Stripes`]): a data block has its place in the array, a block of parity has none (sector 0,
//! `raid5_compute_blocknr()`). A read for a bio that reads is that bio's; all else of a stripe is work for its write.

use nestrace_abi::flags;
use nestrace_trace::Event;

use crate::model::operation::Operation;
use crate::model::pointer::PointerMap;
use crate::model::span::{Above, BioSpan, Parent};

use super::stripes::Stripes;

/// Bios of stacked devices in flight at once; of more the oldest are not followed down.
const MAX_ON_STACKED: usize = 1 << 13;
/// Bios between their remap and their Q. More are not under way.
const MAX_UNDER_WAY: usize = 1 << 14;
/// Bios with data in one block of a stripe.
const MAX_OF_BLOCK: usize = 64;

/// A bio between its remap, or what it was made for, and its Q.
#[derive(Debug)]
struct Remapped {
    /// The device below, as the bio names it after the remap.
    dev: u32,
    bytes: u64,
    above: Above,
}

/// What dm, md and bcache hand on.
#[derive(Debug, Default)]
pub(super) struct HandedOn {
    /// Generations of the bios of stacked devices, in the order of Q; some have ended.
    above: Vec<u32>,
    /// By address.
    remapped: PointerMap<u64, Remapped>,
    pub(super) stripes: Stripes,
}

impl HandedOn {
    pub(super) fn queued(&mut self, generation: u32) {
        if self.above.len() >= MAX_ON_STACKED {
            self.above.drain(..MAX_ON_STACKED / 2);
        }
        self.above.push(generation);
    }

    pub(super) fn remapped(
        &mut self,
        event: &Event,
        of_stripes: bool,
        open: &PointerMap<u32, BioSpan>,
    ) {
        self.forget_ended(open);
        let above = if of_stripes {
            self.of_stripe(event, open)
        } else {
            Above {
                bios: self.parents(event, open),
                ..Above::default()
            }
        };
        self.goes_to(event, above);
    }

    /// A driver has made a bio for the one that it names.
    pub(super) fn made(&mut self, event: &Event, open: &PointerMap<u32, BioSpan>) {
        self.forget_ended(open);
        let named = |span: &&BioSpan| span.pointer == event.related;
        let above = self.candidates(event, open).find(named);
        let above = Above {
            bios: above.map(BioSpan::as_parent).into_iter().collect(),
            ..Above::default()
        };
        self.goes_to(event, above);
    }

    fn forget_ended(&mut self, open: &PointerMap<u32, BioSpan>) {
        self.above
            .retain(|generation| open.contains_key(generation));
    }

    /// The bio's Q follows.
    fn goes_to(&mut self, event: &Event, above: Above) {
        if self.remapped.len() >= MAX_UNDER_WAY {
            self.remapped.clear();
        }
        let remapped = Remapped {
            dev: event.dev,
            bytes: event.bytes,
            above,
        };
        self.remapped.insert(event.object, remapped);
    }

    /// Bios of the device above that a remap may be of.
    fn candidates<'a>(
        &'a self,
        event: &'a Event,
        open: &'a PointerMap<u32, BioSpan>,
    ) -> impl Iterator<Item = &'a BioSpan> {
        let spans = self.above.iter().filter_map(|it| open.get(it));
        spans.filter(|span| span.dev == event.former_dev())
    }

    /// The bios above that a remap of a stripe is of. Several bios may write one block; of several that read it, one alone may
    /// have asked for this read.
    fn of_stripe(&mut self, event: &Event, open: &PointerMap<u32, BioSpan>) -> Above {
        let operation = Operation::of(event.op());
        let is_read = operation == Operation::Read;
        let from = event.former_offset();
        let to = from.saturating_add(event.bytes);
        let overlaps = |span: &&BioSpan| {
            !span.empty_flush
                && span.operation == operation
                && span.offset < to
                && span.offset.saturating_add(span.bytes) > from
        };
        // A block of parity has no place in the array.
        let candidates = self.candidates(event, open).filter(|_| from != 0);
        let spans: Vec<&BioSpan> = candidates.filter(overlaps).take(MAX_OF_BLOCK).collect();
        let asks = |span: &&&BioSpan| span.pointer == event.related;
        let bios = match spans.as_slice() {
            several @ [_, _, ..] if is_read => several.iter().find(asks).into_iter().collect(),
            several => several.iter().collect::<Vec<_>>(),
        };
        let bios: Vec<Parent> = bios.into_iter().map(|span| span.as_parent()).collect();
        let for_reader = is_read && !spans.is_empty();
        let round = if event.related == 0 || for_reader {
            0
        } else {
            self.stripes.remapped(event, !spans.is_empty())
        };
        Above {
            bios,
            stripe: event.related,
            round,
        }
    }

    /// The bio above that a remap is of.
    fn parents(&self, event: &Event, open: &PointerMap<u32, BioSpan>) -> Vec<Parent> {
        let place = event.former_offset();
        let is_flush = event.bytes == 0;
        let operation = Operation::of(event.op());
        let holds = |span: &&BioSpan| {
            let end = span.offset.saturating_add(span.bytes);
            match is_flush {
                true => span.empty_flush || span.flags & flags::PREFLUSH != 0,
                false => {
                    !span.empty_flush
                        && span.operation == operation
                        && (span.offset..end).contains(&place)
                }
            }
        };
        let alike = self.candidates(event, open).filter(holds);
        let alike: Vec<Parent> = alike.map(BioSpan::as_parent).collect();
        match alike.as_slice() {
            [_] => alike,
            several if is_flush => {
                let own = several.iter().filter(|it| it.tid == event.tid);
                let own: Vec<Parent> = own.copied().collect();
                if own.len() == 1 { own } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }

    /// What a bio at its Q was made for; `None` where no stacked device handed it on.
    pub(super) fn arrived(
        &mut self,
        event: &Event,
        open: &PointerMap<u32, BioSpan>,
    ) -> Option<Above> {
        if self.remapped.is_empty() {
            return None;
        }
        // One that moved on without a Q leaves an entry behind.
        let remapped = self.remapped.remove(&event.object)?;
        if remapped.dev != event.dev || remapped.bytes != event.bytes {
            return None;
        }
        let mut above = remapped.above;
        above
            .bios
            .retain(|parent| open.contains_key(&parent.generation));
        Some(above)
    }

    /// A bio has ended.
    pub(super) fn ended(&mut self, span: &BioSpan) {
        if let Some(above) = &span.above
            && above.round != 0
            && span.operation != Operation::Read
        {
            self.stripes.written(above.stripe, above.round);
        }
    }
}

//! Which bio of dm or md a bio on a device below was made for.
//!
//! Both report a bio that they hand on (`block_bio_remap`) with the device and the place that it was for before. The bio
//! above is the one in flight on that device that covers that place; of an empty flush the only one in flight, or the only one
//! of the same thread. Where that is not one bio, the link is not certain and there is none.
//!
//! RAID4, 5 and 6 work in stripes: a data block has its place in the array, the block of parity has none (sector 0,
//! `raid5_compute_blocknr()`). All bios of a stripe have the same `bi_private`; a bio that waits for one block of a stripe waits
//! for the stripe.

use nestrace_abi::flags;
use nestrace_trace::Event;

use crate::model::operation::Operation;
use crate::model::pointer::PointerMap;
use crate::model::span::{Above, BioSpan, Parent};

/// Bios of stacked devices in flight at once; of more the oldest are not followed down.
const MAX_ON_STACKED: usize = 1 << 13;
/// Bios between their remap and their Q, and stripes. More are not under way.
const MAX_UNDER_WAY: usize = 1 << 14;
/// Bios that wait for one stripe.
const MAX_OF_STRIPE: usize = 64;

/// A bio between its remap and its Q.
#[derive(Debug)]
struct Remapped {
    /// The device below, as the bio names it after the remap.
    dev: u32,
    bytes: u64,
    parents: Vec<Parent>,
    /// `bi_private`; 0 if it is of no stripe.
    stripe: u64,
}

/// What dm and md hand on.
#[derive(Debug, Default)]
pub(super) struct HandedOn {
    /// Generations of the bios of stacked devices, in the order of Q; some have ended.
    above: Vec<u32>,
    /// By address.
    remapped: PointerMap<u64, Remapped>,
    /// The bios that wait for a stripe, by `bi_private`.
    stripes: PointerMap<u64, Vec<Parent>>,
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
        self.above
            .retain(|generation| open.contains_key(generation));
        let stripe = if of_stripes { event.related } else { 0 };
        // A block of parity has no place in the array.
        let placed = !of_stripes || event.former_offset() != 0;
        let parents = if placed {
            self.parents(event, of_stripes, open)
        } else {
            Vec::new()
        };
        if stripe != 0 {
            if self.stripes.len() >= MAX_UNDER_WAY {
                self.stripes.clear();
            }
            let waiting = self.stripes.entry(stripe).or_default();
            waiting.retain(|parent| open.contains_key(&parent.generation));
            let new = parents.iter().filter(|parent| !waiting.contains(parent));
            let new: Vec<Parent> = new.copied().collect();
            waiting.extend(new.into_iter().take(MAX_OF_STRIPE));
        }
        if self.remapped.len() >= MAX_UNDER_WAY {
            self.remapped.clear();
        }
        let remapped = Remapped {
            dev: event.dev,
            bytes: event.bytes,
            parents,
            stripe,
        };
        self.remapped.insert(event.object, remapped);
    }

    /// The bios above that a remap is of.
    fn parents(
        &self,
        event: &Event,
        of_stripes: bool,
        open: &PointerMap<u32, BioSpan>,
    ) -> Vec<Parent> {
        let (dev, place) = (event.former_dev(), event.former_offset());
        let is_flush = event.bytes == 0;
        let holds = |span: &&BioSpan| {
            let end = span.offset.saturating_add(span.bytes);
            span.dev == dev
                && match is_flush {
                    true => span.empty_flush || span.flags & flags::PREFLUSH != 0,
                    false => !span.empty_flush && (span.offset..end).contains(&place),
                }
        };
        let spans = || {
            self.above
                .iter()
                .filter_map(|it| open.get(it))
                .filter(holds)
        };
        let parent = |span: &BioSpan| Parent {
            generation: span.generation,
            operation: span.operation,
            queued_ns: span.queued_ns,
            tid: span.tid,
        };
        if of_stripes {
            return spans().take(MAX_OF_STRIPE).map(parent).collect();
        }
        let operation = Operation::of(event.op());
        let alike = spans().filter(|span| is_flush || span.operation == operation);
        let alike: Vec<Parent> = alike.map(parent).collect();
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
        let mut bios = remapped.parents;
        bios.retain(|parent| open.contains_key(&parent.generation));
        Some(Above {
            bios,
            stripe: remapped.stripe,
        })
    }

    /// A bio has ended: adds those above that came to its stripe since.
    pub(super) fn ended(&self, span: &mut BioSpan, open: &PointerMap<u32, BioSpan>) {
        let Some(above) = span.above.as_mut().filter(|above| above.stripe != 0) else {
            return;
        };
        let waiting = self.stripes.get(&above.stripe).into_iter().flatten();
        let before =
            |it: &&Parent| it.queued_ns <= span.queued_ns && open.contains_key(&it.generation);
        for parent in waiting.filter(before) {
            if !above.bios.contains(parent) {
                above.bios.push(*parent);
            }
        }
    }
}

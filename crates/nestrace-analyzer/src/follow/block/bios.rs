//! The bios of one machine: each life from its Q, through splits, to its end.

use nestrace_abi::Kind;
use nestrace_trace::Event;

use super::IN_FLIGHT;
use super::bio::{Bio, Ending, Way};
use super::empty_flushes::{EmptyFlush, EmptyFlushes};
use super::gathered::Gathered;
use super::observer::{Lent, Observer};
use crate::model::operation::Operation;
use crate::model::places::Places;
use crate::model::spare::Spare;

/// Bios on their way, by address.
#[derive(Debug, Default)]
pub(super) struct Bios {
    /// Boxed, as requests are: they are large, and what finds them is small and moves.
    pub live: Places<Box<Bio>, { IN_FLIGHT }>,
    pub spare: Spare<Bio>,
    /// That of the youngest life.
    pub generation: u32,
    pub flushes: EmptyFlushes,
}

impl Bios {
    pub(super) fn new_generation(&mut self, device: u16, gathered: &mut Gathered) -> u32 {
        self.generation = self.generation.wrapping_add(1);
        gathered.meter(device).check.generations += 1;
        self.generation
    }

    /// Puts a new life in the place of an old one, which it gives.
    pub(super) fn begin<O: Observer>(
        &mut self,
        pointer: u64,
        bio: Box<Bio>,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) -> Option<Box<Bio>> {
        bio.enter_queue(ts_ns, lent);
        self.live.insert(pointer, bio)
    }

    #[inline(never)]
    pub(super) fn enter_request<O: Observer>(
        &mut self,
        kind: Kind,
        device: u16,
        event: &Event,
        gathered: &mut Gathered,
        lent: &mut Lent<'_, O>,
    ) {
        let meter = gathered.meter(device);
        if kind != Kind::GetRequest {
            meter.figures.merged(event.ts_ns);
        }
        let check = &mut meter.check;
        let way = match kind {
            Kind::GetRequest => {
                check.get_requests += 1;
                Way::Got
            }
            Kind::BackMerge => {
                check.back_merges += 1;
                Way::Merged
            }
            _ => {
                check.front_merges += 1;
                Way::Merged
            }
        };
        let Some(bio) = self.live.get_mut(event.object) else {
            let reason = lent.reasons.at(event.ts_ns);
            gathered.meter(device).unlinked.count(reason);
            return;
        };
        bio.way = way;
        bio.entered_ns = event.ts_ns;
        let (queued_ns, whose) = (bio.queued_here(device), (bio.operation, bio.process));
        let (empty, generation) = (bio.empty_flush, bio.generation);
        let slept_ns = bio.slept_ns.take();
        if empty {
            self.flushes.is_ready(device, generation, event.ts_ns);
        }
        if empty {
            return;
        }
        let meter = gathered.meter(device);
        meter.stats.remapped.has_requests();
        if way == Way::Merged {
            meter.stats.merged(whose.0);
        }
        if let Some(queued_ns) = queued_ns {
            let waited_ns = event.ts_ns.saturating_sub(queued_ns);
            match way {
                Way::Got => meter.record(whose, |parts| &mut parts.q2g, waited_ns),
                _ => meter.record(whose, |parts| &mut parts.q2m, waited_ns),
            }
        }
        if let Some(slept_ns) = slept_ns {
            let slept_ns = event.ts_ns.saturating_sub(slept_ns);
            meter.record(whose, |parts| &mut parts.s2g, slept_ns);
        }
    }

    /// No request is free: the bio's thread sleeps until there is one.
    #[inline(never)]
    pub(super) fn sleep(&mut self, event: &Event) {
        if let Some(bio) = self.live.get_mut(event.object) {
            bio.slept_ns.get_or_insert(event.ts_ns);
        }
    }

    #[inline(never)]
    pub(super) fn remap(&mut self, device: u16, event: &Event, gathered: &mut Gathered) {
        gathered.meter(device).remaps += 1;
        gathered.remapped_from(event);
        // Partitions and dm remap before Q. A bio that lives already moves on without a second Q (md).
        if let Some(bio) = self.live.get_mut(event.object)
            && bio.device != device
            && bio.way == Way::Unknown
            && !bio.empty_flush
        {
            let dev = gathered
                .devices
                .get(usize::from(bio.device))
                .map(|meter| meter.dev);
            if dev == Some(event.former_dev()) {
                bio.device = device;
            }
        }
    }

    /// X: the front half gets a pointer of its own, the parent keeps the tail and gets no second Q. Gives the life
    /// that it replaces.
    #[inline(never)]
    pub(super) fn split<O: Observer>(
        &mut self,
        device: u16,
        event: &Event,
        gathered: &mut Gathered,
        lent: &mut Lent<'_, O>,
    ) -> Option<Box<Bio>> {
        let meter = gathered.meter(device);
        meter.check.splits += 1;
        meter.stats.at_queue.split();
        let parent = self
            .live
            .get_mut(event.parent_bio())
            .filter(|parent| parent.device == device && event.parent_bio() != event.object);
        let Some(parent) = parent else {
            // dm splits by trimming: the bio itself is the argument, and it lives on.
            let itself = self.live.get_mut(event.object);
            if let Some(itself) = itself.filter(|bio| bio.device == device) {
                itself.trims = itself.trims.saturating_add(1);
            } else {
                let reason = lent.reasons.at(event.ts_ns);
                gathered.meter(device).unlinked.count(reason);
                let generation = self.new_generation(device, gathered);
                let front = Bio::unseen(
                    generation,
                    device,
                    Operation::of(event.op()),
                    event,
                    event.bytes,
                );
                return self.begin(
                    event.object,
                    Box::new(front.without_clocks()),
                    event.ts_ns,
                    lent,
                );
            }
            return None;
        };
        parent.bytes = parent.bytes.saturating_sub(event.bytes);
        parent.offset = event.offset.saturating_add(event.bytes);
        let root = parent
            .root
            .unwrap_or((event.parent_bio(), parent.generation));
        let parent = **parent;
        let generation = self.new_generation(device, gathered);
        let front = parent.front(generation, root, event);
        if let Some(root) = self.live.get_mut(root.0) {
            root.open = root.open.saturating_add(1);
        }
        if let Some(spans) = &mut gathered.spans
            && event.first_page_of_rest() != 0
        {
            spans.split(root.1, parent.offset, event.first_page_of_rest());
        }
        self.begin(event.object, Box::new(front), event.ts_ns, lent)
    }

    /// A fragment, carried by a request, has ended. Says whether it was alive.
    pub(super) fn end_fragment<O: Observer>(
        &mut self,
        pointer: u64,
        generation: u32,
        ending: Ending,
        gathered: &mut Gathered,
        lent: &mut Lent<'_, O>,
    ) -> bool {
        let Some(bio) = self.live.get_mut(pointer) else {
            return false;
        };
        if bio.generation != generation {
            return false;
        }
        bio.open = bio.open.saturating_sub(1);
        bio.leave_tail(ending.ts_ns, lent);
        if let (Some(spans), Some(by)) = (&mut gathered.spans, ending.by) {
            spans.carried(bio.whole(), by);
        }
        if let (Some(ios), Some(by)) = (&mut gathered.machine.ios, ending.by) {
            ios.extend(bio.io(&by));
        }
        if bio.root.is_none() && bio.open > 0 {
            return true;
        }
        let Some(bio) = self.live.remove(pointer) else {
            return false;
        };
        self.end_life(&bio, ending, gathered, lent);
        self.spare.keep(bio);
        true
    }

    /// The life of a fragment is over, and that of its bio where it was the last one.
    fn end_life<O: Observer>(
        &mut self,
        bio: &Bio,
        ending: Ending,
        gathered: &mut Gathered,
        lent: &mut Lent<'_, O>,
    ) {
        let Some((root_pointer, root_generation)) = bio.root else {
            end_bio(bio, bio, ending, gathered, lent);
            return;
        };
        let Some(root) = self
            .live
            .get_mut(root_pointer)
            .filter(|root| root.generation == root_generation)
        else {
            return;
        };
        root.open = root.open.saturating_sub(1);
        if root.open == 0
            && let Some(root) = self.live.remove(root_pointer)
        {
            end_bio(&root, bio, ending, gathered, lent);
        }
    }

    /// Generation of the flush without data that a C names as the bio that it ends.
    pub(super) fn named_flush(&self, device: u16, event: &Event) -> Option<u32> {
        let named = (event.ended_bio() != 0).then_some(event.ended_bio())?;
        let bio = self.live.get(named).filter(|bio| bio.empty_flush)?;
        let waits = self.flushes.holds(device, bio.generation);
        waits.then_some(bio.generation)
    }

    /// The flush without data that a C ends.
    pub(super) fn ended_flush(
        &mut self,
        device: u16,
        event: &Event,
        gathered: &Gathered,
    ) -> Option<EmptyFlush> {
        if event.ended_bio() == 0 {
            let spans = gathered.spans.as_ref();
            let served_until_ns = spans.and_then(|spans| spans.last_flush_issued_ns(device));
            return self.flushes.next(device, served_until_ns);
        }
        let generation = self.named_flush(device, event)?;
        self.flushes.remove(device, generation)
    }
}

/// A whole bio has ended with `last`, its last fragment.
fn end_bio<O: Observer>(
    whole: &Bio,
    last: &Bio,
    ending: Ending,
    gathered: &mut Gathered,
    lent: &mut Lent<'_, O>,
) {
    let Ending {
        completed_ns,
        ts_ns,
        ..
    } = ending;
    if let Some(spans) = &mut gathered.spans {
        spans.ended(whole, last, &ending);
    }
    if whole.aio.names_iocb() {
        lent.observer.bio_ended(whole.aio, whole.whole_bytes, ts_ns);
    }
    let here = whole.home == last.device;
    let whose = (whole.operation, whole.process);
    let issued_ns = last.issued_ns;
    let meter = gathered.meter(last.device);
    let d2c_ns = completed_ns.saturating_sub(issued_ns);
    meter.record(whose, |parts| &mut parts.d2c, d2c_ns);
    meter.figures.served(completed_ns, whole.operation, d2c_ns);
    if here && let Some(queued_ns) = whole.queued_ns {
        last.add_way(queued_ns, completed_ns, &mut meter.stats.path);
        let waited_ns = |since_ns: u64| issued_ns.saturating_sub(since_ns);
        match (last.way, last.inserted_ns) {
            (Way::Got, Some(inserted_ns)) => {
                meter.record(whose, |parts| &mut parts.i2d, waited_ns(inserted_ns));
            }
            (Way::Got, None) => {
                meter.record(whose, |parts| &mut parts.g2d, waited_ns(last.entered_ns));
            }
            (Way::Merged, _) => {
                meter.record(whose, |parts| &mut parts.m2d, waited_ns(last.entered_ns));
            }
            (Way::Unknown, _) => {}
        }
    }
    let Some(queued_ns) = whole.queued_ns else {
        return;
    };
    let home = gathered.meter(whole.home);
    home.check.ended += 1;
    home.record(
        whose,
        |parts| &mut parts.q2c,
        completed_ns.saturating_sub(queued_ns),
    );
    let issued_ns = here.then_some(issued_ns);
    let q2c_ns = completed_ns.saturating_sub(queued_ns);
    let io = (whole.operation, whole.whole_bytes);
    let wait_ns = issued_ns.map(|issued_ns| issued_ns.saturating_sub(queued_ns));
    home.figures.ended(completed_ns, io, q2c_ns, wait_ns);
    let to_end_ns = ts_ns.saturating_sub(queued_ns);
    home.figures.ended_whole(whole.operation, q2c_ns, to_end_ns);
    home.stats
        .ended(whole.operation, (queued_ns, issued_ns, completed_ns));
}

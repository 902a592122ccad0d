//! A bio's life, splits included.

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::BlockLayer;
use super::observer::{ClocksOf, Lent, Observer};
use crate::measure::block_stats::ProcessId;
use crate::measure::overlap::Stages;
use crate::model::aio_key::AioKey;
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::span::RequestSpan;
use crate::result::analysis::{Io, Path, Step};

/// How a bio came into a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Not yet, or the event was lost.
    Unknown,
    /// A request was allocated for it (G).
    Got,
    /// It was merged (M, F).
    Merged,
}

/// Where a bio is, as far as the clocks care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Issued,
}

/// How a request ends a fragment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ending {
    /// The C that moved its data.
    pub completed_ns: u64,
    /// The C that ends it.
    pub ts_ns: u64,
    /// The request, where spans are wanted and its D was seen.
    pub by: Option<RequestSpan>,
}

/// One life of a bio pointer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bio {
    pub generation: u32,
    /// The device whose request queue it enters.
    pub device: u16,
    /// The device of its Q.
    pub home: u16,
    pub operation: Operation,
    pub empty_flush: bool,
    /// Rather to be given back than to wait (REQ_NOWAIT).
    pub nowait: bool,
    /// The device's cache is to be flushed before (REQ_PREFLUSH).
    pub preflush: bool,
    /// How often dm has cut off its front.
    pub trims: u32,
    pub way: Way,
    /// A request carried it at a D.
    pub walked: bool,
    stage: Option<Stage>,
    /// Q, of the whole bio; `None` if it was not seen.
    pub queued_ns: Option<u64>,
    pub entered_ns: u64,
    pub inserted_ns: Option<u64>,
    pub issued_ns: u64,
    /// Bytes of this fragment that have not completed.
    pub bytes: u64,
    /// Bytes at Q.
    pub whole_bytes: u64,
    /// First byte of this fragment.
    pub offset: u64,
    /// First byte at Q.
    pub whole_offset: u64,
    /// The process that queued it.
    pub process: ProcessId,
    /// When it began to wait for a free request (S).
    pub slept_ns: Option<u64>,
    /// The request that carried it last.
    pub request: u64,
    /// A front half's parent: pointer and generation.
    pub root: Option<(u64, u32)>,
    /// Fragments that have not ended, this one's own included.
    pub open: u32,
    /// Whom it is charged to.
    pub owner: Owner,
    pub clocks: Option<ClocksOf>,
    /// Native aio that it belongs to.
    pub aio: AioKey,
}

impl Bio {
    pub(super) fn new(generation: u32, device: u16, operation: Operation, event: &Event) -> Self {
        Self {
            generation,
            device,
            home: device,
            operation,
            empty_flush: false,
            nowait: event.flags & flags::NOWAIT != 0,
            preflush: event.flags & flags::PREFLUSH != 0,
            trims: 0,
            way: Way::Unknown,
            walked: false,
            stage: Some(Stage::Queued),
            queued_ns: Some(event.ts_ns),
            entered_ns: 0,
            inserted_ns: None,
            issued_ns: 0,
            bytes: event.bytes,
            whole_bytes: event.bytes,
            offset: event.offset,
            whole_offset: event.offset,
            process: ProcessId::default(),
            slept_ns: None,
            request: 0,
            root: None,
            open: 1,
            owner: Owner::Thread(event.tid),
            clocks: None,
            aio: AioKey::of_direct_io(event),
        }
    }

    /// A bio that is first met in a request at D: in flight before the recording, or its Q was lost.
    pub(super) fn unseen(
        generation: u32,
        device: u16,
        operation: Operation,
        event: &Event,
        bytes: u64,
    ) -> Self {
        Self {
            queued_ns: None,
            bytes,
            aio: AioKey::default(),
            ..Self::new(generation, device, operation, event)
        }
    }

    /// Generation of the bio that it is, or is a fragment of.
    pub(super) fn whole(&self) -> u32 {
        self.root
            .map_or(self.generation, |(_, generation)| generation)
    }

    /// The time of Q, if Q was on this very device.
    #[inline]
    pub(super) fn queued_here(&self, device: u16) -> Option<u64> {
        self.queued_ns.filter(|_| self.home == device)
    }

    /// A device without requests has no queue to wait in: its bios are at the device from Q on.
    pub(super) fn skip_queue(&mut self) {
        self.stage = Some(Stage::Issued);
    }

    pub(super) fn enter_queue<O: Observer>(&self, ts_ns: u64, lent: &mut Lent<'_, O>) {
        match self.stage {
            Some(Stage::Queued) => {
                for_clocks(self.clocks, ts_ns, lent, |stages| stages.queued += 1)
            }
            Some(Stage::Issued) => {
                for_clocks(self.clocks, ts_ns, lent, |stages| stages.issued += 1)
            }
            None => {}
        }
    }

    /// First D: from the queue to the device.
    #[inline]
    pub(super) fn reach_device<O: Observer>(&mut self, ts_ns: u64, lent: &mut Lent<'_, O>) {
        if self.stage == Some(Stage::Queued) {
            self.stage = Some(Stage::Issued);
            for_clocks(self.clocks, ts_ns, lent, |stages| {
                stages.queued = stages.queued.saturating_sub(1);
                stages.issued += 1;
            });
        }
    }

    /// It ended, or its end was missed.
    #[inline]
    pub(super) fn leave<O: Observer>(&self, ts_ns: u64, lent: &mut Lent<'_, O>) {
        match self.stage {
            Some(Stage::Queued) => {
                for_clocks(self.clocks, ts_ns, lent, |stages| {
                    stages.queued = stages.queued.saturating_sub(1)
                });
            }
            Some(Stage::Issued) => {
                for_clocks(self.clocks, ts_ns, lent, |stages| {
                    stages.issued = stages.issued.saturating_sub(1)
                });
            }
            None => {}
        }
    }

    /// Adds the times between the steps of the last fragment of a bio.
    fn add_way(&self, queued_ns: u64, completed_ns: u64, path: &mut Path) {
        // Stamps of damaged recordings can leap over all of time, again and again.
        let add = |sum: &mut u64, from_ns: u64, to_ns: u64| {
            *sum = sum.saturating_add(to_ns.saturating_sub(from_ns));
        };
        let (entered_ns, issued_ns) = (self.entered_ns, self.issued_ns);
        match (self.way, self.inserted_ns) {
            (Way::Got, Some(inserted_ns)) => {
                add(&mut path.q2g, queued_ns, entered_ns);
                add(&mut path.g2i, entered_ns, inserted_ns);
                add(&mut path.i2d, inserted_ns, issued_ns);
            }
            (Way::Got, None) => {
                add(&mut path.q2g, queued_ns, entered_ns);
                add(&mut path.g2d, entered_ns, issued_ns);
            }
            (Way::Merged, _) => {
                add(&mut path.q2m, queued_ns, entered_ns);
                add(&mut path.m2d, entered_ns, issued_ns);
            }
            (Way::Unknown, _) => add(&mut path.q2d, queued_ns, issued_ns),
        }
        add(&mut path.d2c, issued_ns, completed_ns);
        add(&mut path.q2c, queued_ns, completed_ns);
    }

    /// The way of this fragment with the request that ended it; `None` without its Q.
    fn io(&self, by: &RequestSpan) -> Option<Io> {
        let step = |ts_ns: u64, offset: u64, bytes: u64| Step {
            ts_ns,
            sector: offset / 512,
            sectors: bytes / 512,
        };
        let entered = step(self.entered_ns, self.offset, self.bytes);
        let inserted = self.inserted_ns.map(|ts_ns| Step { ts_ns, ..entered });
        Some(Io {
            dev: by.dev,
            queued: step(self.queued_ns?, self.whole_offset, self.whole_bytes),
            got: (self.way == Way::Got).then_some(entered),
            inserted,
            merged: (self.way == Way::Merged).then_some(entered),
            issued: step(self.issued_ns, by.offset, by.bytes),
            completed: step(by.completed_ns, by.offset, by.bytes),
        })
    }

    /// The tail of a split bio ended, the bio itself waits for its other fragments.
    fn leave_tail<O: Observer>(&mut self, ts_ns: u64, lent: &mut Lent<'_, O>) {
        self.leave(ts_ns, lent);
        self.stage = None;
    }
}

/// Lets the clocks run for a change of what is in flight.
#[inline]
pub(super) fn for_clocks<O: Observer>(
    clocks: Option<ClocksOf>,
    ts_ns: u64,
    lent: &mut Lent<'_, O>,
    change: impl Fn(&mut Stages),
) {
    if let Some(clocks) = clocks {
        lent.observer.in_flight(clocks, ts_ns, change);
    }
}

impl BlockLayer {
    /// X: the front half gets a pointer of its own, the parent keeps the tail and gets no second Q.
    #[inline(never)]
    pub(super) fn split<O: Observer>(
        &mut self,
        device: u16,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        let meter = self.meter(device);
        meter.check.splits += 1;
        meter.stats.at_queue.split();
        let parent = self
            .bios
            .get_mut(event.parent_bio())
            .filter(|parent| parent.device == device && event.parent_bio() != event.object);
        let Some(parent) = parent else {
            // dm splits by trimming: the bio itself is the argument, and it lives on.
            let itself = self.bios.get_mut(event.object);
            if let Some(itself) = itself.filter(|bio| bio.device == device) {
                itself.trims = itself.trims.saturating_add(1);
            } else {
                let reason = lent.reasons.at(event.ts_ns);
                self.meter(device).unlinked.count(reason);
                let generation = self.new_generation(device);
                let front = Bio::unseen(
                    generation,
                    device,
                    Operation::of(event.op()),
                    event,
                    event.bytes,
                );
                self.begin_life(
                    event.object,
                    Box::new(Bio {
                        stage: None,
                        ..front
                    }),
                    event.ts_ns,
                    lent,
                );
            }
            return;
        };
        parent.bytes = parent.bytes.saturating_sub(event.bytes);
        parent.offset = event.offset.saturating_add(event.bytes);
        let root = parent
            .root
            .unwrap_or((event.parent_bio(), parent.generation));
        let parent = **parent;
        let generation = self.new_generation(device);
        let front = Bio {
            generation,
            way: Way::Unknown,
            walked: false,
            // No request has carried the parent yet; a device without requests needs none.
            stage: parent.stage,
            bytes: event.bytes,
            offset: event.offset,
            request: 0,
            root: Some(root),
            open: 1,
            ..parent
        };
        if let Some(root) = self.bios.get_mut(root.0) {
            root.open = root.open.saturating_add(1);
        }
        if let Some(spans) = &mut self.spans
            && event.first_page_of_rest() != 0
        {
            spans.split(root.1, parent.offset, event.first_page_of_rest());
        }
        self.begin_life(event.object, Box::new(front), event.ts_ns, lent);
    }

    /// A fragment, carried by a request, has ended. Says whether it was alive.
    pub(super) fn end_fragment<O: Observer>(
        &mut self,
        pointer: u64,
        generation: u32,
        ending: Ending,
        lent: &mut Lent<'_, O>,
    ) -> bool {
        let Some(bio) = self.bios.get_mut(pointer) else {
            return false;
        };
        if bio.generation != generation {
            return false;
        }
        bio.open = bio.open.saturating_sub(1);
        bio.leave_tail(ending.ts_ns, lent);
        if let (Some(spans), Some(by)) = (&mut self.spans, ending.by) {
            spans.carried(bio.whole(), by);
        }
        if let (Some(ios), Some(by)) = (&mut self.machine.ios, ending.by) {
            ios.extend(bio.io(&by));
        }
        if bio.root.is_none() && bio.open > 0 {
            return true;
        }
        let Some(bio) = self.bios.remove(pointer) else {
            return false;
        };
        self.end_life(&bio, ending, lent);
        self.spare_bios.keep(bio);
        true
    }

    /// The life of a fragment is over, and that of its bio where it was the last one.
    fn end_life<O: Observer>(&mut self, bio: &Bio, ending: Ending, lent: &mut Lent<'_, O>) {
        let Some((root_pointer, root_generation)) = bio.root else {
            self.end_bio(bio, bio, ending, lent);
            return;
        };
        let Some(root) = self
            .bios
            .get_mut(root_pointer)
            .filter(|root| root.generation == root_generation)
        else {
            return;
        };
        root.open = root.open.saturating_sub(1);
        if root.open == 0
            && let Some(root) = self.bios.remove(root_pointer)
        {
            self.end_bio(&root, bio, ending, lent);
        }
    }

    /// A whole bio has ended with `last`, its last fragment.
    fn end_bio<O: Observer>(
        &mut self,
        whole: &Bio,
        last: &Bio,
        ending: Ending,
        lent: &mut Lent<'_, O>,
    ) {
        let Ending {
            completed_ns,
            ts_ns,
            ..
        } = ending;
        if let Some(spans) = &mut self.spans {
            spans.ended(whole, last, completed_ns, ts_ns);
        }
        if whole.aio.names_iocb() {
            lent.observer.bio_ended(whole.aio, whole.whole_bytes, ts_ns);
        }
        let here = whole.home == last.device;
        let whose = (whole.operation, whole.process);
        let issued_ns = last.issued_ns;
        let meter = self.meter(last.device);
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
        let home = self.meter(whole.home);
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
}

//! A bio's life, splits included.

use nestrace_abi::flags;
use nestrace_trace::Event;

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
    /// [`Event::flushed_with`] of that C.
    pub flushed_with: u64,
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
    pub(super) fn add_way(&self, queued_ns: u64, completed_ns: u64, path: &mut Path) {
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
    pub(super) fn io(&self, by: &RequestSpan) -> Option<Io> {
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

    /// The front half that a split makes of it.
    pub(super) fn front(self, generation: u32, root: (u64, u32), event: &Event) -> Self {
        Self {
            generation,
            way: Way::Unknown,
            walked: false,
            // No request has carried the parent yet; a device without requests needs none.
            stage: self.stage,
            bytes: event.bytes,
            offset: event.offset,
            request: 0,
            root: Some(root),
            open: 1,
            ..self
        }
    }

    /// One that no clock runs for.
    pub(super) const fn without_clocks(self) -> Self {
        Self {
            stage: None,
            ..self
        }
    }

    /// The tail of a split bio ended, the bio itself waits for its other fragments.
    pub(super) fn leave_tail<O: Observer>(&mut self, ts_ns: u64, lent: &mut Lent<'_, O>) {
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

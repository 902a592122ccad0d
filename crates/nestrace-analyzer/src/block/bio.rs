//! A bio's life, splits included.

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::{Above, BlockLayer};
use crate::aio_key::AioKey;
use crate::device::Operation;
use crate::image::Owner;

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

/// Which clocks of [`crate::overlap`] run for a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClocksOf {
    /// Those of one disk: direct I/O on its image.
    Direct(u32),
    /// Those of one disk: pages of its image.
    Cached(u32),
    /// Those of every disk on the device: metadata and journal.
    FileSystemOn(u32),
}

/// Where a bio is, as far as the clocks care.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queued,
    Issued,
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
    /// The request that carried it last.
    pub request: u64,
    /// A front half's parent: pointer and generation.
    pub root: Option<(u64, u32)>,
    /// Fragments that have not ended, this one's own included.
    pub open: u32,
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
            way: Way::Unknown,
            walked: false,
            stage: Some(Stage::Queued),
            queued_ns: Some(event.ts_ns),
            entered_ns: 0,
            inserted_ns: None,
            issued_ns: 0,
            bytes: event.bytes,
            whole_bytes: event.bytes,
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

    /// The time of Q, if Q was on this very device.
    #[inline]
    pub(super) fn queued_here(&self, device: u16) -> Option<u64> {
        self.queued_ns.filter(|_| self.home == device)
    }

    /// A device without requests has no queue to wait in: its bios are at the device from Q on.
    pub(super) fn skip_queue(&mut self) {
        self.stage = Some(Stage::Issued);
    }

    pub(super) fn enter_queue(&self, ts_ns: u64, above: &mut Above<'_>) {
        match self.stage {
            Some(Stage::Queued) => {
                for_clocks(self.clocks, ts_ns, above, |stages| stages.queued += 1)
            }
            Some(Stage::Issued) => {
                for_clocks(self.clocks, ts_ns, above, |stages| stages.issued += 1)
            }
            None => {}
        }
    }

    /// First D: from the queue to the device.
    #[inline]
    pub(super) fn reach_device(&mut self, ts_ns: u64, above: &mut Above<'_>) {
        if self.stage == Some(Stage::Queued) {
            self.stage = Some(Stage::Issued);
            for_clocks(self.clocks, ts_ns, above, |stages| {
                stages.queued = stages.queued.saturating_sub(1);
                stages.issued += 1;
            });
        }
    }

    /// It ended, or its end was missed.
    #[inline]
    pub(super) fn leave(&self, ts_ns: u64, above: &mut Above<'_>) {
        match self.stage {
            Some(Stage::Queued) => {
                for_clocks(self.clocks, ts_ns, above, |stages| {
                    stages.queued = stages.queued.saturating_sub(1)
                });
            }
            Some(Stage::Issued) => {
                for_clocks(self.clocks, ts_ns, above, |stages| {
                    stages.issued = stages.issued.saturating_sub(1)
                });
            }
            None => {}
        }
    }

    /// The tail of a split bio ended, the bio itself waits for its other fragments.
    fn leave_tail(&mut self, ts_ns: u64, above: &mut Above<'_>) {
        self.leave(ts_ns, above);
        self.stage = None;
    }
}

/// Lets the clocks run for a change of what is in flight.
#[inline]
pub(super) fn for_clocks(
    clocks: Option<ClocksOf>,
    ts_ns: u64,
    above: &mut Above<'_>,
    change: impl Fn(&mut crate::overlap::Stages),
) {
    match clocks {
        None => {}
        Some(ClocksOf::Direct(disk)) => {
            if let Some(activity) = above.activity.get_mut(disk as usize) {
                activity.advance(ts_ns);
                change(&mut activity.direct);
            }
        }
        Some(ClocksOf::Cached(disk)) => {
            if let Some(activity) = above.activity.get_mut(disk as usize) {
                activity.advance(ts_ns);
                change(&mut activity.cached);
            }
        }
        Some(ClocksOf::FileSystemOn(dev)) => {
            for disk in above.images.disks_on(dev) {
                if let Some(activity) = above.activity.get_mut(*disk as usize) {
                    activity.advance(ts_ns);
                    change(&mut activity.file_system);
                }
            }
        }
    }
}

/// Counts a data bio for its image, and says which clocks it lets run.
pub(super) fn clocks_of(owner: Owner, event: &Event, above: &mut Above<'_>) -> Option<ClocksOf> {
    match owner {
        Owner::Image(image) => {
            let first = above.images.queued(image, event);
            let disk = above.images.images.get(image as usize)?.disk;
            let direct = matches!(event.sub, flags::OWNER_DIRECT | flags::OWNER_ANONYMOUS);
            first.then_some(if direct {
                ClocksOf::Direct(disk)
            } else {
                ClocksOf::Cached(disk)
            })
        }
        Owner::FileSystem => (!above.images.disks_on(event.dev).is_empty())
            .then_some(ClocksOf::FileSystemOn(event.dev)),
        Owner::Loop(_) | Owner::Thread(_) => None,
    }
}

impl BlockLayer {
    /// X: the front half gets a pointer of its own, the parent keeps the tail and gets no second Q.
    pub(super) fn split(&mut self, device: u16, event: &Event, above: &mut Above<'_>) {
        self.meter(device).check.splits += 1;
        let parent = self
            .bios
            .get_mut(&event.related)
            .filter(|parent| parent.device == device && event.related != event.object);
        let Some(parent) = parent else {
            // dm splits by trimming: the bio itself is the argument, and it lives on.
            let trims_itself = self
                .bios
                .get(&event.object)
                .is_some_and(|bio| bio.device == device);
            if !trims_itself {
                let reason = above.reasons.at(event.ts_ns);
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
                    Bio {
                        stage: None,
                        ..front
                    },
                    event.ts_ns,
                    above,
                );
            }
            return;
        };
        parent.bytes = parent.bytes.saturating_sub(event.bytes);
        let root = parent.root.unwrap_or((event.related, parent.generation));
        let parent = *parent;
        let generation = self.new_generation(device);
        let front = Bio {
            generation,
            way: Way::Unknown,
            walked: false,
            stage: Some(Stage::Queued),
            bytes: event.bytes,
            request: 0,
            root: Some(root),
            open: 1,
            ..parent
        };
        if let Some(root) = self.bios.get_mut(&root.0) {
            root.open += 1;
        }
        self.begin_life(event.object, front, event.ts_ns, above);
    }

    /// A fragment, carried by a request, has ended: `completed_ns` is the time of the data's C.
    pub(super) fn end_fragment(
        &mut self,
        pointer: u64,
        generation: u32,
        completed_ns: u64,
        ts_ns: u64,
        above: &mut Above<'_>,
    ) {
        let Some(bio) = self
            .bios
            .get_mut(&pointer)
            .filter(|bio| bio.generation == generation)
        else {
            return;
        };
        bio.open = bio.open.saturating_sub(1);
        bio.leave_tail(ts_ns, above);
        let bio = *bio;
        if bio.root.is_none() && bio.open > 0 {
            return;
        }
        self.bios.remove(&pointer);
        let Some((root_pointer, root_generation)) = bio.root else {
            self.end_bio(&bio, &bio, completed_ns, ts_ns, above);
            return;
        };
        let Some(root) = self
            .bios
            .get_mut(&root_pointer)
            .filter(|root| root.generation == root_generation)
        else {
            return;
        };
        root.open = root.open.saturating_sub(1);
        if root.open == 0 {
            let root = *root;
            self.bios.remove(&root_pointer);
            self.end_bio(&root, &bio, completed_ns, ts_ns, above);
        }
    }

    /// A whole bio has ended with `last`, its last fragment.
    fn end_bio(
        &mut self,
        whole: &Bio,
        last: &Bio,
        completed_ns: u64,
        ts_ns: u64,
        above: &mut Above<'_>,
    ) {
        if whole.aio.names_iocb() {
            above.files.bio_ended(
                whole.aio,
                whole.whole_bytes,
                ts_ns,
                above.images,
                above.activity,
            );
        }
        let here = whole.home == last.device;
        let meter = self.meter(last.device);
        if let Some(parts) = meter.parts(whole.operation) {
            parts
                .d2c
                .record(completed_ns.saturating_sub(last.issued_ns));
            if here && let Some(queued_ns) = whole.queued_ns {
                parts.q2c.record(completed_ns.saturating_sub(queued_ns));
                match (last.way, last.inserted_ns) {
                    (Way::Got, Some(inserted_ns)) => {
                        parts.i2d.record(last.issued_ns.saturating_sub(inserted_ns))
                    }
                    (Way::Got, None) => parts
                        .g2d
                        .record(last.issued_ns.saturating_sub(last.entered_ns)),
                    (Way::Merged, _) => parts
                        .m2d
                        .record(last.issued_ns.saturating_sub(last.entered_ns)),
                    (Way::Unknown, _) => {}
                }
            }
        }
        if whole.queued_ns.is_none() {
            return;
        }
        let home = self.meter(whole.home);
        home.check.ended += 1;
        if !here
            && let (Some(parts), Some(queued_ns)) = (home.parts(whole.operation), whole.queued_ns)
        {
            parts.q2c.record(completed_ns.saturating_sub(queued_ns));
        }
    }

    /// A bio that a device with requests gave back before it had one: it was to be done without
    /// waiting (REQ_NOWAIT) and would have had to wait or to be split. io_uring has a worker queue it
    /// again, so only that one counts, as in the kernel's own counts.
    fn refused(&mut self, bio: &Bio, above: &mut Above<'_>) {
        let home = self.meter(bio.home);
        let check = &mut home.check;
        check.refused += 1;
        check.queued = check.queued.saturating_sub(1);
        check.generations = check.generations.saturating_sub(1);
        if bio.operation == Operation::Other {
            return;
        }
        home.queued = home.queued.saturating_sub(1);
        if let (Owner::Image(image), Some(clocks)) = (bio.owner, bio.clocks) {
            let paged = matches!(clocks, ClocksOf::Cached(_));
            above
                .images
                .refused(image, bio.operation, bio.whole_bytes, paged);
        }
    }

    /// The end of a bio on a device without requests, or of one that failed before it had one.
    pub(super) fn bio_complete(&mut self, device: u16, event: &Event, above: &mut Above<'_>) {
        let Some(bio) = self.bios.remove(&event.object) else {
            let reason = above.reasons.at(event.ts_ns);
            self.meter(device).unlinked.count(reason);
            return;
        };
        bio.leave(event.ts_ns, above);
        let Some(queued_ns) = bio.queued_ns else {
            return;
        };
        if bio.empty_flush {
            let waiting = &mut self.flushes[usize::from(bio.home)];
            if let Some(place) = waiting.iter().position(|queued| *queued == queued_ns) {
                waiting.remove(place);
            }
            let home = self.meter(bio.home);
            home.check.empty_flushes_ended += 1;
            home.flush.record(event.ts_ns.saturating_sub(queued_ns));
            return;
        }
        let failed_early =
            event.aux != 0 && bio.way == Way::Unknown && !above.images.is_stacked(event.dev);
        if failed_early && bio.nowait {
            self.refused(&bio, above);
            return;
        }
        if bio.aio.names_iocb() {
            above.files.bio_ended(
                bio.aio,
                bio.whole_bytes,
                event.ts_ns,
                above.images,
                above.activity,
            );
        }
        if let Some(request) = self.requests.get_mut(&bio.request) {
            request.forget(event.object, bio.generation);
        }
        let home = self.meter(bio.home);
        home.check.ended += 1;
        // A device that has shown no bio done without a request is taken for one that has requests:
        // a bio that fails before it has one completes none, as in the kernel's own counts.
        if bio.way != Way::Unknown || failed_early && !home.bio_based {
            return;
        }
        home.bio_based = true;
        home.request_completed(bio.operation);
        home.transferred(bio.operation, bio.whole_bytes);
        let spent = event.ts_ns.saturating_sub(queued_ns);
        if let Some(parts) = home.parts(bio.operation) {
            parts.q2c.record(spent);
        }
        home.users
            .charge(bio.owner, bio.whole_bytes, spent, above.threads);
    }
}

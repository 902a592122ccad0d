//! Requests up to the device: I, D and the bios that D's walk found, R.

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::bio::{Bio, ClocksOf, Way, for_clocks};
use super::{Above, BlockLayer};
use crate::device::{DeviceMeter, Operation};
use crate::overlap::Stages;

/// A bio in a request: pointer and generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    pub pointer: u64,
    pub generation: u32,
}

/// A request from I or D to its last C.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub device: u16,
    pub operation: Operation,
    pub flush: bool,
    /// Between D and C.
    pub at_device: bool,
    /// Its D was the data part of a flush sequence.
    pub in_sequence: bool,
    /// Put back by the driver, so that the next D is no new request.
    pub requeued: bool,
    /// The data part of a flush sequence has completed at this time; the last C is still to come.
    pub sequence_data_ns: Option<u64>,
    pub inserted_ns: Option<u64>,
    pub issued_ns: u64,
    pub bytes: u64,
    /// Most requests carry one bio: it needs no allocation.
    pub first: Option<Carried>,
    pub others: Vec<Carried>,
    /// Bytes completed that no ended bio accounts for.
    pub covered: u64,
}

impl Request {
    pub(super) fn new(device: u16, operation: Operation) -> Self {
        Self {
            device,
            operation,
            flush: false,
            at_device: false,
            in_sequence: false,
            requeued: false,
            sequence_data_ns: None,
            inserted_ns: None,
            issued_ns: 0,
            bytes: 0,
            first: None,
            others: Vec::new(),
            covered: 0,
        }
    }

    /// The pointer began another life: whatever ends now is not this request's bio. Says whether it
    /// was.
    pub(super) fn forget(&mut self, pointer: u64, generation: u32) -> bool {
        let gone = Carried {
            pointer,
            generation,
        };
        let carried = self.others.len();
        self.others.retain(|carried| *carried != gone);
        let was_first = self.first == Some(gone);
        if was_first {
            self.first = None;
        }
        was_first || self.others.len() < carried
    }

    fn carry(&mut self, carried: Carried) {
        if self.first.is_none() && self.others.is_empty() {
            self.first = Some(carried);
        } else {
            self.others.push(carried);
        }
    }
}

/// A flush at the device holds up whoever waits for a sync.
pub(super) fn flush_clocks(
    dev: u32,
    ts_ns: u64,
    above: &mut Above<'_>,
    change: impl Fn(&mut Stages),
) {
    if !above.images.disks_on(dev).is_empty() {
        for_clocks(Some(ClocksOf::FileSystemOn(dev)), ts_ns, above, change);
    }
}

impl BlockLayer {
    pub(super) fn insert(&mut self, device: u16, event: &Event) {
        let request = self
            .requests
            .entry(event.object)
            .or_insert_with(|| Request::new(device, Operation::of(event.op())));
        // A requeued request is inserted again: its bios entered the scheduler the first time. One
        // that still seems to be at the device had its completion lost.
        if request.at_device && !request.requeued {
            return;
        }
        request.inserted_ns.get_or_insert(event.ts_ns);
    }

    pub(super) fn issue(&mut self, device: u16, event: &Event, above: &mut Above<'_>) {
        let operation = Operation::of(event.op());
        let mut request = self
            .requests
            .remove(&event.object)
            .unwrap_or_else(|| Request::new(device, operation));
        if request.at_device {
            request = self.issued_again(request, device, event, above);
        }
        // The kernel counts a flush once, however often the driver puts it back.
        let again = request.requeued && request.issued_ns != 0;
        let meter = self.meter(device);
        meter.depth.enter(event.ts_ns);
        request.device = device;
        request.operation = operation;
        request.flush = event.op() == flags::OP_FLUSH;
        request.at_device = true;
        request.in_sequence = event.flags & flags::FLUSH_SEQ != 0;
        request.issued_ns = event.ts_ns;
        request.bytes = event.bytes;
        request.first = None;
        request.others.clear();
        request.covered = 0;
        if request.flush {
            if !again {
                meter.device_flushes += 1;
                flush_clocks(event.dev, event.ts_ns, above, |stages| stages.issued += 1);
            }
        } else if operation != Operation::Other && event.bytes > 0 {
            meter.issued += 1;
            meter.readahead += u64::from(event.flags & flags::RAHEAD != 0);
            meter.meta += u64::from(event.flags & flags::META != 0);
            meter.seek_d.io(event.offset, event.bytes);
            if event.related != 0 {
                let alone = event.sub == 0;
                self.walk(&mut request, event.related, event, alone, above);
            }
        }
        request.requeued = false;
        self.requests.insert(event.object, request);
    }

    /// D of a request that is at the device already: either its R was lost, and it carries the same
    /// bio as before, or its C was, and it is another request at the same address.
    fn issued_again(
        &mut self,
        old: Request,
        device: u16,
        event: &Event,
        above: &mut Above<'_>,
    ) -> Request {
        self.completion_missed(&old, event.ts_ns, above);
        self.meter(old.device).check.reissued_while_live += 1;
        let same = old.first.is_some_and(|first| {
            first.pointer == event.related
                && self
                    .bios
                    .get(&first.pointer)
                    .is_some_and(|bio| bio.generation == first.generation)
        });
        if same {
            Request {
                requeued: true,
                ..old
            }
        } else {
            Request::new(device, Operation::of(event.op()))
        }
    }

    /// Further bios of a request.
    pub(super) fn link(&mut self, _device: u16, event: &Event, above: &mut Above<'_>) {
        let Some(mut request) = self.requests.remove(&event.object) else {
            return;
        };
        for pointer in [event.related, event.offset, event.bytes] {
            if pointer != 0 {
                self.walk(&mut request, pointer, event, false, above);
            }
        }
        self.requests.insert(event.object, request);
    }

    /// One bio of the request's list at D.
    fn walk(
        &mut self,
        request: &mut Request,
        pointer: u64,
        event: &Event,
        alone: bool,
        above: &mut Above<'_>,
    ) {
        let device = request.device;
        let live = self
            .bios
            .get(&pointer)
            .is_some_and(|bio| bio.device == device && !bio.empty_flush);
        if !live {
            let reason = above.reasons.at(event.ts_ns);
            self.meter(device).unlinked.count(reason);
            let generation = self.new_generation(device);
            let bytes = if alone { request.bytes } else { u64::MAX };
            let bio = Bio::unseen(generation, device, request.operation, event, bytes);
            self.begin_life(pointer, bio, event.ts_ns, above);
        }
        let Some(bio) = self.bios.get_mut(&pointer) else {
            return;
        };
        bio.issued_ns = request.issued_ns;
        bio.request = event.object;
        request.carry(Carried {
            pointer,
            generation: bio.generation,
        });
        if bio.walked {
            return;
        }
        bio.walked = true;
        // A bio that was merged after the insert, or whose request swallowed another, was not
        // inserted at that time: for it the scheduler's event does not exist.
        bio.inserted_ns = request
            .inserted_ns
            .filter(|inserted| bio.way == Way::Got && *inserted >= bio.entered_ns);
        bio.reach_device(request.issued_ns, above);
        let bio = *bio;
        let meter = self.meter(device);
        meter.check.walked_at_issue += 1;
        if bio.way == Way::Unknown && bio.operation == Operation::Discard && bio.queued_ns.is_some()
        {
            meter.check.untraced_merges += 1;
        }
        if let Some(inserted_ns) = bio.inserted_ns
            && let Some(parts) = meter.parts(bio.operation)
        {
            parts.g2i.record(inserted_ns - bio.entered_ns);
        }
    }

    pub(super) fn requeue(&mut self, device: u16, event: &Event) {
        let meter = self.meter(device);
        meter.requeues += 1;
        let Some(request) = self.requests.get_mut(&event.object) else {
            return;
        };
        if request.at_device {
            leave_device(&mut self.devices, request.device, event.ts_ns);
        }
        request.at_device = false;
        request.requeued = true;
        // What a partial completion took from its first bio is not at the next D's.
        let covered = std::mem::take(&mut request.covered);
        let first = request.first.or(request.others.first().copied());
        if covered > 0
            && let Some(bio) = first.and_then(|first| self.bios.get_mut(&first.pointer))
        {
            bio.bytes = bio.bytes.saturating_sub(covered);
        }
    }
}

fn leave_device(devices: &mut [DeviceMeter], device: u16, ts_ns: u64) {
    if let Some(meter) = devices.get_mut(usize::from(device)) {
        meter.depth.leave(ts_ns);
    }
}

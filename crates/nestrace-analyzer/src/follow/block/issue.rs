//! Requests up to the device: I, D and the bios that D's walk found.

use std::mem;

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::BlockLayer;
use super::bio::{Bio, Way};
use super::observer::{Lent, Observer};
use crate::measure::at_device::Coming;
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::span::RequestSpan;
use crate::model::spare::MAX_LISTED;

/// Bios of one request: the probes walk no further either (`MAX_BIOS` in `ebpf/src/block.rs`).
pub(crate) const MAX_BIOS: u32 = 1024;

/// A bio in a request: pointer and generation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Carried {
    pub pointer: u64,
    pub generation: u32,
}

/// A request at its first D: a driver may put it back and get it again.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FirstIssue {
    pub ts_ns: u64,
    pub offset: u64,
    pub bytes: u64,
    /// Page identity of its first byte; 0 if unknown.
    pub page: u64,
}

/// What a processor issued last.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastIssue {
    device: u16,
    /// Pointer of the request.
    request: u64,
    ts_ns: u64,
}

/// A request from I or D to its last C.
#[derive(Clone, Debug)]
pub(super) struct Request {
    pub device: u16,
    pub operation: Operation,
    pub flush: bool,
    /// Between D and C.
    pub at_device: bool,
    /// Its last D, at its device and of the machine.
    pub came: Coming,
    pub came_of_machine: Coming,
    /// Its D was the data part of a flush sequence.
    pub in_sequence: bool,
    /// Put back by the driver, so that the next D is no new request.
    pub requeued: bool,
    /// Events were lost after its D: the next C at its address may be that of another.
    pub interrupted: bool,
    /// The data part of a flush sequence has completed at this time; the last C is still to come.
    pub sequence_data_ns: Option<u64>,
    pub inserted_ns: Option<u64>,
    pub issued_ns: u64,
    pub first_issue: FirstIssue,
    /// Processor of its only D, unless it was issued together with others.
    pub lane: u32,
    /// Thread of its first D.
    pub tid: u32,
    /// Processor of its last C.
    pub end_cpu: u16,
    /// Number that no other request has; 0 before D.
    pub serial: u64,
    /// Bios that it carried at its last D.
    pub n_bios: u32,
    pub bytes: u64,
    /// Where its next C begins: at its last D's first byte, then behind what has completed since.
    pub next_offset: u64,
    /// Where the data of its last D end.
    pub end_offset: u64,
    /// Whom the first bio of its last D is charged to.
    pub owner: Owner,
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
            came: Coming::default(),
            came_of_machine: Coming::default(),
            in_sequence: false,
            requeued: false,
            interrupted: false,
            sequence_data_ns: None,
            inserted_ns: None,
            issued_ns: 0,
            first_issue: FirstIssue::default(),
            lane: RequestSpan::ANY_LANE,
            tid: 0,
            end_cpu: 0,
            serial: 0,
            n_bios: 0,
            bytes: 0,
            next_offset: 0,
            end_offset: 0,
            owner: Owner::Thread(0),
            first: None,
            others: Vec::new(),
            covered: 0,
        }
    }

    /// Makes one that has ended a new one, with the memory of its list.
    pub(super) fn renew(&mut self, device: u16, operation: Operation) {
        let mut others = mem::take(&mut self.others);
        others.clear();
        *self = Self {
            others,
            ..Self::new(device, operation)
        };
    }

    /// The memory of one that has ended, without what few need.
    pub(super) fn into_memory(mut self: Box<Self>) -> Box<Self> {
        self.others.clear();
        self.others.shrink_to(MAX_LISTED);
        self
    }

    /// Its last C is still to come, as far as is known.
    pub(super) fn awaits_end(&self) -> bool {
        self.at_device || self.interrupted || self.sequence_data_ns.is_some()
    }

    /// Bytes that have not completed.
    pub(super) fn bytes_left(&self) -> u64 {
        if self.has_data() && self.sequence_data_ns.is_none() {
            self.end_offset.saturating_sub(self.next_offset)
        } else {
            0
        }
    }

    /// Entries of the list of bios that it carries, beyond the first.
    pub(super) fn n_others(&self) -> usize {
        self.others.len()
    }

    /// Its last D, else its insert.
    pub(super) fn last_seen_ns(&self) -> u64 {
        self.issued_ns.max(self.inserted_ns.unwrap_or(0))
    }

    /// It moves data (or discards some), so that it counts as one.
    pub(super) fn has_data(&self) -> bool {
        !self.flush && self.operation != Operation::Other && self.bytes > 0
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

    /// Whether the bio at this address is in it.
    pub(super) fn carries(&self, pointer: u64) -> bool {
        let mut carried = self.first.iter().chain(&self.others);
        carried.any(|bio| bio.pointer == pointer)
    }

    fn carry(&mut self, carried: Carried) {
        if self.first.is_none() && self.others.is_empty() {
            self.first = Some(carried);
        } else {
            self.others.push(carried);
        }
    }

    /// The interval from its first D to the C that ended it.
    pub(super) fn span(&self, dev: u32, pointer: u64, completed_ns: u64) -> RequestSpan {
        RequestSpan {
            serial: self.serial,
            dev,
            operation: self.operation,
            flush: self.flush,
            offset: self.first_issue.offset,
            bytes: self.first_issue.bytes,
            issued_ns: self.first_issue.ts_ns,
            completed_ns,
            pointer,
            bios: self.n_bios,
            lane: self.lane,
            page: self.first_issue.page,
            tid: self.tid,
            end_cpu: self.end_cpu,
        }
    }
}

impl BlockLayer {
    #[inline(never)]
    pub(super) fn insert<O: Observer>(
        &mut self,
        device: u16,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        let mut request =
            self.requests
                .inserted_or_put_back(device, event, &mut self.gathered, lent);
        // A requeued request is inserted again: its bios entered the scheduler the first time. One
        // that still seems to be at the device, for these very data, had its R or its completion lost.
        if !request.awaits_end() || request.requeued {
            request.inserted_ns.get_or_insert(event.ts_ns);
        }
        self.requests.live.insert(event.object, request);
    }

    #[inline(never)]
    pub(super) fn issue<O: Observer>(
        &mut self,
        device: u16,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        let operation = Operation::of(event.op());
        let mut request = match self.requests.live.remove(event.object) {
            None => self.requests.renewed(device, operation),
            Some(known) if known.awaits_end() => self.requests.issued_again(
                known,
                device,
                event,
                (&mut self.bios, &mut self.gathered),
                lent,
            ),
            Some(mut known) => {
                if known.is_elsewhere(device, event) {
                    known.renew(device, operation);
                }
                known
            }
        };
        // The kernel counts a flush once, however often the driver puts it back.
        let again = request.requeued && request.issued_ns != 0;
        request.lane = if again || self.is_of_a_batch(device, &request, event) {
            RequestSpan::ANY_LANE
        } else {
            u32::from(event.cpu)
        };
        if !again {
            request.tid = event.tid;
            request.serial = self.gathered.new_serial();
            request.first_issue = FirstIssue {
                ts_ns: event.ts_ns,
                offset: event.offset,
                bytes: event.bytes,
                page: 0,
            };
        }
        let meter = self.gathered.meter(device);
        request.device = device;
        request.operation = operation;
        request.flush = event.op() == flags::OP_FLUSH;
        request.at_device = true;
        request.in_sequence = event.flags & flags::FLUSH_SEQ != 0;
        request.issued_ns = event.ts_ns;
        request.bytes = event.bytes;
        request.next_offset = event.offset;
        request.end_offset = event.offset.saturating_add(event.bytes);
        request.first = None;
        request.others.clear();
        request.n_bios = 0;
        request.owner = Owner::Thread(0);
        request.covered = 0;
        let has_data = request.has_data();
        request.came = meter.comes(event.ts_ns, has_data);
        request.came_of_machine = self
            .gathered
            .machine
            .comes(request.came, event.ts_ns, has_data);
        let meter = self.gathered.meter(device);
        if request.flush {
            if !again {
                meter.device_flushes += 1;
                lent.observer
                    .flushes_in_flight(event.dev, event.ts_ns, |stages| stages.issued += 1);
            }
        } else if operation != Operation::Other && event.bytes > 0 {
            meter.issued += 1;
            meter.readahead += u64::from(event.flags & flags::RAHEAD != 0);
            meter.meta += u64::from(event.flags & flags::META != 0);
            let is_seek = meter.seek_d.io(event.offset, event.bytes);
            meter.stats.issued(event, is_seek);
            let place = (event.offset, event.bytes);
            meter.figures.issued(event.ts_ns, operation, place, is_seek);
            if event.first_bio() != 0 {
                let alone = event.sub == 0;
                self.walk(&mut request, event.first_bio(), event, alone, lent);
            }
        }
        request.requeued = false;
        self.requests.live.insert(event.object, request);
    }

    /// Whether a request waited in a thread's plug together with the one that its processor issued just
    /// before. Nothing is known of the order of such requests, so that one loses its virtqueue, too.
    ///
    /// A plug without a scheduler goes to the driver as a list (`queue_rqs`). virtio-blk first starts each
    /// request of it, which is D, and then puts them on its queue, on some kernels in the opposite order
    /// (seen in a guest with 6.1).
    #[inline(never)]
    fn is_of_a_batch(&mut self, device: u16, request: &Request, event: &Event) -> bool {
        if self.gathered.spans.is_none() || request.inserted_ns.is_some() || event.first_bio() == 0
        {
            return false;
        }
        let issued = LastIssue {
            device,
            request: event.object,
            ts_ns: event.ts_ns,
        };
        let last = self.requests.last_issues.insert(event.cpu, issued);
        let Some(last) = last.filter(|last| last.device == device) else {
            return false;
        };
        let bio = self.bios.live.get(event.first_bio());
        let waited = bio.is_none_or(|bio| bio.entered_ns <= last.ts_ns);
        if waited && let Some(last) = self.requests.live.get_mut(last.request) {
            last.lane = RequestSpan::ANY_LANE;
        }
        waited
    }

    /// Further bios of a request.
    #[inline(never)]
    pub(super) fn link<O: Observer>(
        &mut self,
        _device: u16,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        let Some(mut request) = self.requests.live.remove(event.object) else {
            return;
        };
        for pointer in event.further_bios() {
            if pointer != 0 {
                self.walk(&mut request, pointer, event, false, lent);
            }
        }
        self.requests.live.insert(event.object, request);
    }

    /// One bio of the request's list at D.
    fn walk<O: Observer>(
        &mut self,
        request: &mut Request,
        pointer: u64,
        event: &Event,
        alone: bool,
        lent: &mut Lent<'_, O>,
    ) {
        let device = request.device;
        if request.n_bios >= MAX_BIOS {
            let reason = lent.reasons.at(event.ts_ns);
            return self.gathered.meter(device).unlinked.count(reason);
        }
        let is_live = |bio: &&mut Box<Bio>| bio.device == device && !bio.empty_flush;
        let bio = match self.bios.live.get_mut(pointer).filter(is_live) {
            Some(bio) => bio,
            None => {
                let reason = lent.reasons.at(event.ts_ns);
                self.gathered.meter(device).unlinked.count(reason);
                let generation = self.bios.new_generation(device, &mut self.gathered);
                let bytes = if alone { request.bytes } else { u64::MAX };
                let bio = Bio::unseen(generation, device, request.operation, event, bytes);
                self.begin_life(pointer, Box::new(bio), event.ts_ns, lent);
                let Some(bio) = self.bios.live.get_mut(pointer) else {
                    return;
                };
                bio
            }
        };
        bio.issued_ns = request.issued_ns;
        bio.request = event.object;
        if request.n_bios == 0 {
            request.owner = bio.owner;
            if let Some(spans) = &self.gathered.spans
                && request.first_issue.page == 0
            {
                let offset = request.first_issue.offset;
                request.first_issue.page = spans.page_at(bio.whole(), offset);
            }
        }
        request.n_bios += 1;
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
        bio.reach_device(request.issued_ns, lent);
        if let Some(spans) = &mut self.gathered.spans
            && request.in_sequence
        {
            spans.data_of_sequence_issued(device, bio, event.flushed_with());
        }
        let whose = (bio.operation, bio.process);
        let untraced_merge = bio.way == Way::Unknown
            && bio.operation == Operation::Discard
            && bio.queued_ns.is_some();
        // D takes one from those that wait, the merges took the others.
        let lost_merge =
            bio.way == Way::Unknown && bio.queued_here(device).is_some() && request.n_bios > 1;
        let waited_ns = bio
            .inserted_ns
            .map(|inserted_ns| inserted_ns - bio.entered_ns);
        let meter = self.gathered.meter(device);
        meter.check.walked_at_issue += 1;
        if untraced_merge {
            meter.check.untraced_merges += 1;
            meter.figures.merged(request.issued_ns);
            if request.n_bios > 1 {
                meter.stats.merged(whose.0);
            }
        } else if lost_merge {
            meter.stats.at_queue.leaves();
        }
        if let Some(waited_ns) = waited_ns {
            meter.record(whose, |parts| &mut parts.g2i, waited_ns);
        }
    }
}

//! Completions: which of them the kernel counts, and which bios they end.
//!
//! A bio with data and a flush gives up to three requests: a flush, the data (its C has
//! FLUSH_SEQ), perhaps a flush again, and at last a C of 0 bytes without that flag, which is the
//! one that the kernel's statistics count and that ends the bio. A zero-length flush has only
//! such a last C, of a request that was never issued.

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::bio::Ending;
use super::issue::{Carried, Request};
use super::observer::{Lent, Observer};
use super::{BlockLayer, EmptyFlush};
use crate::model::operation::Operation;

impl BlockLayer {
    #[inline(never)]
    pub(super) fn complete<O: Observer>(
        &mut self,
        device: u16,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        let operation = Operation::of(event.op());
        let request = self.requests.remove(event.object);
        let request = request.and_then(|request| self.ended_by(request, event, lent));
        if event.op() == flags::OP_FLUSH {
            return self.device_flush_done(device, request, event, lent);
        }
        if self.named_flush(device, event).is_some() {
            if let Some(request) = request.filter(|request| request.awaits_end()) {
                // Its own last C was not seen; its address serves a flush by now.
                self.completion_missed(&request, event.ts_ns, lent);
            }
            return self.empty_flush_done(device, event, lent);
        }
        if operation == Operation::Other {
            if let Some(request) = request {
                self.left_device(&request, event.ts_ns, lent);
            }
            return;
        }
        let in_sequence = event.flags & flags::FLUSH_SEQ != 0;
        let last = event.remaining_bytes() == 0;
        let meter = self.meter(device);
        meter.transferred(operation, event.bytes);
        meter.check.counted_completions += u64::from(last && !in_sequence);
        if event.bytes > 0 {
            meter.stats.transferred(event.ts_ns, operation, event.bytes);
            self.machine.transferred(device, event, lent.threads);
        }
        match request {
            Some(request) if request.sequence_data_ns.is_some() => {
                self.sequence_done(device, request, event, lent)
            }
            Some(request) if request.awaits_end() && event.bytes == 0 && last && !in_sequence => {
                self.end_without_data(device, &request, event, lent)
            }
            Some(request) if request.at_device => self.data_done(request, in_sequence, event, lent),
            _ if event.bytes == 0 && last && !in_sequence => {
                self.empty_flush_done(device, event, lent)
            }
            _ => self.completed_unseen(device, in_sequence, event, lent),
        }
    }

    /// The request that a C ends. `None` where that is another one at the same address, whose D was not seen:
    /// its data lie elsewhere, those of the first have come, or events were lost since the D that was seen, so
    /// that they may.
    fn ended_by<O: Observer>(
        &mut self,
        mut request: Box<Request>,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) -> Option<Box<Request>> {
        if event.bytes == 0 || !request.has_data() || !request.awaits_end() {
            return Some(request);
        }
        let is_another = request.sequence_data_ns.is_some()
            || Operation::of(event.op()) != request.operation
            || event.offset != request.next_offset && !self.part_missed(&mut request, event);
        if is_another {
            self.completion_missed(&request, event.ts_ns, lent);
            return None;
        }
        (!request.interrupted).then_some(request)
    }

    /// The C of a part of a request was not seen, where a later part of it comes: what is left behind that one
    /// ends where the request does. The bios that lay in that part have no end. Says whether it is so.
    #[inline(never)]
    fn part_missed(&mut self, request: &mut Request, event: &Event) -> bool {
        let end = event.offset.saturating_add(event.bytes);
        let is_later = event.offset > request.next_offset
            && end.saturating_add(event.remaining_bytes()) == request.end_offset;
        if !is_later {
            return false;
        }
        let missed = event.offset - request.next_offset;
        self.meter(request.device)
            .transfer_missed(request.operation, missed);
        request.next_offset = event.offset;
        if !request.in_sequence {
            request.covered = request.covered.saturating_add(missed);
            self.take_covered(request);
        }
        true
    }

    /// Data arrived: bios end in order as far as the bytes go, all of them with the last C.
    fn data_done<O: Observer>(
        &mut self,
        mut request: Box<Request>,
        in_sequence: bool,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        let last = event.remaining_bytes() == 0;
        request.next_offset = request.next_offset.saturating_add(event.bytes);
        if last {
            self.left_device(&request, event.ts_ns, lent);
            self.charge(&request, event.ts_ns, lent);
        }
        if in_sequence {
            if last {
                self.hand_on(&request, event.object, event.ts_ns);
                request.at_device = false;
                request.sequence_data_ns = Some(event.ts_ns);
            }
            self.requests.insert(event.object, request);
            return;
        }
        request.covered = request.covered.saturating_add(event.bytes);
        if !last {
            self.end_covered(&mut request, event, lent);
            self.requests.insert(event.object, request);
            return;
        }
        self.meter(request.device)
            .request_completed(request.operation);
        self.hand_on(&request, event.object, event.ts_ns);
        let ending = self.ending(&request, event, event.ts_ns);
        self.end_all(&request, ending, lent);
        self.spare_requests.keep(request.into_memory());
    }

    /// A C of 0 bytes where data was expected: the C of that data was lost. Of a flush sequence
    /// this is the last one; else the address serves a zero-length flush by now.
    #[inline(never)]
    fn end_without_data<O: Observer>(
        &mut self,
        device: u16,
        request: &Request,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        self.transfer_missed(request, event.ts_ns, lent);
        if request.in_sequence && !ends_another(request, event) {
            self.meter(device).request_completed(request.operation);
            let ending = self.ending(request, event, event.ts_ns);
            self.end_all(request, ending, lent);
        } else {
            self.meter(request.device)
                .completion_missed(request.operation);
            self.empty_flush_done(device, event, lent);
        }
    }

    /// A request has left the device without being seen to.
    #[inline(never)]
    pub(super) fn completion_missed<O: Observer>(
        &mut self,
        request: &Request,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) {
        self.transfer_missed(request, ts_ns, lent);
        if request.has_data() {
            self.meter(request.device)
                .completion_missed(request.operation);
        }
    }

    #[inline(never)]
    fn transfer_missed<O: Observer>(
        &mut self,
        request: &Request,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) {
        self.meter(request.device)
            .transfer_missed(request.operation, request.bytes_left());
        if request.at_device {
            // When it left is not known, and after its D nothing is certain.
            self.meter(request.device).leaving_missed(request.came);
            self.machine.leaving_missed(request.came_of_machine);
            self.flush_left(request, ts_ns, lent);
        }
    }

    /// The last C of a flush sequence with data.
    #[inline(never)]
    fn sequence_done<O: Observer>(
        &mut self,
        device: u16,
        request: Box<Request>,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        if event.flags & flags::FLUSH_SEQ != 0 {
            self.requests.insert(event.object, request);
            return;
        }
        if self.is_of_an_empty_flush(device, &request, event) {
            self.completion_missed(&request, event.ts_ns, lent);
            return self.empty_flush_done(device, event, lent);
        }
        let data_ns = request.sequence_data_ns.unwrap_or(event.ts_ns);
        self.meter(device).request_completed(request.operation);
        let ending = self.ending(&request, event, data_ns);
        self.end_all(&request, ending, lent);
        self.spare_requests.keep(request.into_memory());
    }

    /// A C of 0 bytes at the address of a flush sequence whose own last C was lost. That one names where its data
    /// begin, or where they end (kernels put the place back in different ways), or no place at all.
    fn is_of_an_empty_flush(&self, device: u16, request: &Request, event: &Event) -> bool {
        if event.ended_bio() != 0 {
            return ends_another(request, event);
        }
        let from = request.first_issue.offset;
        request.serial != 0
            && event.bytes == 0
            && event.offset != Event::NOWHERE
            && !(from..=request.end_offset).contains(&event.offset)
            && !self.flushes[usize::from(device)].is_empty()
    }

    /// What `event` ends, where the data's last C came at `completed_ns`.
    fn ending(&self, request: &Request, event: &Event, completed_ns: u64) -> Ending {
        let wanted = self.spans.is_some() || self.machine.ios.is_some();
        let wanted = wanted && request.serial != 0;
        let by =
            wanted.then(|| request.span(self.dev_of(request.device), event.object, completed_ns));
        Ending {
            completed_ns,
            ts_ns: event.ts_ns,
            by,
        }
    }

    /// A request has left the device: its span is whole.
    fn hand_on(&mut self, request: &Request, pointer: u64, completed_ns: u64) {
        let dev = self.dev_of(request.device);
        if let Some(spans) = &mut self.spans
            && request.serial != 0
        {
            spans.completed(request.span(dev, pointer, completed_ns), request.device);
        }
    }

    fn end_all<O: Observer>(&mut self, request: &Request, ending: Ending, lent: &mut Lent<'_, O>) {
        for carried in request.first.iter().chain(&request.others) {
            let Carried {
                pointer,
                generation,
            } = *carried;
            if !self.end_fragment(pointer, generation, ending, lent) {
                self.meter(request.device).check.ended_twice += 1;
            }
        }
    }

    /// A partial completion: the kernel ends each bio that it covers, whose address may be used
    /// again while the rest of the request is still at the device.
    #[inline(never)]
    fn end_covered<O: Observer>(
        &mut self,
        request: &mut Request,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        for bio in self.take_covered(request) {
            let ending = self.ending(request, event, event.ts_ns);
            self.end_fragment(bio.pointer, bio.generation, ending, lent);
        }
    }

    /// Takes from a request the bios whose data are among its completed bytes.
    #[inline(never)]
    fn take_covered(&mut self, request: &mut Request) -> Vec<Carried> {
        let first = request.first.or(request.others.first().copied());
        let first = first.and_then(|first| self.bios.get(first.pointer));
        if first.is_some_and(|first| first.bytes > request.covered) {
            return Vec::new();
        }
        let carried = request.first.iter().chain(&request.others);
        let mut left: Vec<Carried> = carried.copied().collect();
        let mut n_covered = 0;
        for bio in &left {
            let bytes = self.bios.get(bio.pointer).map_or(u64::MAX, |bio| bio.bytes);
            if bytes > request.covered {
                break;
            }
            request.covered -= bytes;
            n_covered += 1;
        }
        let covered = left.drain(..n_covered).collect();
        request.first = left.first().copied();
        left.drain(..usize::from(!left.is_empty()));
        request.others = left;
        covered
    }

    /// Ends what D began: the depth, and for a flush the wait of those who sync.
    pub(super) fn left_device<O: Observer>(
        &mut self,
        request: &Request,
        ts_ns: u64,
        lent: &mut Lent<'_, O>,
    ) {
        if !request.at_device {
            return;
        }
        self.meter(request.device).leaves(request.came, ts_ns);
        self.machine.leaves(request.came_of_machine, ts_ns);
        self.flush_left(request, ts_ns, lent);
    }

    /// Nothing waits for a flush at the device any more.
    fn flush_left<O: Observer>(&mut self, request: &Request, ts_ns: u64, lent: &mut Lent<'_, O>) {
        if request.flush {
            let dev = self.dev_of(request.device);
            lent.observer.flushes_in_flight(dev, ts_ns, |stages| {
                stages.issued = stages.issued.saturating_sub(1)
            });
        }
    }

    /// The whole request is its first bio's owner's.
    fn charge<O: Observer>(&mut self, request: &Request, ts_ns: u64, lent: &Lent<'_, O>) {
        if self.collects.only_what_btt_has() {
            return;
        }
        let spent = ts_ns.saturating_sub(request.issued_ns);
        self.meter(request.device).users.charge(
            request.owner,
            (request.operation, request.bytes),
            spent,
            lent.threads,
        );
    }

    #[inline(never)]
    fn device_flush_done<O: Observer>(
        &mut self,
        device: u16,
        request: Option<Box<Request>>,
        event: &Event,
        lent: &mut Lent<'_, O>,
    ) {
        let counted = request.as_ref().is_some_and(|request| request.flush);
        let request = request.filter(|request| request.awaits_end());
        if let Some(request) = request.as_ref().filter(|request| !request.flush) {
            // The C of these data was not seen; their address serves a flush by now.
            self.completion_missed(request, event.ts_ns, lent);
        }
        let Some(request) = request.filter(|request| request.flush) else {
            // Its D was not seen, or not the one after it was put back.
            let meter = self.meter(device);
            meter.unlinked.count(lent.reasons.at(event.ts_ns));
            meter.device_flushes += u64::from(!counted);
            return;
        };
        if request.at_device {
            self.left_device(&request, event.ts_ns, lent);
            self.hand_on(&request, event.object, event.ts_ns);
            let meter = self.meter(device);
            let d2c_ns = event.ts_ns.saturating_sub(request.issued_ns);
            meter.flush_d2c.record(d2c_ns);
            meter.figures.flush_served(event.ts_ns, d2c_ns);
        }
        self.spare_requests.keep(request.into_memory());
    }

    /// Place of the flush without data that a C names as the bio that it ends.
    fn named_flush(&self, device: u16, event: &Event) -> Option<usize> {
        let named = (event.ended_bio() != 0).then_some(event.ended_bio())?;
        let bio = self.bios.get(named).filter(|bio| bio.empty_flush)?;
        let mut waiting = self.flushes[usize::from(device)].iter();
        waiting.position(|flush| flush.generation == bio.generation)
    }

    /// The flush without data that a C ends.
    fn ended_flush(&mut self, device: u16, event: &Event) -> Option<EmptyFlush> {
        if event.ended_bio() == 0 {
            return self.next_empty_flush(device);
        }
        let place = self.named_flush(device, event)?;
        self.flushes[usize::from(device)].remove(place)
    }

    /// Where a C names no bio (blktrace's do not): flushes without data end in the order in which they came to the
    /// flush machinery (`blk-flush.c` keeps them in a list), and only those that came before the D of the flush
    /// that serves them.
    fn next_empty_flush(&mut self, device: u16) -> Option<EmptyFlush> {
        let served_until = self
            .spans
            .as_ref()
            .and_then(|spans| spans.last_flush_issued_ns(device));
        let waiting = &mut self.flushes[usize::from(device)];
        let served =
            served_until.and_then(|until| waiting.iter().position(|flush| flush.ready_ns <= until));
        waiting.remove(served.unwrap_or(0))
    }

    #[inline(never)]
    fn empty_flush_done<O: Observer>(&mut self, device: u16, event: &Event, lent: &Lent<'_, O>) {
        let Some(flush) = self.ended_flush(device, event) else {
            let reason = lent.reasons.at(event.ts_ns);
            return self.meter(device).unlinked.count(reason);
        };
        let meter = self.meter(device);
        meter.check.empty_flushes_ended += 1;
        meter
            .flush
            .record(event.ts_ns.saturating_sub(flush.queued_ns));
        let q2c_ns = event.ts_ns.saturating_sub(flush.queued_ns);
        meter.stats.flush_ended(event.ts_ns, q2c_ns);
        meter.figures.flush_ended(event.ts_ns, q2c_ns);
        if let Some(spans) = &mut self.spans {
            spans.flush_ended(device, flush.generation, flush.ready_ns, event.ts_ns);
        }
    }

    /// A completion of a request whose D was not seen.
    #[inline(never)]
    fn completed_unseen<O: Observer>(
        &mut self,
        device: u16,
        in_sequence: bool,
        event: &Event,
        lent: &Lent<'_, O>,
    ) {
        let operation = Operation::of(event.op());
        let meter = self.meter(device);
        meter.unlinked.count(lent.reasons.at(event.ts_ns));
        if event.remaining_bytes() != 0 {
            return;
        }
        if in_sequence {
            let mut request = Box::new(Request::new(device, operation));
            request.sequence_data_ns = Some(event.ts_ns);
            request.bytes = event.bytes;
            self.requests.insert(event.object, request);
        } else {
            meter.request_completed(operation);
        }
    }
}

/// Whether a C names a bio that is not the request's.
fn ends_another(request: &Request, event: &Event) -> bool {
    event.ended_bio() != 0 && request.serial != 0 && !request.carries(event.ended_bio())
}

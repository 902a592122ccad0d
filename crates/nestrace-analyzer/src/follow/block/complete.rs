//! Completions: which of them the kernel counts, and which bios they end.
//!
//! A bio with data and a flush gives up to three requests: a flush, the data (its C has
//! FLUSH_SEQ), perhaps a flush again, and at last a C of 0 bytes without that flag, which is the
//! one that the kernel's statistics count and that ends the bio. A zero-length flush has only
//! such a last C, of a request that was never issued.

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::BlockLayer;
use super::bio::Ending;
use super::issue::{Carried, Request};
use super::observer::{Lent, Observer};
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
        let request = self.requests.live.remove(event.object);
        let mut request = request.and_then(|request| self.ended_by(request, event, lent));
        if let Some(request) = &mut request {
            request.end_cpu = event.cpu;
        }
        if event.op() == flags::OP_FLUSH {
            return self.device_flush_done(device, request, event, lent);
        }
        if self.bios.named_flush(device, event).is_some() {
            if let Some(request) = request.filter(|request| request.awaits_end()) {
                // Its own last C was not seen; its address serves a flush by now.
                self.gathered.completion_missed(&request, event.ts_ns, lent);
            }
            return self.empty_flush_done(device, event, lent);
        }
        if operation == Operation::Other {
            if let Some(request) = request {
                self.gathered.left_device(&request, event.ts_ns, lent);
            }
            return;
        }
        let in_sequence = event.flags & flags::FLUSH_SEQ != 0;
        let last = event.remaining_bytes() == 0;
        let meter = self.gathered.meter(device);
        meter.transferred(operation, event.bytes);
        meter.check.counted_completions += u64::from(last && !in_sequence);
        if event.bytes > 0 {
            meter.stats.transferred(event.ts_ns, operation, event.bytes);
            self.gathered
                .machine
                .transferred(device, event, lent.threads);
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
            self.gathered.completion_missed(&request, event.ts_ns, lent);
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
        self.gathered
            .meter(request.device)
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
            self.gathered.left_device(&request, event.ts_ns, lent);
            self.gathered.charge(&request, event.ts_ns, lent);
        }
        if in_sequence {
            if last {
                self.gathered.hand_on(&request, event.object, event.ts_ns);
                request.at_device = false;
                request.sequence_data_ns = Some(event.ts_ns);
            }
            self.requests.live.insert(event.object, request);
            return;
        }
        request.covered = request.covered.saturating_add(event.bytes);
        if !last {
            self.end_covered(&mut request, event, lent);
            self.requests.live.insert(event.object, request);
            return;
        }
        self.gathered
            .meter(request.device)
            .request_completed(request.operation);
        self.gathered.hand_on(&request, event.object, event.ts_ns);
        let ending = self.ending(&request, event, event.ts_ns);
        self.end_all(&request, ending, lent);
        self.requests.spare.keep(request.into_memory());
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
        self.gathered.transfer_missed(request, event.ts_ns, lent);
        if request.in_sequence && !ends_another(request, event) {
            self.gathered
                .meter(device)
                .request_completed(request.operation);
            let ending = self.ending(request, event, event.ts_ns);
            self.end_all(request, ending, lent);
        } else {
            self.gathered
                .meter(request.device)
                .completion_missed(request.operation);
            self.empty_flush_done(device, event, lent);
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
            self.requests.live.insert(event.object, request);
            return;
        }
        if self.is_of_an_empty_flush(device, &request, event) {
            self.gathered.completion_missed(&request, event.ts_ns, lent);
            return self.empty_flush_done(device, event, lent);
        }
        let data_ns = request.sequence_data_ns.unwrap_or(event.ts_ns);
        self.gathered
            .meter(device)
            .request_completed(request.operation);
        let ending = self.ending(&request, event, data_ns);
        self.end_all(&request, ending, lent);
        self.requests.spare.keep(request.into_memory());
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
            && !self.bios.flushes.is_empty(device)
    }

    /// What `event` ends, where the data's last C came at `completed_ns`.
    fn ending(&self, request: &Request, event: &Event, completed_ns: u64) -> Ending {
        let wanted = self.gathered.spans.is_some() || self.gathered.machine.ios.is_some();
        let wanted = wanted && request.serial != 0;
        let by = wanted.then(|| {
            request.span(
                self.gathered.dev_of(request.device),
                event.object,
                completed_ns,
            )
        });
        Ending {
            completed_ns,
            ts_ns: event.ts_ns,
            by,
            flushed_with: event.flushed_with(),
        }
    }

    fn end_all<O: Observer>(&mut self, request: &Request, ending: Ending, lent: &mut Lent<'_, O>) {
        for carried in request.first.iter().chain(&request.others) {
            let Carried {
                pointer,
                generation,
            } = *carried;
            if !self
                .bios
                .end_fragment(pointer, generation, ending, &mut self.gathered, lent)
            {
                self.gathered.meter(request.device).check.ended_twice += 1;
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
            self.bios.end_fragment(
                bio.pointer,
                bio.generation,
                ending,
                &mut self.gathered,
                lent,
            );
        }
    }

    /// Takes from a request the bios whose data are among its completed bytes.
    #[inline(never)]
    fn take_covered(&mut self, request: &mut Request) -> Vec<Carried> {
        let first = request.first.or(request.others.first().copied());
        let first = first.and_then(|first| self.bios.live.get(first.pointer));
        if first.is_some_and(|first| first.bytes > request.covered) {
            return Vec::new();
        }
        let carried = request.first.iter().chain(&request.others);
        let mut left: Vec<Carried> = carried.copied().collect();
        let mut n_covered = 0;
        for bio in &left {
            let bytes = self
                .bios
                .live
                .get(bio.pointer)
                .map_or(u64::MAX, |bio| bio.bytes);
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
            self.gathered.completion_missed(request, event.ts_ns, lent);
        }
        let Some(request) = request.filter(|request| request.flush) else {
            // Its D was not seen, or not the one after it was put back.
            let meter = self.gathered.meter(device);
            meter.unlinked.count(lent.reasons.at(event.ts_ns));
            meter.device_flushes += u64::from(!counted);
            return;
        };
        if request.at_device {
            self.gathered.left_device(&request, event.ts_ns, lent);
            self.gathered.hand_on(&request, event.object, event.ts_ns);
            let meter = self.gathered.meter(device);
            let d2c_ns = event.ts_ns.saturating_sub(request.issued_ns);
            meter.flush_d2c.record(d2c_ns);
            meter.figures.flush_served(event.ts_ns, d2c_ns);
        }
        self.requests.spare.keep(request.into_memory());
    }

    #[inline(never)]
    fn empty_flush_done<O: Observer>(&mut self, device: u16, event: &Event, lent: &Lent<'_, O>) {
        let Some(flush) = self.bios.ended_flush(device, event, &self.gathered) else {
            let reason = lent.reasons.at(event.ts_ns);
            return self.gathered.meter(device).unlinked.count(reason);
        };
        let meter = self.gathered.meter(device);
        meter.check.empty_flushes_ended += 1;
        meter
            .flush
            .record(event.ts_ns.saturating_sub(flush.queued_ns));
        let q2c_ns = event.ts_ns.saturating_sub(flush.queued_ns);
        meter.stats.flush_ended(event.ts_ns, q2c_ns);
        meter.figures.flush_ended(event.ts_ns, q2c_ns);
        if let Some(spans) = &mut self.gathered.spans {
            spans.flush_ended(device, flush, event);
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
        let meter = self.gathered.meter(device);
        meter.unlinked.count(lent.reasons.at(event.ts_ns));
        if event.remaining_bytes() != 0 {
            return;
        }
        if in_sequence {
            let mut request = Box::new(Request::new(device, operation));
            request.sequence_data_ns = Some(event.ts_ns);
            request.bytes = event.bytes;
            self.requests.live.insert(event.object, request);
        } else {
            meter.request_completed(operation);
        }
    }
}

/// Whether a C names a bio that is not the request's.
fn ends_another(request: &Request, event: &Event) -> bool {
    event.ended_bio() != 0 && request.serial != 0 && !request.carries(event.ended_bio())
}

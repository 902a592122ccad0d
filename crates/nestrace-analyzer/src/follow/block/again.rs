//! A request's address comes again: the same request, put back by its driver, or another one at the address
//! of one whose last C was lost.

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::bios::Bios;
use super::gathered::Gathered;
use super::issue::Request;
use super::observer::{Lent, Observer};
use super::requests::Requests;
use crate::measure::device::DeviceMeter;
use crate::model::operation::Operation;

impl Request {
    /// I, D or R at its address is not about it: it was issued, and they name another device or operation, or
    /// nothing of what its last D was to move. A request that was put back may have grown by merges.
    pub(super) fn is_elsewhere(&self, device: u16, event: &Event) -> bool {
        let from = self.end_offset.saturating_sub(self.bytes);
        let end = event.offset.saturating_add(event.bytes);
        let meets = self.sequence_data_ns.is_none() && event.offset < self.end_offset && from < end;
        let goes_on = self.device == device
            && self.operation == Operation::of(event.op())
            && self.flush == (event.op() == flags::OP_FLUSH)
            && (event.bytes == 0 || meets);
        let was_issued = self.serial != 0 || self.sequence_data_ns.is_some();
        was_issued && !goes_on
    }
}

impl Requests {
    /// A request that nothing is known of yet.
    pub(super) fn renewed(&mut self, device: u16, operation: Operation) -> Box<Request> {
        let Some(mut spare) = self.spare.take() else {
            return Box::new(Request::new(device, operation));
        };
        spare.renew(device, operation);
        spare
    }

    /// The request that I or R is about; a new one where what stands at the address was issued for data that
    /// lie elsewhere: its end, or its merge into another, was not seen.
    #[inline(never)]
    pub(super) fn inserted_or_put_back<O: Observer>(
        &mut self,
        device: u16,
        event: &Event,
        gathered: &mut Gathered,
        lent: &mut Lent<'_, O>,
    ) -> Box<Request> {
        if let Some(old) = self.live.remove(event.object) {
            if !old.is_elsewhere(device, event) {
                return old;
            }
            if old.awaits_end() {
                gathered.completion_missed(&old, event.ts_ns, lent);
            }
        }
        self.renewed(device, Operation::of(event.op()))
    }

    /// D of a request that is at the device already: either its R was lost, and it carries the same
    /// bio as before, or its C was, and it is another request at the same address.
    #[inline(never)]
    pub(super) fn issued_again<O: Observer>(
        &mut self,
        mut old: Box<Request>,
        device: u16,
        event: &Event,
        (bios, gathered): (&mut Bios, &mut Gathered),
        lent: &mut Lent<'_, O>,
    ) -> Box<Request> {
        gathered.meter(old.device).check.reissued_while_live += 1;
        let same = !old.is_elsewhere(device, event)
            && old.first.is_some_and(|first| {
                first.pointer == event.first_bio()
                    && bios
                        .live
                        .get(first.pointer)
                        .is_some_and(|bio| bio.generation == first.generation)
            });
        if same {
            put_back(&mut old, event.ts_ns, bios, gathered);
            return old;
        }
        gathered.completion_missed(&old, event.ts_ns, lent);
        self.renewed(device, Operation::of(event.op()))
    }

    #[inline(never)]
    pub(super) fn requeue<O: Observer>(
        &mut self,
        device: u16,
        event: &Event,
        (bios, gathered): (&mut Bios, &mut Gathered),
        lent: &mut Lent<'_, O>,
    ) {
        gathered.meter(device).requeues += 1;
        if self.live.get(event.object).is_none() {
            return;
        }
        let mut request = self.inserted_or_put_back(device, event, gathered, lent);
        put_back(&mut request, event.ts_ns, bios, gathered);
        self.live.insert(event.object, request);
    }
}

/// A driver has put it back, so that the next D is no new request.
fn put_back(request: &mut Request, ts_ns: u64, bios: &mut Bios, gathered: &mut Gathered) {
    if request.at_device {
        leave_device(&mut gathered.devices, request, ts_ns);
        gathered.machine.leaves(request.came_of_machine, ts_ns);
    }
    request.at_device = false;
    request.interrupted = false;
    request.requeued = true;
    // What a partial completion took from its first bio is not at the next D's.
    let covered = std::mem::take(&mut request.covered);
    let first = request.first.or(request.others.first().copied());
    if covered > 0
        && let Some(bio) = first.and_then(|first| bios.live.get_mut(first.pointer))
    {
        bio.bytes = bio.bytes.saturating_sub(covered);
    }
}

fn leave_device(devices: &mut [DeviceMeter], request: &Request, ts_ns: u64) {
    if let Some(meter) = devices.get_mut(usize::from(request.device)) {
        meter.leaves(request.came, ts_ns);
        if request.has_data() {
            meter.stats.put_back();
        }
    }
}

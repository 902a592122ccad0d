//! Light recordings: one event for a whole request, with its own stamps of D and C.

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::gathered::Gathered;
use crate::model::operation::Operation;
use crate::model::pointer::PointerMap;
use crate::model::span::RequestSpan;
use crate::result::unlinked::Reason;

/// Requests of a light recording that go on.
#[derive(Debug, Default)]
pub(super) struct LightRequests {
    /// Those whose data part within a flush sequence has been counted.
    flush_sequences: PointerMap<u64, ()>,
}

impl LightRequests {
    /// Forgets them where they are more than `most`.
    pub(super) fn give_up_beyond(&mut self, most: usize) {
        if self.flush_sequences.len() > most {
            self.flush_sequences.clear();
        }
    }

    #[inline(never)]
    pub(super) fn done(
        &mut self,
        device: u16,
        event: &Event,
        reason: Reason,
        gathered: &mut Gathered,
    ) {
        let operation = Operation::of(event.op());
        let in_sequence = event.flags & flags::FLUSH_SEQ != 0;
        let data_was_counted = !in_sequence && self.flush_sequences.remove(&event.object).is_some();
        // A request that was at the device when recording began has no stamp of its D.
        let issued_ns = event.issued_ns();
        let meter = gathered.meter(device);
        meter.light = true;
        hand_on(gathered, event, operation, issued_ns);
        let meter = gathered.meter(device);
        if event.op() == flags::OP_FLUSH {
            meter.device_flushes += 1;
            if let Some(issued_ns) = issued_ns {
                let took_ns = event.ts_ns.saturating_sub(issued_ns);
                meter.flush_d2c.record(took_ns);
                meter.figures.flush_served(event.ts_ns, took_ns);
                meter.intervals.interval(issued_ns, event.ts_ns);
            }
            return;
        }
        if operation == Operation::Other {
            return;
        }
        if event.bytes == 0 {
            // The end of a flush sequence: of one with data, which was counted then, or of none.
            meter.check.empty_flushes += u64::from(!data_was_counted);
            return;
        }
        meter.transferred(operation, event.bytes);
        meter.issued += 1;
        meter.readahead += u64::from(event.flags & flags::RAHEAD != 0);
        meter.meta += u64::from(event.flags & flags::META != 0);
        meter.request_completed(operation);
        let is_seek = meter.seek_d.io(event.offset, event.bytes);
        let at_ns = issued_ns.unwrap_or(event.ts_ns);
        let place = (event.offset, event.bytes);
        meter.figures.issued(at_ns, operation, place, is_seek);
        match issued_ns {
            None => meter.unlinked.count(reason),
            Some(issued_ns) => {
                meter.intervals.interval(issued_ns, event.ts_ns);
                let took_ns = event.ts_ns.saturating_sub(issued_ns);
                let io = (operation, event.bytes);
                meter.figures.ended(event.ts_ns, io, took_ns, None);
                meter.figures.served(event.ts_ns, operation, took_ns);
                if let Some(parts) = meter.parts(operation) {
                    parts.d2c.record(event.ts_ns.saturating_sub(issued_ns));
                }
            }
        }
        if in_sequence {
            self.flush_sequences.insert(event.object, ());
        }
    }
}

/// Of a light recording only whole requests are known.
fn hand_on(gathered: &mut Gathered, event: &Event, operation: Operation, issued_ns: Option<u64>) {
    let flush = event.op() == flags::OP_FLUSH;
    let ends_data = operation != Operation::Other && event.bytes > 0;
    if let (Some(spans), Some(issued_ns)) = (&mut gathered.spans, issued_ns)
        && (flush || ends_data)
    {
        gathered.serial += 1;
        spans.requests.push(RequestSpan {
            serial: gathered.serial,
            dev: event.dev,
            operation,
            flush,
            offset: event.offset,
            bytes: event.bytes,
            issued_ns,
            completed_ns: event.ts_ns,
            pointer: event.object,
            bios: 0,
            lane: RequestSpan::ANY_LANE,
            page: 0,
            tid: 0,
            end_cpu: event.cpu,
        });
    }
}

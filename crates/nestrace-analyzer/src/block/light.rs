//! Light recordings: one event for a whole request, with its own stamps of D and C.

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::BlockLayer;
use crate::device::Operation;
use crate::unlinked::Reason;

impl BlockLayer {
    pub(super) fn request_done(&mut self, device: u16, event: &Event, reason: Reason) {
        let operation = Operation::of(event.op());
        let in_sequence = event.flags & flags::FLUSH_SEQ != 0;
        let data_was_counted = !in_sequence && self.flush_sequences.remove(&event.object).is_some();
        // A request that was at the device when recording began has no stamp of its D.
        let issued_ns = Some(event.related).filter(|issued_ns| *issued_ns > 0);
        let meter = self.meter(device);
        meter.light = true;
        if event.op() == flags::OP_FLUSH {
            meter.device_flushes += 1;
            if let Some(issued_ns) = issued_ns {
                meter
                    .flush_d2c
                    .record(event.ts_ns.saturating_sub(issued_ns));
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
        meter.seek_d.io(event.offset, event.bytes);
        match issued_ns {
            None => meter.unlinked.count(reason),
            Some(issued_ns) => {
                meter.intervals.interval(issued_ns, event.ts_ns);
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

//! Light recordings: one event for a whole request, with its own stamps of D and C.

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::BlockLayer;
use crate::device::Operation;

impl BlockLayer {
    pub(super) fn request_done(&mut self, device: u16, event: &Event) {
        let operation = Operation::of(event.op());
        let in_sequence = event.flags & flags::FLUSH_SEQ != 0;
        let data_was_counted = !in_sequence && self.flush_sequences.remove(&event.object).is_some();
        let issued_ns = event.related;
        let spent = event.ts_ns.saturating_sub(issued_ns);
        let meter = self.meter(device);
        meter.light = true;
        if event.op() == flags::OP_FLUSH {
            meter.device_flushes += 1;
            meter.flush_d2c.record(spent);
            meter.intervals.interval(issued_ns, event.ts_ns);
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
        meter.intervals.interval(issued_ns, event.ts_ns);
        if let Some(parts) = meter.parts(operation) {
            parts.d2c.record(spent);
        }
        if in_sequence {
            self.flush_sequences.insert(event.object, ());
        }
    }
}

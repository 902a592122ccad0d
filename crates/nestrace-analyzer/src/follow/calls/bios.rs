//! Bios and the calls that they are queued in.

use nestrace_abi::flags;
use nestrace_abi::flags::op;
use nestrace_trace::Event;

use super::{Calls, Carrier, MAX_CARRIED, MAX_IN_FLIGHT};
use crate::model::call::{By, Call};

impl Calls {
    /// A bio is queued: notes the call that it is queued in.
    pub(crate) fn queued(&mut self, event: &Event) {
        let serial_of = |call: &Call| (call.serial, call.caller);
        let direct = self.of_direct_io(event).map(serial_of);
        let is_unnamed =
            direct.is_none() && matches!(event.sub, flags::OWNER_ANONYMOUS | flags::OWNER_DIRECT);
        if is_unnamed && self.unnamed.len() < MAX_IN_FLIGHT {
            self.unnamed.insert(event.tid, event.ts_ns);
        }
        let found = match direct {
            Some((serial, _)) => {
                if let Some(call) = self.submitted.get_mut(&serial) {
                    call.has_direct_bio = true;
                }
                direct
            }
            None => self.of_thread_mut(event.tid).map(|call| {
                call.has_bio = true;
                if event.op() != flags::OP_READ {
                    call.last_write_ns = event.ts_ns;
                }
                serial_of(call)
            }),
        };
        match found {
            Some((serial, caller)) if self.carried.len() < MAX_CARRIED => {
                let carrier = Carrier {
                    serial,
                    caller,
                    queued_ns: event.ts_ns,
                };
                self.carried.insert(event.object, carrier);
            }
            _ => {
                self.carried.remove(&event.object);
            }
        }
    }

    /// The call in which a bio that has ended was queued.
    pub(crate) fn carrier_of(&mut self, bio: u64, queued_ns: u64) -> Option<Carrier> {
        let carrier = self.carried.remove(&bio)?;
        (carrier.queued_ns == queued_ns).then_some(carrier)
    }

    /// A bio of native aio has ended: where no tracepoint reports the end of the call, it is the end of the bio that covers the rest of it.
    pub(crate) fn direct_bio_ended(&mut self, serial: u64, bytes: u64, ts_ns: u64) {
        let Some(call) = self.submitted.get_mut(&serial) else {
            return;
        };
        call.bytes_left = call.bytes_left.saturating_sub(bytes);
        let moves_data = matches!(call.caller.op, op::READ | op::WRITE);
        let is_aio = matches!(call.by, By::Aio(_));
        if call.bytes_left == 0 && !call.direct_begun && moves_data && is_aio {
            let result = i64::try_from(call.bytes).unwrap_or(i64::MAX);
            self.end_submitted(serial, result, ts_ns);
        }
    }
}

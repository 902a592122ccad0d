//! Requests that QEMU completed, as they are offered to the clock.

use std::rc::Rc;

use super::{MAX_QUEUES, Session};
use crate::link::clock::{HostRequest, Key, OpClass};
use crate::model::span::{Served, What};

impl Session {
    /// A number for a virtqueue: QEMU takes the requests of one in the order in which the guest's
    /// processor put them there.
    fn lane(&mut self, queue: u64) -> u32 {
        if queue == 0 {
            return HostRequest::ANY_LANE;
        }
        let known = self.queues.iter().position(|known| *known == queue);
        if known.is_none() && self.queues.len() < MAX_QUEUES {
            self.queues.push(queue);
        }
        known
            .or_else(|| self.queues.iter().position(|known| *known == queue))
            .and_then(|place| u32::try_from(place).ok())
            .unwrap_or(HostRequest::ANY_LANE)
    }

    /// Takes a QEMU request that has completed; `disk` is its place among the guest's disks.
    pub(crate) fn served(&mut self, served: &Rc<Served>, disk: u32) {
        if let (Some(direct), Some(facts)) = (&mut self.direct, served.file_io) {
            direct.file_io(served, disk, facts);
            direct.offer_last_file(&mut self.pairing);
        } else if served.span.what == What::Discard && !served.handed_back {
            self.unmaps.add(served, disk);
        } else {
            self.offer(served, disk);
        }
    }

    /// Offers a QEMU request to the clock.
    pub(super) fn offer(&mut self, served: &Rc<Served>, disk: u32) {
        let span = &served.span;
        let class = match span.what {
            What::Read => OpClass::Read,
            What::Discard => OpClass::Discard,
            What::Flush => OpClass::Flush,
            _ => OpClass::Write,
        };
        let (offset, bytes) = if class == OpClass::Flush {
            (0, 0)
        } else {
            (span.offset, span.bytes)
        };
        if class != OpClass::Flush && !served.offset_known {
            return;
        }
        self.served.insert(served.serial, Rc::clone(served));
        let lane = self.lane(served.queue);
        self.pairing.host_request(HostRequest {
            serial: served.serial,
            disk,
            key: Key {
                class,
                offset,
                bytes,
            },
            buffer: Some(served.buffer)
                .filter(|buffer| self.memory.holds(*buffer))
                .unwrap_or(0),
            lane,
            start_ns: span.start_ns,
            end_ns: span.end_ns,
        });
    }
}

//! Flush requests at the device, and their ends where the kernel tells none.
//!
//! Before Linux 3.18 a request without bios, as these are, has no C (`blk_update_request` looked for them first;
//! "block: misplaced rq_complete tracepoint" changed that, also in RHEL's 3.10.0-253; the first multi-queue disks of
//! 3.13 have one). Such kernels have at most one flush at a device at a time (`blk_kick_flush`), and none is issued while
//! data that waited for the one before are on their way. So it has ended when the first that it served goes on.

use std::collections::VecDeque;

use nestrace_abi::{Kind, flags};
use nestrace_trace::Event;

use super::Addresses;
use super::by_sector::Request;

/// Those that one flush served go on one after the other, and on a multi-queue disk another processor may issue the next
/// flush meanwhile: for so long they say nothing of that one.
const SAME_END_NS: u64 = 100_000;

/// Those of one disk.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    at_device: VecDeque<Request>,
    /// One that the driver did not take.
    put_back: Option<Request>,
    /// When one ended last without an event.
    ended_untold_ns: Option<u64>,
}

impl Flushes {
    /// D: the one that was put back, if any.
    pub(super) fn put_back(&mut self) -> Option<Request> {
        self.put_back.take()
    }

    pub(super) fn issue(&mut self, flush: Request) {
        self.at_device.push_back(flush);
    }

    /// R: gives its address.
    pub(super) fn requeue(&mut self, addresses: &mut Addresses) -> u64 {
        self.put_back = self.at_device.pop_back();
        let flush = self.put_back.as_ref();
        flush.map_or_else(|| addresses.next(), |flush| flush.address)
    }

    /// C: gives its address.
    pub(super) fn complete(&mut self, addresses: &mut Addresses) -> u64 {
        let flush = self.at_device.pop_front();
        addresses.of_ended(flush)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.at_device.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Request> {
        self.at_device.iter()
    }

    pub(super) fn keep(&mut self, young: impl Fn(u64) -> bool) {
        self.at_device.retain(|flush| young(flush.since_ns));
    }

    /// The C of the flush at the device, where the kernel writes none, and `event` is the first to show that it has ended:
    /// something goes on that has waited for a flush since `waits_since_ns`, or, with `None`, the next flush is issued.
    pub(super) fn end_untold(
        &mut self,
        waits_since_ns: Option<u64>,
        event: &Event,
        addresses: &mut Addresses,
    ) -> Option<Event> {
        if let (Some(since_ns), Some(ended_ns)) = (waits_since_ns, self.ended_untold_ns)
            && since_ns <= ended_ns
            && event.ts_ns.saturating_sub(ended_ns) < SAME_END_NS
        {
            return None;
        }
        let flush = self.at_device.pop_front()?;
        self.ended_untold_ns = Some(event.ts_ns);
        let mut end = Event::at(event.ts_ns, Kind::Complete);
        end.cpu = event.cpu;
        end.dev = event.dev;
        end.flags = flags::OP_FLUSH;
        end.object = addresses.of_ended(Some(flush));
        end.offset = Event::NOWHERE;
        Some(end)
    }
}

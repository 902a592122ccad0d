//! Flush requests at the device.

use std::collections::VecDeque;

use nestrace_abi::{Kind, flags};
use nestrace_trace::Event;

use super::Addresses;
use super::by_sector::Request;

/// Those of one disk.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    at_device: VecDeque<Request>,
    /// One that the driver did not take.
    put_back: Option<Request>,
    /// D of the last one whose end nobody told.
    ended_untold_ns: u64,
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
    /// whoever waits for one since `waits_since_ns` goes on, or, with `None`, the next flush is there.
    ///
    /// Before Linux 3.18 a request without bios, as these are, has no C (`blk_update_request` looked for them first;
    /// "block: misplaced rq_complete tracepoint" changed that, also in RHEL's 3.10.0-253). Such kernels have at most one flush at a
    /// device at a time (`blk_kick_flush`), and a flush serves those that came before its D.
    pub(super) fn end_untold(
        &mut self,
        waits_since_ns: Option<u64>,
        event: &Event,
        addresses: &mut Addresses,
    ) -> Option<Event> {
        let issued_ns = self.at_device.front()?.since_ns;
        if waits_since_ns.is_some_and(|since_ns| {
            let was_served_before = since_ns <= self.ended_untold_ns;
            was_served_before || since_ns > issued_ns
        }) {
            return None;
        }
        self.ended_untold_ns = issued_ns;
        Some(Event {
            ts_ns: event.ts_ns,
            cpu: event.cpu,
            dev: event.dev,
            kind: Kind::Complete as u8,
            flags: flags::OP_FLUSH,
            object: self.complete(addresses),
            offset: Event::NOWHERE,
            ..Event::default()
        })
    }
}

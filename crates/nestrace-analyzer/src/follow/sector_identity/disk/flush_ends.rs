//! What waited for a flush goes on: where the kernel tells no end of a flush, this is how it shows.

use nestrace_abi::{Kind, flags};
use nestrace_trace::Event;

use super::super::by_sector::Request;
use super::super::line::Line;
use super::super::{Addresses, Extent};
use super::{Disk, same_request};

impl Disk {
    /// The end of the flush at the device, if this disk tells none and `event` shows that there was one.
    pub(in crate::follow::sector_identity) fn untold_flush_end(
        &mut self,
        kind: Kind,
        event: &Event,
        addresses: &mut Addresses,
    ) -> Option<Event> {
        if self.tells_flush_ends || self.flushes.is_empty() {
            return None;
        }
        let extent = Extent::of(event);
        let waits_since_ns = match kind {
            Kind::Issue if extent.op == flags::OP_FLUSH => None,
            Kind::Issue => Some(self.waits_for_preflush(extent)?),
            Kind::Complete if extent.bytes == 0 && extent.op != flags::OP_FLUSH => {
                Some(self.waits_for_last_flush(extent.offset)?)
            }
            _ => return None,
        };
        self.flushes.end_untold(waits_since_ns, event, addresses)
    }

    /// Since when the request that is issued now, for the first time, has waited for the flush before its data.
    fn waits_for_preflush(&self, extent: Extent) -> Option<u64> {
        let mut forming = self.forming.get(extent.offset)?.iter();
        let request = forming.find(|request| same_request(request, extent))?;
        let mut bios = request.bios.iter();
        let waits = bios.any(|bio| bio.flags & flags::PREFLUSH != 0) && !request.in_sequence;
        waits.then_some(request.since_ns)
    }

    /// Since when the one whose last C comes now has waited for a flush: behind its data, or without any.
    fn waits_for_last_flush(&self, offset: u64) -> Option<u64> {
        let mut ended = self.sequences.get(offset).into_iter().flat_map(Line::iter);
        if let Some(data) = ended.next() {
            return data.postflush.then_some(data.since_ns);
        }
        let mut forming = self.forming.get(offset).into_iter().flat_map(Line::iter);
        let is_empty = |request: &&Request| request.extent.bytes == 0;
        forming.find(is_empty).map(|request| request.since_ns)
    }
}

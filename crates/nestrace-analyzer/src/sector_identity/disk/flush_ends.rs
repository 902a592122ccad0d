//! Ends of flushes that the kernel does not tell: what waited for one goes on.

use nestrace_abi::{Kind, flags};
use nestrace_trace::Event;

use super::super::by_sector::{BySector, Request};
use super::super::line::Line;
use super::super::{Addresses, Extent};
use super::{Disk, same_request};

impl Disk {
    /// The end of the flush at the device, of which the kernel told nothing, if `event` shows that there was one.
    pub(in crate::sector_identity) fn untold_flush_end(
        &mut self,
        kind: Kind,
        event: &Event,
        addresses: &mut Addresses,
    ) -> Option<Event> {
        if self.flushes.is_empty() {
            return None;
        }
        let extent = Extent::of(event);
        let waits_since_ns = match kind {
            Kind::Issue if extent.op == flags::OP_FLUSH => None,
            Kind::Issue => Some(self.waits_for_preflush(extent)?),
            Kind::Complete if extent.bytes == 0 && extent.op != flags::OP_FLUSH => {
                Some(self.waits_for_end_of_sequence(extent.offset)?)
            }
            _ => return None,
        };
        self.flushes.end_untold(waits_since_ns, event, addresses)
    }

    /// Since when the request that is issued now has waited for the flush before its data.
    fn waits_for_preflush(&self, extent: Extent) -> Option<u64> {
        let mut forming = self.forming.get(extent.offset)?.iter();
        let request = forming.find(|request| same_request(request, extent))?;
        let mut bios = request.bios.iter();
        bios.any(|bio| bio.flags & flags::PREFLUSH != 0)
            .then_some(request.since_ns)
    }

    /// Since when the one whose last C comes now has waited for a flush.
    fn waits_for_end_of_sequence(&self, offset: u64) -> Option<u64> {
        let oldest = |map: &BySector<Request>, is_it: fn(&Request) -> bool| {
            let mut line = map.get(offset).into_iter().flat_map(Line::iter);
            line.find(|request| is_it(request))
                .map(|request| request.since_ns)
        };
        oldest(&self.sequences, |_| true)
            .or_else(|| oldest(&self.forming, |request| request.extent.bytes == 0))
    }
}

//! Bios and requests that become one.

use nestrace_abi::Kind;
use nestrace_trace::Event;

use super::super::by_sector::{Request, put};
use super::super::{Addresses, Extent};
use super::Disk;
use crate::model::pointer::PointerMap;

impl Disk {
    /// M and F of a bio, or M of a whole request: what it was, and the address of what was merged.
    pub(in crate::follow::sector_identity) fn merge(
        &mut self,
        kind: Kind,
        event: &Event,
        addresses: &mut Addresses,
    ) -> (Kind, u64) {
        let extent = Extent::of(event);
        let Some(bio) = self.take_waiting(event, addresses) else {
            return self.merge_requests(kind, extent, addresses);
        };
        let carried = bio.carried();
        let into = if kind == Kind::BackMerge {
            self.ending_at(extent.offset, extent.op, addresses)
        } else {
            let (end, op) = (extent.end(), extent.op);
            self.unform(end, addresses, |request| request.extent.op == op)
        };
        match into {
            Some(mut request) => {
                request.extent.bytes = request.extent.bytes.saturating_add(extent.bytes);
                if kind == Kind::BackMerge {
                    request.bios.push_back(carried);
                } else {
                    request.extent.offset = extent.offset;
                    request.bios.push_front(carried);
                }
                self.form(request);
            }
            // D finds it by its place.
            None => put(&mut self.waiting, extent.offset, bio),
        }
        (kind, bio.address)
    }

    /// blktrace writes M for a request that was merged behind another one as well.
    fn merge_requests(
        &mut self,
        kind: Kind,
        extent: Extent,
        addresses: &mut Addresses,
    ) -> (Kind, u64) {
        let is_it = |request: &Request| request.extent == extent;
        let Some(mut merged) = self.unform(extent.offset, addresses, is_it) else {
            return (kind, addresses.next());
        };
        let address = merged.address;
        match self.ending_at(extent.offset, extent.op, addresses) {
            Some(mut request) => {
                request.extent.bytes = request.extent.bytes.saturating_add(extent.bytes);
                request.bios.append(&mut merged.bios);
                self.form(request);
                (Kind::RequestMerge, address)
            }
            None => {
                self.form(merged);
                (kind, addresses.next())
            }
        }
    }

    /// The forming request that ends where something of this operation begins.
    fn ending_at(&mut self, end: u64, op: u32, addresses: &mut Addresses) -> Option<Request> {
        // By reference: a copy of what it captures would be read before it is written.
        let is_it = &|request: &Request| request.extent.end() == end && request.extent.op == op;
        let starts = self.forming_ends.get(end)?;
        // Each place once, though many begin there: none of those may be the one.
        let mut known: PointerMap<u64, ()> = PointerMap::default();
        let fits = |start: &u64| {
            (starts.len() == 1 || known.insert(*start, ()).is_none())
                && (self.forming.get(*start)).is_some_and(|line| line.iter().any(is_it))
        };
        let start = starts.iter().copied().find(fits)?;
        self.unform(start, addresses, is_it)
    }
}

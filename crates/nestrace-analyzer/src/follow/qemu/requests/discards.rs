//! Discards: SCSI's in pieces, virtio-blk's without an account.

use nestrace_trace::Event;

use super::{Call, Request, Requests, Step, UNMAP};

/// A discard of SCSI that has ended: the next piece of its UNMAP begins right there.
#[derive(Clone, Copy, Debug)]
pub(super) struct EndedUnmap {
    pub(super) serial: u64,
    pub(super) opaque: u64,
    pub(super) tid: u32,
    pub(super) done_ns: u64,
    /// Where the next piece begins.
    pub(super) next: u64,
}

/// `scsi_unmap_complete` starts the next piece in the callback that ends the last one. A guest cannot
/// be notified of an end and send another UNMAP so fast.
const NEXT_PIECE_NS: u64 = 50_000;

impl EndedUnmap {
    /// Its own serial, if `next` is the next piece.
    pub(super) fn goes_on_with(self, next: &Request) -> Option<u64> {
        let same = next.kind == UNMAP
            && next.opaque == self.opaque
            && next.tid == self.tid
            && next.offset == Some(self.next)
            && next.start_ns.saturating_sub(self.done_ns) <= NEXT_PIECE_NS;
        same.then_some(self.serial)
    }
}

/// Discards in flight that are remembered; more are not, or their completion notification is not seen.
const MAX_DISCARDS: usize = 1 << 12;

impl Requests {
    /// QEMU 7.2 does not account for the guest's discards on virtio-blk, but hands them back like any
    /// other: `opaque` is the element.
    pub(super) fn unaccounted_discard(&mut self, call: &mut Call, event: &Event) {
        call.unaccounted = false;
        self.serial += 1;
        let request = Request {
            serial: self.serial,
            stats: 0,
            kind: UNMAP,
            bytes: call.bytes,
            tid: event.tid,
            start_ns: event.ts_ns,
            offset: Some(call.offset),
            handed_back_ns: None,
            handed_back_tid: 0,
            queue: 0,
            merged: false,
            opaque: 0,
            continues: None,
            calls: vec![call.serial],
            again: None,
        };
        // Their completion notification was not seen.
        let many = self.discards.len() >= MAX_DISCARDS;
        let mut unended: Vec<Request> = Vec::new();
        if many {
            unended.extend(self.discards.drain().map(|(_, (request, _))| request));
        }
        let old = self.discards.insert(event.object, (request, call.disk));
        unended.extend(old.map(|(request, _)| request));
        let calls = unended.iter().flat_map(|request| &request.calls);
        self.steps.extend(calls.copied().map(Step::Dropped));
    }

    /// An element went back to the guest: a discard ends with that.
    pub(in crate::follow::qemu) fn pushed(&mut self, event: &Event) {
        if let Some((mut request, disk)) = self.discards.remove(&event.object) {
            request.handed_back_ns = Some(event.ts_ns);
            request.queue = event.virtqueue();
            self.end(request, false, disk, event);
        }
    }
}

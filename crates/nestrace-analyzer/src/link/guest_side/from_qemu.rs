//! What QEMU did for one session's requests: both sides' requests, as they are offered to the clock.

use std::rc::Rc;

use super::direct::{self, DirectLinks};
use super::unmap::Unmaps;
use crate::link::clock::{GuestRequest, HostRequest, Key, OpClass, Pairing};
use crate::link::guest_memory::GuestMemory;
use crate::model::clocks::{GuestNs, HostNs};
use crate::model::ids::GuestDiskId;
use crate::model::pointer::PointerMap;
use crate::model::span::{RequestSpan, Served, What};

/// Virtqueues of one guest that are distinguished.
const MAX_QUEUES: usize = 1024;

/// Links one session's requests to what QEMU did for them.
#[derive(Debug)]
pub(super) struct QemuLinks {
    pub(super) pairing: Pairing,
    /// Where QEMU has the guest's memory.
    pub(super) memory: GuestMemory,
    /// Page and device of requests that the clock has not decided on.
    pub(super) pages: PointerMap<u64, (u64, u32)>,
    /// `None` where QEMU's functions were seen.
    pub(super) direct: Option<Box<DirectLinks>>,
    /// QEMU requests that the clock has not decided on.
    pub(super) served: PointerMap<u64, Rc<Served>>,
    /// Those that were no request of this session.
    pub(super) unclaimed: Vec<Rc<Served>>,
    /// Up to which the host has been read.
    pub(super) host_ns: HostNs,
    /// Discards that may go on.
    unmaps: Unmaps,
    /// Addresses of virtqueues.
    queues: Vec<u64>,
    /// The guest's events name requests by their addresses.
    has_identities: bool,
}

impl QemuLinks {
    pub(super) fn new(
        pairing: Pairing,
        direct: Option<Box<DirectLinks>>,
        has_identities: bool,
    ) -> Self {
        Self {
            pairing,
            memory: GuestMemory::default(),
            pages: PointerMap::default(),
            direct,
            served: PointerMap::default(),
            unclaimed: Vec::new(),
            host_ns: HostNs::default(),
            unmaps: Unmaps::default(),
            queues: Vec::new(),
            has_identities,
        }
    }

    /// Takes a request that has completed in the guest.
    pub(super) fn guest_request(&mut self, request: &RequestSpan, device: u32, key: Key) {
        if let Some(direct) = &mut self.direct {
            direct.request(direct::Request {
                serial: request.serial,
                device,
                class: key.class,
                offset: key.offset,
                bytes: key.bytes,
                page: request.page,
                lane: request.lane,
                issued_ns: GuestNs(request.issued_ns),
                completed_ns: GuestNs(request.completed_ns),
            });
            return;
        }
        if request.page != 0 {
            self.pages.insert(request.serial, (request.page, device));
        }
        self.pairing.guest_request(GuestRequest {
            serial: request.serial,
            device,
            key,
            buffer: self.memory.buffer_of(request.page).unwrap_or(0),
            may_be_alone: false,
            flushed_with: if request.flush && self.has_identities {
                request.pointer
            } else {
                0
            },
            lane: request.lane,
            issued_ns: GuestNs(request.issued_ns),
            completed_ns: GuestNs(request.completed_ns),
        });
    }

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

    /// Takes a QEMU request that has completed, of this disk of the guest.
    pub(super) fn served(&mut self, served: &Rc<Served>, disk: GuestDiskId) {
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
    fn offer(&mut self, served: &Rc<Served>, disk: GuestDiskId) {
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
            disk: disk.0,
            key: Key {
                class,
                offset,
                bytes,
            },
            buffer: Some(served.buffer)
                .filter(|buffer| self.memory.holds(*buffer))
                .unwrap_or(0),
            lane,
            start_ns: served.start_ns(),
            end_ns: served.end_ns(),
        });
    }

    /// The host's stream has been read so far: whatever ended before was handed to [`Self::served`].
    pub(super) fn host_read(&mut self, host_ns: HostNs) {
        while let Some((whole, disk)) = self.unmaps.whole_before(host_ns) {
            self.offer(&whole, disk);
        }
        self.host_ns = self.host_ns.max(host_ns);
    }

    /// What ended on the host before this time was linked here or passed on.
    pub(super) fn host_decided(&self) -> HostNs {
        let offered = self.served.values().map(|served| served.end_ns());
        let direct = self.direct.as_ref();
        let direct = direct.and_then(|direct| direct.oldest_file_ns());
        let open = offered.chain(self.unmaps.oldest_ns()).chain(direct).min();
        open.map_or(self.host_ns, |open| open.min(self.host_ns))
    }
}

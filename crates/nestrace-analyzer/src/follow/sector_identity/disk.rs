//! What is in flight on one disk, found by place.

mod flush_ends;
mod merge;

use nestrace_abi::{Kind, flags};
use nestrace_trace::Event;

use super::by_sector::{
    BySector, Request, Waiting, keep, put, take, take_issued, take_one, take_waiting,
};
use super::flushes::Flushes;
use super::line::Line;
use super::{Addresses, Extent};
use crate::follow::block;

/// Nothing takes longer, or its end was not recorded: the kernel's own time-out is 30 s.
const STALE_NS: u64 = 120_000_000_000;
/// Bios of one request that are followed.
const MAX_BIOS: usize = block::MAX_BIOS as usize;
/// How often the stale are looked for.
const SWEEP_NS: u64 = 10_000_000_000;

/// One disk.
#[derive(Debug, Default)]
pub(super) struct Disk {
    pub dev: u32,
    waiting: BySector<Waiting>,
    forming: BySector<Request>,
    /// Starts of forming requests, by their ends: where a bio may be merged.
    forming_ends: BySector<u64>,
    issued: BySector<Request>,
    flushes: Flushes,
    /// Data of a flush sequence has completed; the last C, of no bytes, is still to come.
    sequences: BySector<Request>,
    swept_ns: u64,
    /// A request was allocated or issued.
    has_requests: bool,
    /// A flush request's C was seen.
    tells_flush_ends: bool,
}

impl Disk {
    pub(super) fn new(dev: u32) -> Self {
        Self {
            dev,
            ..Self::default()
        }
    }

    /// Nothing is in flight any more.
    pub(super) fn forget(&mut self) {
        *self = Self {
            tells_flush_ends: self.tells_flush_ends,
            ..Self::new(self.dev)
        };
    }

    /// Gives an event of this kind its identity.
    #[inline]
    pub(super) fn identify(
        &mut self,
        kind: Kind,
        event: &mut Event,
        addresses: &mut Addresses,
        links: impl FnMut(Event),
    ) {
        match kind {
            Kind::Queue => event.object = self.queue(event, addresses),
            Kind::SleepRequest => event.object = self.waiting_bio(event),
            Kind::GetRequest => event.object = self.get_request(event, addresses),
            Kind::BackMerge | Kind::FrontMerge => {
                let (kind, object) = self.merge(kind, event, addresses);
                event.kind = kind as u8;
                event.object = object;
            }
            Kind::Split => (event.object, event.related) = self.split(event, addresses),
            Kind::Insert => event.object = self.insert(event, addresses),
            Kind::Issue => self.issue(event, addresses, links),
            Kind::Requeue => event.object = self.requeue(event, addresses),
            Kind::Complete => self.complete(event, addresses),
            Kind::BioComplete => event.object = self.bio_complete(event, addresses),
            Kind::RequestDone => event.object = addresses.next(),
            _ => {}
        }
    }

    pub(super) fn queue(&mut self, event: &Event, addresses: &mut Addresses) -> u64 {
        let address = addresses.next();
        let waiting = Waiting {
            address,
            bio: address,
            tid: event.tid,
            since_ns: event.ts_ns,
            extent: Extent::of(event),
            flags: event.flags,
        };
        put(&mut self.waiting, event.offset, waiting);
        address
    }

    /// The bio with this extent of the event's task, else the oldest.
    #[inline]
    fn take_waiting(&mut self, event: &Event, addresses: &mut Addresses) -> Option<Waiting> {
        let (waiting, guesses) = (&mut self.waiting, &mut addresses.guesses);
        let is_it = has_extent(Extent::of(event));
        take_waiting(waiting, event.offset, guesses, event.tid, is_it)
    }

    /// The address of the oldest bio with this extent, which stays; 0 where there is none.
    pub(super) fn waiting_bio(&self, event: &Event) -> u64 {
        let extent = Extent::of(event);
        let bios = self.waiting.get(extent.offset).into_iter();
        let bios = bios.flat_map(Line::iter);
        let mut same = bios.filter(|bio| bio.extent == extent);
        same.next().map_or(0, |bio| bio.address)
    }

    /// G: a request begins with this bio. Gives the bio's address.
    pub(super) fn get_request(&mut self, event: &Event, addresses: &mut Addresses) -> u64 {
        let extent = Extent::of(event);
        let bio = self.take_waiting(event, addresses);
        let address = bio.map_or_else(|| addresses.next(), |bio| bio.address);
        let extent = bio.map_or(extent, |bio| bio.extent);
        let mut request = addresses.request(event.ts_ns, extent);
        request.bios.extend(bio.as_ref().map(Waiting::carried));
        self.form(request);
        address
    }

    fn form(&mut self, mut request: Request) {
        self.has_requests = true;
        request.bios.truncate(MAX_BIOS);
        let extent = request.extent;
        if extent.bytes > 0 {
            put(&mut self.forming_ends, extent.end(), extent.offset);
        }
        put(&mut self.forming, extent.offset, request);
    }

    /// Takes a forming request out of its places.
    fn unform(
        &mut self,
        offset: u64,
        addresses: &mut Addresses,
        is_it: impl Fn(&Request) -> bool,
    ) -> Option<Request> {
        let guesses = &mut addresses.guesses;
        let request = take_one(&mut self.forming, offset, guesses, is_it)?;
        self.unform_end(offset, &request);
        Some(request)
    }

    fn unform_end(&mut self, offset: u64, request: &Request) {
        let end = request.extent.end();
        take(&mut self.forming_ends, end, |start| *start == offset);
    }

    /// X: the addresses of the front half, which is new, and of the parent, which keeps the tail.
    pub(super) fn split(&mut self, event: &Event, addresses: &mut Addresses) -> (u64, u64) {
        let front = Extent::of(event);
        let is_parent = |bio: &Waiting| bio.extent.op == front.op && bio.extent.bytes > front.bytes;
        let (waiting, guesses) = (&mut self.waiting, &mut addresses.guesses);
        let parent = take_waiting(waiting, front.offset, guesses, event.tid, is_parent);
        let address = addresses.next();
        let half = Waiting {
            address,
            bio: parent.map_or(address, |parent| parent.bio),
            tid: event.tid,
            since_ns: event.ts_ns,
            extent: front,
            flags: parent.map_or(event.flags, |parent| parent.flags),
        };
        put(&mut self.waiting, front.offset, half);
        let Some(mut parent) = parent else {
            return (address, 0);
        };
        parent.extent.offset = front.end();
        parent.extent.bytes -= front.bytes;
        put(&mut self.waiting, parent.extent.offset, parent);
        (address, parent.address)
    }

    pub(super) fn insert(&mut self, event: &Event, addresses: &mut Addresses) -> u64 {
        let extent = Extent::of(event);
        let requests = self.forming.get_mut(extent.offset);
        let same = requests.and_then(|requests| {
            requests
                .iter_mut()
                .find(|request| !request.inserted && same_request(request, extent))
        });
        match same {
            Some(request) => {
                request.inserted = true;
                request.address
            }
            None => addresses.next(),
        }
    }

    /// D, with the bios that the request carries.
    pub(super) fn issue(
        &mut self,
        event: &mut Event,
        addresses: &mut Addresses,
        links: impl FnMut(Event),
    ) {
        let extent = Extent::of(event);
        self.has_requests = true;
        let known = if extent.op == flags::OP_FLUSH {
            self.flushes.put_back()
        } else {
            let is_it = |request: &Request| same_request(request, extent);
            self.unform(extent.offset, addresses, is_it)
                .or_else(|| self.gather(extent, addresses))
        };
        let mut request = known.unwrap_or_else(|| addresses.request(event.ts_ns, extent));
        request.since_ns = event.ts_ns;
        request.extent = extent;
        request.bios.truncate(MAX_BIOS);
        request.in_sequence = request.is_in_flush_sequence(event.flags);
        event.object = request.address;
        // A capture of D and C alone (`blktrace -a issue -a complete`) has requests all the same: each of one bio that
        // no event showed before.
        event.related = match request.bios.iter().next() {
            Some(bio) => bio.address,
            None if extent.op == flags::OP_FLUSH || extent.bytes == 0 => 0,
            None => addresses.next(),
        };
        let n_others = request.bios.len().saturating_sub(1);
        event.sub = u8::try_from(n_others).unwrap_or(u8::MAX);
        if request.in_sequence {
            request.postflush = request.needs_flush_behind(event.flags);
            event.flags |= flags::FLUSH_SEQ;
        }
        if n_others > 0 {
            link(&request, event, links);
        }
        if extent.op == flags::OP_FLUSH {
            self.flushes.issue(request);
        } else {
            put(&mut self.issued, extent.offset, request);
        }
    }

    /// A request that lacks a G, M or F (the kernel merges discards without any), made of
    /// the requests and bios that lie end to end in its range.
    fn gather(&mut self, extent: Extent, addresses: &mut Addresses) -> Option<Request> {
        let fits = |other: &Extent, at: u64| {
            other.op == extent.op
                && other.offset == at
                && other.bytes > 0
                && other.end() <= extent.end()
        };
        let mut whole: Option<Request> = None;
        let mut at = extent.offset;
        while at < extent.end() {
            let is_part = |request: &Request| fits(&request.extent, at);
            if let Some(mut part) = self.unform(at, addresses, is_part) {
                at = part.extent.end();
                match &mut whole {
                    Some(whole) => whole.bios.append(&mut part.bios),
                    None => whole = Some(part),
                }
                continue;
            }
            let is_part = |bio: &Waiting| fits(&bio.extent, at);
            let bio = take_one(&mut self.waiting, at, &mut addresses.guesses, is_part)?;
            at = bio.extent.end();
            let carried = bio.carried();
            let request = whole.get_or_insert_with(|| addresses.request(bio.since_ns, extent));
            request.bios.push_back(carried);
        }
        whole
    }

    pub(super) fn requeue(&mut self, event: &Event, addresses: &mut Addresses) -> u64 {
        let extent = Extent::of(event);
        if extent.op == flags::OP_FLUSH {
            return self.flushes.requeue(addresses);
        }
        let (issued, guesses) = (&mut self.issued, &mut addresses.guesses);
        let request = take_one(issued, extent.offset, guesses, |request| {
            request.extent == extent
        });
        let Some(mut request) = request else {
            return addresses.next();
        };
        // It is inserted again before its next D.
        request.inserted = false;
        let address = request.address;
        self.form(request);
        address
    }

    /// C: finds the request, and adds what remains of it. On a disk that has never had a request (dm, md) it
    /// is a bio's end, which blktrace writes in the same way.
    pub(super) fn complete(&mut self, event: &mut Event, addresses: &mut Addresses) {
        let extent = Extent::of(event);
        event.related = 0;
        if extent.op == flags::OP_FLUSH {
            self.tells_flush_ends = true;
            event.object = self.flushes.complete(addresses);
            return;
        }
        if !self.has_requests && self.bio_based_complete(event, addresses) {
            return;
        }
        if extent.bytes == 0 {
            event.object = self.last_of_sequence(extent, addresses);
            return;
        }
        let same_op = |request: &Request| request.extent.op == extent.op;
        let is_whole = |request: &Request| same_op(request) && request.extent.bytes == extent.bytes;
        let is_more = |request: &Request| same_op(request) && request.extent.bytes > extent.bytes;
        let (at, now_ns, guesses) = (extent.offset, event.ts_ns, &mut addresses.guesses);
        let request = take_issued(&mut self.issued, at, guesses, now_ns, is_whole)
            .or_else(|| take_issued(&mut self.issued, at, guesses, now_ns, is_more));
        let Some(mut request) = request else {
            event.object = addresses.next();
            return;
        };
        event.object = request.address;
        event.related = request.extent.bytes - extent.bytes;
        if request.in_sequence {
            event.flags |= flags::FLUSH_SEQ;
        }
        let place = if event.related > 0 {
            request.extent.offset = extent.end();
            request.extent.bytes = event.related;
            &mut self.issued
        } else if request.in_sequence {
            // The kernel leaves its first sector as it was.
            request.since_ns = event.ts_ns;
            &mut self.sequences
        } else {
            addresses.ended.keep(request.into_memory());
            return;
        };
        put(place, request.extent.offset, request);
    }

    fn bio_based_complete(&mut self, event: &mut Event, addresses: &mut Addresses) -> bool {
        let address = self.bio_complete(event, addresses);
        if address != 0 {
            event.kind = Kind::BioComplete as u8;
            event.object = address;
            event.aux = u32::from(event.sub);
            event.sub = 0;
        }
        address != 0
    }

    /// The C of no bytes that ends a flush's sequence, with or without data. The kernel ends those that wait for one flush in
    /// the order in which they came.
    fn last_of_sequence(&mut self, extent: Extent, addresses: &mut Addresses) -> u64 {
        let (at, guesses) = (extent.offset, &mut addresses.guesses);
        let request = take_one(&mut self.sequences, at, guesses, |_| true).or_else(|| {
            let request = take(&mut self.forming, at, |request| request.extent.bytes == 0)?;
            self.unform_end(at, &request);
            Some(request)
        });
        addresses.of_ended(request)
    }

    /// The end of a bio that had no request; 0 where it is not known. It is traced in whatever task is interrupted.
    pub(super) fn bio_complete(&mut self, event: &Event, addresses: &mut Addresses) -> u64 {
        let extent = Extent::of(event);
        let (waiting, guesses) = (&mut self.waiting, &mut addresses.guesses);
        let bio = take_one(waiting, extent.offset, guesses, has_extent(extent));
        bio.map_or(0, |bio| bio.address)
    }

    /// Forgets what must have ended: else the next I/O at its place would be taken for it.
    #[inline]
    pub(super) fn forget_before(&mut self, now_ns: u64) {
        if now_ns >= self.swept_ns.saturating_add(SWEEP_NS) {
            self.sweep(now_ns);
        }
    }

    #[cold]
    fn sweep(&mut self, now_ns: u64) {
        self.swept_ns = now_ns;
        self.keep(|since_ns| since_ns.saturating_add(STALE_NS) > now_ns);
    }

    /// Bios that wait, and requests with the bios in them.
    pub(super) fn n_in_flight(&self) -> usize {
        let bios: usize = self.requests().map(|request| request.bios.len()).sum();
        bios + self.begins().count()
    }

    /// When each of them began.
    pub(super) fn begins(&self) -> impl Iterator<Item = u64> + '_ {
        let bios = self.waiting.values().flat_map(Line::iter);
        let bios = bios.map(|bio| bio.since_ns);
        bios.chain(self.requests().map(|request| request.since_ns))
    }

    fn requests(&self) -> impl Iterator<Item = &Request> {
        let by_sector = [&self.forming, &self.issued, &self.sequences];
        let by_sector = by_sector
            .into_iter()
            .flat_map(|map| map.values().flat_map(Line::iter));
        by_sector.chain(self.flushes.iter())
    }

    /// Forgets what began when `young` says no.
    pub(super) fn keep(&mut self, young: impl Fn(u64) -> bool) {
        keep(&mut self.waiting, |bio| young(bio.since_ns));
        keep(&mut self.issued, |request| young(request.since_ns));
        keep(&mut self.sequences, |request| young(request.since_ns));
        self.flushes.keep(&young);
        keep(&mut self.forming, |request| young(request.since_ns));
        let forming = &self.forming;
        self.forming_ends.retain(|end, starts| {
            starts.retain(|start| {
                forming.get(*start).is_some_and(|requests| {
                    requests.iter().any(|request| request.extent.end() == end)
                })
            });
            !starts.is_empty()
        });
    }
}

/// The bios of a request behind its first.
fn link(request: &Request, issue: &Event, mut links: impl FnMut(Event)) {
    let mut others = request.bios.iter().skip(1).map(|bio| bio.address);
    while let Some(first) = others.next() {
        let mut link = *issue;
        link.kind = Kind::Link as u8;
        link.sub = 0;
        link.related = first;
        link.offset = others.next().unwrap_or(0);
        link.bytes = others.next().unwrap_or(0);
        link.flags = 0;
        links(link);
    }
}

/// Bios without data have no operation worth the name.
fn has_extent(extent: Extent) -> impl Fn(&Waiting) -> bool {
    move |bio| bio.extent.bytes == extent.bytes && (bio.extent.op == extent.op || extent.bytes == 0)
}

/// I and D name a request by its extent; of one without data only that.
fn same_request(request: &Request, extent: Extent) -> bool {
    request.extent.bytes == extent.bytes && request.extent.op == extent.op
}

#[cfg(test)]
impl Disk {
    pub(super) fn in_flight(&self) -> usize {
        let ends: usize = self.forming_ends.values().map(Line::len).sum();
        let requests = |map: &BySector<Request>| map.values().map(Line::len).sum::<usize>();
        let bios: usize = self.waiting.values().map(Line::len).sum();
        ends + bios + requests(&self.forming) + requests(&self.issued) + requests(&self.sequences)
    }
}

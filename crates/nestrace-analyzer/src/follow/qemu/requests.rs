//! QEMU's requests one by one: which `blk_aio_*` call served each, and where on the disk it lay.
//!
//! The call names offset and length, the accounting does not. On virtio-blk the call's `opaque` is
//! the request that contains the cookie; on SCSI and IDE the call is the one that the thread makes
//! next (12,621 of 12,621), and further calls with the same `opaque` continue it (`dma_blk_cb`). As long as
//! the bus is unknown, a call is only tied where no other request could be meant.
//! virtio-blk merges adjacent requests into one call: `virtio_blk_rw_complete` walks the members in
//! ascending offset, head first, and hands each one back, so their offsets are the running sum.

use nestrace_abi::Kind;
use nestrace_trace::Event;

mod discards;
mod early;

use discards::EndedUnmap;
use early::EarlyCall;

use super::again::Again;
use super::bus::Bus;
use super::{FLUSH, READ, UNMAP, WRITE};
use crate::model::pointer::PointerMap;
use crate::model::span::What;

/// `BDRV_REQ_FUA` of QEMU's `block/block-common.h`.
const BDRV_REQ_FUA: u32 = 0x10;

/// What QEMU's requests did since the last drain.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// A call into the block graph began; reported again where its request is known only later.
    Called(Call),
    /// A request ended.
    Ended(Ended),
    /// A call is over without a word: its request started again, or its end was lost.
    Dropped(u64),
}

/// A `blk_aio_*` call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call {
    /// Number that no other call of the guest has.
    pub serial: u64,
    pub guest: u32,
    /// Index into the guest's disks, as far as known yet.
    pub disk: Option<u32>,
    pub what: What,
    /// It writes zeroes: no data of its own.
    pub zeroes: bool,
    /// It must be on the device when it ends.
    pub fua: bool,
    pub offset: u64,
    pub bytes: u64,
    /// Address of the first buffer; 0 if unknown.
    pub buffer: u64,
    pub start_ns: u64,
    /// No accounted request stands behind it, and no event says when it completes.
    pub unaccounted: bool,
}

/// A request that `block_acct_done` or `block_acct_failed` ended, or the completion notification of one that is not
/// accounted for.
#[derive(Clone, Debug)]
pub(crate) struct Ended {
    pub serial: u64,
    pub guest: u32,
    /// Index into the guest's disks, as far as known.
    pub disk: Option<u32>,
    pub what: What,
    /// `None` where no call could be tied to it.
    pub offset: Option<u64>,
    pub bytes: u64,
    pub start_ns: u64,
    /// Thread of `block_acct_start`.
    pub tid: u32,
    /// Thread of the completion notification, else of `block_acct_done`.
    pub end_tid: u32,
    pub handed_back_ns: Option<u64>,
    /// Address of the virtqueue of the completion notification; 0 where it was not seen.
    pub queue: u64,
    pub done_ns: u64,
    pub failed: bool,
    pub merged: bool,
    /// Serial of the discard that it goes on with.
    pub continues: Option<u64>,
    /// The calls that served it.
    pub calls: Vec<u64>,
    /// Those that it was the last member of.
    pub calls_over: Vec<u64>,
}

#[derive(Clone, Debug)]
struct Request {
    serial: u64,
    stats: u64,
    kind: usize,
    bytes: u64,
    tid: u32,
    start_ns: u64,
    offset: Option<u64>,
    handed_back_ns: Option<u64>,
    /// Thread of the completion notification; 0 without one.
    handed_back_tid: u32,
    queue: u64,
    merged: bool,
    /// SCSI: what the calls are for; pieces of one UNMAP share it.
    opaque: u64,
    continues: Option<u64>,
    calls: Vec<u64>,
    again: Option<Again>,
}

impl Request {
    /// Its place is known from now on.
    fn lies_at(&mut self, offset: u64) {
        self.offset = Some(offset);
        let again = self.again.take();
        if let Some(own) = again.and_then(|again| again.is_another_at(offset)) {
            (self.serial, self.start_ns) = own;
        }
    }
}

/// A call on virtio-blk whose members are completing.
#[derive(Clone, Copy, Debug)]
struct HandingBack {
    call: u64,
    stats: u64,
    kind: usize,
    /// Where the next member begins.
    next: u64,
    end: u64,
}

/// A call whose requests have not all ended.
#[derive(Clone, Copy, Debug)]
struct OpenCall {
    offset: u64,
    bytes: u64,
    /// Bytes of members that have not ended.
    left: u64,
}

/// The requests of one QEMU.
#[derive(Debug, Default)]
pub(super) struct Requests {
    guest: u32,
    in_flight: PointerMap<u64, Request>,
    /// The request that a thread started last and that has no call yet.
    waiting: PointerMap<u32, u64>,
    /// SCSI and IDE: the request that an `opaque` continues: its cookie and serial.
    by_opaque: PointerMap<u64, (u64, u64)>,
    calls: PointerMap<u64, OpenCall>,
    handing_back: PointerMap<u32, HandingBack>,
    /// Discards that QEMU does not account for, by element.
    discards: PointerMap<u64, (Request, Option<u32>)>,
    last_unmap: Option<EndedUnmap>,
    early: Vec<EarlyCall>,
    serial: u64,
    pub steps: Vec<Step>,
}

/// How a call is tied to its request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tie {
    pub disk: Option<u32>,
    pub bus: Bus,
    /// Cookie at the constant distance from `opaque`, once that is certain.
    pub by_distance: Option<u64>,
}

impl Requests {
    pub(super) fn new(guest: u32) -> Self {
        Self {
            guest,
            ..Self::default()
        }
    }

    /// Forgets what is in flight.
    pub(super) fn interrupted(&mut self) {
        let mut steps = std::mem::take(&mut self.steps);
        steps.extend(self.calls.keys().map(|call| Step::Dropped(*call)));
        *self = Self {
            guest: self.guest,
            serial: self.serial,
            steps,
            ..Self::default()
        };
    }

    pub(super) fn started(&mut self, event: &Event) {
        self.serial += 1;
        // A request that an error stopped (`werror=stop`) starts again: to the guest it is one.
        let again = self.in_flight.remove(&event.object);
        for call in again.iter().flat_map(|old| &old.calls) {
            self.calls.remove(call);
            self.steps.push(Step::Dropped(*call));
        }
        let again = again.filter(|old| {
            old.bytes == event.bytes
                && old.kind == usize::from(event.sub)
                && old.handed_back_ns.is_none()
        });

        let request = Request {
            serial: again.as_ref().map_or(self.serial, |old| old.serial),
            stats: event.stats(),
            kind: usize::from(event.sub),
            bytes: event.bytes,
            tid: event.tid,
            start_ns: again.as_ref().map_or(event.ts_ns, |old| old.start_ns),
            offset: None,
            handed_back_ns: None,
            handed_back_tid: 0,
            queue: 0,
            merged: false,
            opaque: 0,
            continues: None,
            calls: Vec::new(),
            again: again.and_then(|old| old.offset).map(|offset| Again {
                offset,
                serial: self.serial,
                start_ns: event.ts_ns,
            }),
        };
        self.in_flight.insert(event.object, request);
        self.waiting.insert(event.tid, event.object);
    }

    pub(super) fn called(&mut self, kind: Kind, event: &Event, tie: Tie) {
        let (acct, what) = match kind {
            Kind::AioPreadv => (READ, What::Read),
            Kind::AioPwritev | Kind::AioPwriteZeroes => (WRITE, What::Write),
            Kind::AioFlush => (FLUSH, What::Flush),
            _ => (UNMAP, What::Discard),
        };
        if let Some(cookie) = tie.by_distance {
            self.tie_early(cookie.wrapping_sub(event.object));
        }
        let cookie = self.cookie(acct, event, tie);
        self.serial += 1;
        let mut call = Call {
            serial: self.serial,
            guest: self.guest,
            disk: tie.disk,
            what,
            zeroes: kind == Kind::AioPwriteZeroes,
            fua: event.flags & BDRV_REQ_FUA != 0,
            offset: event.offset,
            bytes: event.bytes,
            buffer: event.first_buffer(),
            start_ns: event.ts_ns,
            unaccounted: cookie.is_none(),
        };
        if acct == FLUSH {
            (call.offset, call.bytes) = (0, 0);
        }
        match cookie {
            Some(cookie) => self.serves(cookie, &call, event.object, event.tid),
            None if tie.bus == Bus::VirtioBlk && tie.by_distance.is_none() => {
                self.is_early(call, acct, event);
            }
            None => {}
        }
        if call.unaccounted && tie.bus == Bus::VirtioBlk && acct == UNMAP {
            self.unaccounted_discard(&mut call, event);
        }
        self.steps.push(Step::Called(call));
    }

    /// A call is its request's.
    fn serves(&mut self, cookie: u64, call: &Call, opaque: u64, tid: u32) {
        let Some(request) = self.in_flight.get_mut(&cookie) else {
            return;
        };
        if request.offset.is_none() {
            request.lies_at(call.offset);
        }
        request.calls.push(call.serial);
        request.opaque = opaque;
        request.continues = self.last_unmap.and_then(|last| last.goes_on_with(request));
        let open = OpenCall {
            offset: call.offset,
            bytes: call.bytes,
            left: call.bytes,
        };
        self.calls.insert(call.serial, open);
        let life = (cookie, request.serial);
        self.by_opaque.insert(opaque, life);
        if self.waiting.get(&tid) == Some(&cookie) {
            self.waiting.remove(&tid);
        }
    }

    fn cookie(&self, acct: usize, event: &Event, tie: Tie) -> Option<u64> {
        let fits = |cookie: &u64| {
            self.in_flight
                .get(cookie)
                .is_some_and(|request| request.kind == acct && request.tid == event.tid)
        };
        let fresh = |cookie: &u64| {
            self.in_flight
                .get(cookie)
                .is_some_and(|request| request.calls.is_empty())
        };
        let continued = || {
            let (cookie, serial) = *self.by_opaque.get(&event.object)?;
            let own = self.in_flight.get(&cookie)?.serial == serial;
            Some(cookie).filter(fits).filter(|_| own && acct != FLUSH)
        };
        // Where the distance is certain, a call that it gives no request has none, or one that was lost.
        if tie.bus == Bus::VirtioBlk
            && let Some(cookie) = tie.by_distance
        {
            let own = Some(cookie).filter(fits).filter(fresh);
            return own.or_else(continued);
        }
        // virtio-blk accounts for a batch before it calls.
        if tie.bus != Bus::Other && self.is_batch(event.tid) {
            return None;
        }
        let next = self.waiting.get(&event.tid).copied().filter(fits);
        next.or_else(continued)
    }

    /// Whether more than one request of a thread has no call.
    fn is_batch(&self, tid: u32) -> bool {
        let requests = self.in_flight.values();
        let without_call = |request: &&Request| request.tid == tid && request.calls.is_empty();
        requests.filter(without_call).nth(1).is_some()
    }

    /// The cookie's request goes back to the guest.
    pub(super) fn handed_back(&mut self, cookie: u64, event: &Event) {
        self.place(cookie, event.tid);
        if let Some(request) = self.in_flight.get_mut(&cookie) {
            if request.handed_back_ns.is_none() {
                request.handed_back_ns = Some(event.ts_ns);
                request.handed_back_tid = event.tid;
            }
            request.queue = event.virtqueue();
        }
    }

    /// A member of a merged call gets its offset when its turn has come.
    fn place(&mut self, cookie: u64, tid: u32) {
        let Some(request) = self.in_flight.get_mut(&cookie) else {
            return self.unknown_member(tid);
        };
        if let (Some(offset), [call]) = (request.offset, request.calls.as_slice()) {
            if !request.merged
                && let Some(open) = self.calls.get(call)
                && open.bytes > request.bytes
                && open.offset == offset
            {
                request.merged = true;
                let handing_back = HandingBack {
                    call: *call,
                    stats: request.stats,
                    kind: request.kind,
                    next: offset.saturating_add(request.bytes),
                    end: offset.saturating_add(open.bytes),
                };
                self.handing_back.insert(tid, handing_back);
            }
            return;
        }
        if !request.calls.is_empty() {
            return;
        }
        let Some(group) = self.handing_back.get_mut(&tid) else {
            return;
        };
        let end = group.next.saturating_add(request.bytes);
        if group.stats == request.stats && group.kind == request.kind && end <= group.end {
            request.lies_at(group.next);
            request.calls.push(group.call);
            request.merged = true;
            group.next = end;
            if end == group.end {
                self.handing_back.remove(&tid);
            }
        }
    }

    /// Where the start of a member was lost, nothing tells where the next one lies, nor when the last has ended.
    fn unknown_member(&mut self, tid: u32) {
        if let Some(group) = self.handing_back.remove(&tid) {
            self.calls.remove(&group.call);
            self.steps.push(Step::Dropped(group.call));
        }
    }

    pub(super) fn ended(&mut self, cookie: u64, failed: bool, disk: Option<u32>, event: &Event) {
        self.place(cookie, event.tid);
        let Some(request) = self.in_flight.remove(&cookie) else {
            return;
        };
        if self.waiting.get(&request.tid) == Some(&cookie) {
            self.waiting.remove(&request.tid);
        }
        if request.kind == UNMAP {
            self.last_unmap = Some(EndedUnmap {
                serial: request.serial,
                opaque: request.opaque,
                tid: event.tid,
                done_ns: event.ts_ns,
                next: request.offset.unwrap_or(0).saturating_add(request.bytes),
            });
        }
        self.end(request, failed, disk, event);
    }

    fn end(&mut self, request: Request, failed: bool, disk: Option<u32>, event: &Event) {
        let mut calls_over = Vec::new();
        for call in &request.calls {
            let over = self.calls.get_mut(call).is_none_or(|open| {
                open.left = open.left.saturating_sub(request.bytes.max(1));
                open.left == 0 || !request.merged
            });
            if over {
                self.calls.remove(call);
                calls_over.push(*call);
            }
        }
        self.forget_opaques();
        self.steps.push(Step::Ended(Ended {
            serial: request.serial,
            guest: self.guest,
            disk,
            what: match request.kind {
                READ => What::Read,
                WRITE => What::Write,
                FLUSH => What::Flush,
                UNMAP => What::Discard,
                _ => What::Other,
            },
            offset: request.offset,
            bytes: request.bytes,
            start_ns: request.start_ns,
            tid: request.tid,
            end_tid: match request.handed_back_tid {
                0 => event.tid,
                tid => tid,
            },
            handed_back_ns: request.handed_back_ns,
            queue: request.queue,
            done_ns: event.ts_ns,
            failed,
            merged: request.merged,
            continues: request.continues,
            calls: request.calls,
            calls_over,
        }));
    }

    /// Addresses of requests that have ended are dropped when they are many.
    fn forget_opaques(&mut self) {
        if self.by_opaque.len() > 64 + 4 * self.in_flight.len() {
            let in_flight = &self.in_flight;
            self.by_opaque
                .retain(|_, (cookie, _)| in_flight.contains_key(cookie));
        }
    }
}

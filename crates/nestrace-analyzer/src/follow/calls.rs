//! Calls of a guest's programs in flight: system calls by thread, native aio by control block, io_uring by request.
//!
//! A thread is in one call at a time. A call that was submitted is worked on by the submitting thread until the next
//! submission or until a worker takes it, and by the thread that begins its direct I/O or its sync.

mod bios;
mod log_space;

use nestrace_abi::{Kind, flags, flags::op};
use nestrace_trace::Event;

use log_space::LogSpace;

use crate::model::aio_key::AioKey;
use crate::model::call::{By, Call, Caller, FileId, PAGE_FAULT};
use crate::model::pointer::PointerMap;

/// Calls in flight that are followed, of threads and of submissions each. A guest can begin more and end none, and each
/// bio of pages is compared with all of them.
const MAX_IN_FLIGHT: usize = 1 << 13;
/// Pauses of one call.
const MAX_THROTTLES: usize = 1 << 10;
/// Bios on their way that are known to be of a call.
const MAX_CARRIED: usize = 1 << 17;

/// O_DSYNC, O_DIRECT and __O_SYNC of x86-64's `fcntl.h`.
const O_DSYNC: u32 = 0o10_000;
const O_DIRECT: u32 = 0o40_000;
const O_SYNC: u32 = 0o4_000_000;
/// RWF_DSYNC and RWF_SYNC of `linux/fs.h`.
const RWF_DSYNC: u32 = 2;
const RWF_SYNC: u32 = 4;

/// The call that a bio was queued in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Carrier {
    pub serial: u64,
    pub caller: Caller,
    queued_ns: u64,
}

/// Calls in flight, and those that have ended since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct Calls {
    by_thread: PointerMap<u32, Call>,
    /// Page faults that may have to wait, by thread.
    faulting: PointerMap<u32, Call>,
    /// Native aio and io_uring, by serial.
    submitted: PointerMap<u64, Call>,
    aio: PointerMap<AioKey, u64>,
    uring: PointerMap<u64, u64>,
    /// By the kernel's control block.
    by_kiocb: PointerMap<u64, u64>,
    /// The submitted call that a thread works on.
    working: PointerMap<u32, u64>,
    /// When a thread last queued a bio of a program's own memory that names no control block.
    unnamed: PointerMap<u32, u64>,
    log_space: LogSpace,
    /// By the bio's address.
    carried: PointerMap<u64, Carrier>,
    /// Calls that have ended and were not taken yet.
    pub ended: Vec<Call>,
    /// Calls whose end was not seen, with bios that they hold, and not taken yet.
    pub given_up: Vec<Call>,
    /// How many calls' ends were not seen.
    pub unended: u64,
    serial: u64,
}

impl Calls {
    /// Takes an event of a call.
    pub(crate) fn push(&mut self, kind: Kind, event: &Event) {
        match kind {
            Kind::SyscallEnter => self.enter(event),
            Kind::SyscallExit if event.sub == op::IO_SUBMIT => self.batch_submitted(event),
            Kind::SyscallExit => self.exit(event),
            Kind::AioSubmit => self.aio_submit(event),
            Kind::UringSubmit => self.uring_submit(event),
            Kind::UringAsync => self.handed_over(event),
            Kind::UringComplete => {
                if let Some(serial) = self.uring.get(&event.object).copied() {
                    self.end_submitted(serial, event.result(), event.ts_ns);
                }
            }
            Kind::DioBegin => self.direct_io_begins(event),
            Kind::DioComplete => self.direct_io_ends(event),
            Kind::SyncEnter => self.sync_begins(event),
            Kind::SyncExit => self.sync_ends(event),
            Kind::CallDone => self.done(event),
            Kind::DirtyThrottle => self.pauses(event),
            Kind::LogSpace => self.log_space.event(event),
            Kind::PageFault => self.faults(event),
            _ => {}
        }
    }

    fn begin(&mut self, event: &Event, by: By) -> Call {
        self.serial += 1;
        let (rwf, opened) = match event.sub {
            op::READ | op::WRITE => (event.flags, event.aux),
            _ => (0, 0),
        };
        let is_write = event.sub == op::WRITE;
        let syncs_all = rwf & RWF_SYNC != 0 || opened & O_SYNC != 0;
        let syncs_data = rwf & RWF_DSYNC != 0 || opened & O_DSYNC != 0;
        Call {
            serial: self.serial,
            caller: Caller {
                tid: event.tid,
                op: event.sub,
                file: file_of(event),
            },
            by,
            offset: event.offset,
            bytes: event.bytes,
            start_ns: event.ts_ns,
            end_ns: event.ts_ns,
            result: 0,
            direct: opened & O_DIRECT != 0,
            synced_write: is_write && (syncs_all || syncs_data),
            data_only: event.sub == op::FDATASYNC || is_write && syncs_data && !syncs_all,
            last_write_ns: 0,
            bios: Vec::new(),
            throttles: Vec::new(),
            log_space: Vec::new(),
            transactions: (0, 0),
            log_forced_ns: None,
            log_waits: Vec::new(),
            log_writes: Vec::new(),
            commit_waits: Vec::new(),
            recorded_at_return: false,
            direct_begun: false,
            kiocb: 0,
            has_bio: false,
            has_direct_bio: false,
            bytes_left: event.bytes,
            incomplete: false,
        }
    }

    fn enter(&mut self, event: &Event) {
        self.working.remove(&event.tid);
        self.no_fault(event.tid);
        let mut call = self.begin(event, By::Thread);
        // It is recorded when it comes to its file.
        if event.sub == op::MSYNC {
            call.start_ns = event.related.min(event.ts_ns);
        }
        if self.by_thread.len() >= MAX_IN_FLIGHT && !self.by_thread.contains_key(&event.tid) {
            self.unended += 1;
            return;
        }
        if let Some(unended) = self.by_thread.insert(event.tid, call) {
            self.give_up(unended);
        }
    }

    fn exit(&mut self, event: &Event) {
        let Some(mut call) = self.by_thread.remove(&event.tid) else {
            return;
        };
        if call.caller.op != event.sub {
            return self.give_up(call);
        }
        call.end_ns = event.ts_ns;
        call.result = event.result();
        self.thread_call_ended(call);
    }

    /// A call that is recorded at its return.
    fn done(&mut self, event: &Event) {
        let mut begun = *event;
        begun.ts_ns = event.related.min(event.ts_ns);
        begun.offset = 0;
        let mut call = self.begin(&begun, By::Thread);
        call.end_ns = event.ts_ns;
        call.result = event.result();
        call.recorded_at_return = true;
        self.thread_call_ended(call);
    }

    fn thread_call_ended(&mut self, mut call: Call) {
        let within = (call.start_ns, call.end_ns);
        call.log_space = self.log_space.take(call.caller.tid, within);
        self.ended.push(call);
    }

    /// A writer sleeps, until its next pause or its return at the latest.
    fn pauses(&mut self, event: &Event) {
        if let Some(call) = self.of_thread_mut(event.tid)
            && call.throttles.len() < MAX_THROTTLES
        {
            if let Some((_, last_ns)) = call.throttles.last_mut() {
                *last_ns = (*last_ns).min(event.ts_ns);
            }
            let end_ns = event.ts_ns.saturating_add(event.offset);
            call.throttles.push((event.ts_ns, end_ns));
        }
    }

    /// A fault looks into the page cache: for the first time, or again when it had to wait for the page.
    fn faults(&mut self, event: &Event) {
        let file = file_of(event);
        let waited = self.faulting.get(&event.tid).is_some_and(|before| {
            (before.caller.file, before.offset) == (file, event.offset) && !before.bios.is_empty()
        });
        if waited && let Some(mut before) = self.faulting.remove(&event.tid) {
            before.end_ns = event.ts_ns;
            return self.ended.push(before);
        }
        self.no_fault(event.tid);
        if self.faulting.len() < MAX_IN_FLIGHT {
            let mut of_a_page = *event;
            of_a_page.sub = PAGE_FAULT;
            of_a_page.bytes = 1;
            let call = self.begin(&of_a_page, By::Thread);
            self.faulting.insert(event.tid, call);
        }
    }

    fn submit(&mut self, event: &Event, by: By) -> Option<u64> {
        if self.submitted.len() >= MAX_IN_FLIGHT {
            self.unended += 1;
            return None;
        }
        let call = self.begin(event, by);
        let serial = call.serial;
        // The control blocks of one io_submit are all recorded before the first of them is worked on. Where there are
        // several, the thread alone does not say which of them a bio is for.
        let before = self.working.get(&event.tid);
        let before = before.and_then(|serial| self.submitted.get(serial));
        let in_a_batch = before.is_some_and(|call| matches!(call.by, By::Aio(_)) && !call.has_bio);
        match (in_a_batch, by) {
            (true, By::Aio(_)) => self.working.remove(&event.tid),
            _ => self.working.insert(event.tid, serial),
        };
        self.submitted.insert(serial, call);
        Some(serial)
    }

    fn aio_submit(&mut self, event: &Event) {
        let key = AioKey::of_submission(event);
        if let Some(serial) = self.submit(event, By::Aio(key))
            && let Some(old) = self.aio.insert(key, serial)
        {
            self.forget(old);
        }
    }

    /// `io_submit` returns. Reads and writes that have sent no bio of their own are over: what goes through the page cache is
    /// done before the return (`aio_read()` and `aio_write()` in fs/aio.c complete it there), and so is what reads a hole.
    fn batch_submitted(&mut self, event: &Event) {
        // Which of the calls before it such a bio is for is not known.
        let unnamed_ns = self.unnamed.remove(&event.tid);
        let is_over = |call: &&Call| {
            matches!(call.by, By::Aio(_))
                && call.caller.tid == event.tid
                && unnamed_ns.is_none_or(|queued_ns| queued_ns < call.start_ns)
                && matches!(call.caller.op, op::READ | op::WRITE)
                && !call.direct_begun
                && !call.has_direct_bio
        };
        let over = self.submitted.values().filter(is_over);
        let over: Vec<(u64, u64)> = over.map(|call| (call.serial, call.bytes)).collect();
        for (serial, bytes) in over {
            self.end_submitted(
                serial,
                i64::try_from(bytes).unwrap_or(i64::MAX),
                event.ts_ns,
            );
        }
        self.working.remove(&event.tid);
    }

    fn uring_submit(&mut self, event: &Event) {
        if let Some(serial) = self.submit(event, By::Uring(event.object)) {
            // The kernel's control block of a read or write is the head of its request.
            self.has_kiocb(serial, event.object);
            if let Some(old) = self.uring.insert(event.object, serial) {
                self.forget(old);
            }
        }
    }

    /// Its end was not seen.
    fn give_up(&mut self, call: Call) {
        self.unended += 1;
        if !call.bios.is_empty() {
            self.given_up.push(call);
        }
    }

    fn forget(&mut self, serial: u64) {
        if let Some(call) = self.submitted.remove(&serial) {
            self.give_up(call);
        }
    }

    /// The thread goes on after a fault that did not look again: the kernel maps a page that has come with those around it
    /// (`do_fault_around()`). A fault that waited for no read has ended at once.
    fn no_fault(&mut self, tid: u32) {
        if let Some(mut fault) = self.faulting.remove(&tid) {
            if let Some(came_ns) = fault.page_came_ns() {
                fault.end_ns = came_ns;
                self.ended.push(fault);
            } else if !fault.bios.is_empty() {
                self.given_up.push(fault);
            }
        }
    }

    /// Both streams have ended: what faults waited for is known.
    pub(crate) fn end_faults(&mut self) {
        let threads: Vec<u32> = self.faulting.keys().copied().collect();
        threads.into_iter().for_each(|tid| self.no_fault(tid));
    }

    /// A worker goes on: what the submitter queues from now on is not this request's.
    fn handed_over(&mut self, event: &Event) {
        let serial = self.uring.get(&event.object);
        if serial.is_some() && self.working.get(&event.tid) == serial {
            self.working.remove(&event.tid);
        }
    }

    fn end_submitted(&mut self, serial: u64, result: i64, ts_ns: u64) {
        if let Some(mut call) = self.submitted.remove(&serial) {
            if self.by_kiocb.get(&call.kiocb) == Some(&serial) {
                self.by_kiocb.remove(&call.kiocb);
            }
            match call.by {
                By::Aio(key) => self.aio.remove(&key),
                By::Uring(request) => self.uring.remove(&request),
                By::Thread => None,
            };
            call.end_ns = ts_ns;
            call.result = result;
            self.ended.push(call);
        }
    }

    fn direct_io_begins(&mut self, event: &Event) {
        let by_origin = self.aio.get(&AioKey::of_direct_io(event));
        let serial = by_origin.or_else(|| self.uring.get(&event.origin));
        let Some(serial) = serial.copied().filter(|_| event.origin != 0) else {
            return;
        };
        if let Some(call) = self.submitted.get_mut(&serial) {
            call.direct_begun = true;
            self.has_kiocb(serial, event.object);
            self.working.insert(event.tid, serial);
        }
    }

    fn has_kiocb(&mut self, serial: u64, kiocb: u64) {
        if let Some(call) = self.submitted.get_mut(&serial) {
            call.kiocb = kiocb;
            self.by_kiocb.insert(kiocb, serial);
        }
    }

    fn direct_io_ends(&mut self, event: &Event) {
        let Some(serial) = self.aio.get(&AioKey::of_direct_io(event)).copied() else {
            return;
        };
        if event.aux == 0 {
            let bytes = i64::try_from(event.bytes).unwrap_or(i64::MAX);
            self.end_submitted(serial, bytes, event.ts_ns);
        }
    }

    /// A file system begins a sync: in the calling thread, or in a worker for the one submitted sync of that file that no
    /// thread works on. Where there are several, nothing says which.
    fn sync_begins(&mut self, event: &Event) {
        if self.by_thread.contains_key(&event.tid) || self.working.contains_key(&event.tid) {
            return;
        }
        let file = file_of(event);
        let idle = |call: &&Call| {
            call.caller.file == file
                && call.syncs()
                && !self.working.values().any(|serial| *serial == call.serial)
        };
        let mut candidates = self.submitted.values().filter(idle);
        if let (Some(only), None) = (candidates.next(), candidates.next()) {
            self.working.insert(event.tid, only.serial);
        }
    }

    fn sync_ends(&mut self, event: &Event) {
        let ids = (event.related as u32, (event.related >> 32) as u32);
        let file = file_of(event);
        if let Some(call) = self.of_thread_mut(event.tid)
            && call.caller.file == file
        {
            call.transactions = ids;
        }
        let Some(serial) = self.working.remove(&event.tid) else {
            return;
        };
        // Native aio's sync has no other end.
        let call = self.submitted.get(&serial);
        if call.is_some_and(|call| matches!(call.by, By::Aio(_))) {
            self.end_submitted(serial, event.result(), event.ts_ns);
        }
    }

    /// The call that the thread is in or works on.
    pub(crate) fn of_thread_mut(&mut self, tid: u32) -> Option<&mut Call> {
        if let Some(call) = self.faulting.get_mut(&tid) {
            return Some(call);
        }
        if let Some(call) = self.by_thread.get_mut(&tid) {
            return Some(call);
        }
        self.submitted.get_mut(self.working.get(&tid)?)
    }

    /// The submitted call whose control block a bio of direct I/O names.
    fn of_direct_io(&self, event: &Event) -> Option<&Call> {
        if event.sub != flags::OWNER_DIRECT || event.iocb == 0 {
            return None;
        }
        let by_origin = || self.aio.get(&AioKey::of_direct_io(event));
        let serial = self.by_kiocb.get(&event.iocb).or_else(by_origin)?;
        self.submitted.get(serial)
    }

    /// Calls in flight.
    pub(crate) fn in_flight(&mut self) -> impl Iterator<Item = &mut Call> {
        let of_threads = self.by_thread.values_mut();
        let of_threads = of_threads.chain(self.faulting.values_mut());
        of_threads.chain(self.submitted.values_mut())
    }

    /// The call with this serial, if it is in flight.
    pub(crate) fn get_mut(&mut self, carrier: &Carrier) -> Option<&mut Call> {
        let tid = carrier.caller.tid;
        let of_thread = self.by_thread.get_mut(&tid);
        let of_thread = of_thread.into_iter().chain(self.faulting.get_mut(&tid));
        let mut of_thread = of_thread.filter(|call| call.serial == carrier.serial);
        match of_thread.next() {
            Some(call) => Some(call),
            None => self.submitted.get_mut(&carrier.serial),
        }
    }

    /// When the oldest call in flight began.
    pub(crate) fn oldest_ns(&self) -> Option<u64> {
        let all = self.by_thread.values().chain(self.submitted.values());
        all.map(|call| call.start_ns).min()
    }

    /// Events are missing: a call in flight may have ended, and its end may be another's.
    pub(crate) fn interrupted(&mut self) {
        let before = std::mem::take(self);
        self.serial = before.serial;
        self.unended = before.unended;
        self.ended = before.ended;
        self.given_up = before.given_up;
        let of_threads = before.by_thread.into_values();
        for call in of_threads.chain(before.submitted.into_values()) {
            self.give_up(call);
        }
        let faults = before.faulting.into_values();
        self.given_up
            .extend(faults.filter(|fault| !fault.bios.is_empty()));
    }
}

/// The file that an event of a call names.
pub(crate) const fn file_of(event: &Event) -> FileId {
    FileId {
        dev: event.owner_dev,
        inode: event.inode,
    }
}

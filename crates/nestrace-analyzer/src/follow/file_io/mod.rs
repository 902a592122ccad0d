//! QEMU's file I/O on image files: system calls by thread, native aio by control block, io_uring
//! by request.
//!
//! A call counts when it has succeeded, with the bytes that it returned. Native aio is counted
//! when the kernel has accepted it (`io_submit` may take fewer control blocks than it is given);
//! its end is the end of direct I/O in iomap, or where that has no tracepoint the end of its last
//! bio, or the return of `io_submit` if it never became direct I/O.

mod host;
mod rpc;
mod spans;

use nestrace_abi::{Kind, flags::op};
use nestrace_trace::Event;

use crate::follow::image::Images;
use crate::measure::overlap::Activity;
use crate::model::aio_key::AioKey;
use crate::model::file_io_span::FileEnd;
use crate::model::pointer::PointerMap;

use host::Host;
use rpc::Rpcs;
pub(crate) use spans::FileSpans;

/// RWF_DSYNC and RWF_SYNC of `linux/fs.h`.
const RWF_ANY_SYNC: u32 = 0x2 | 0x4;

/// Errno of iomap where direct I/O cannot be: the file system goes on with buffered I/O.
const ENOTBLK: u32 = 15;

/// One call in flight.
#[derive(Clone, Copy, Debug)]
struct Call {
    /// Of its span; 0 unless spans were asked for.
    serial: u64,
    image: u32,
    op: u8,
    dsync: bool,
    bytes: u64,
    start_ns: u64,
    /// Its end will be known, so the disk's clocks may run for it.
    timed: bool,
}

impl Call {
    const fn syncs(&self) -> bool {
        self.dsync || matches!(self.op, op::FSYNC | op::FDATASYNC)
    }

    /// Its end was not seen: it counts with the bytes that it asked for.
    const fn ended_unseen(&self) -> Outcome {
        Outcome::DoneSometime { bytes: self.bytes }
    }
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Done {
        bytes: u64,
    },
    Failed,
    /// It ended at an unknown time.
    DoneSometime {
        bytes: u64,
    },
    /// The kernel did not take it.
    Refused,
}

impl Outcome {
    fn of(result: i64) -> Self {
        u64::try_from(result).map_or(Self::Failed, |bytes| Self::Done { bytes })
    }

    const fn span_end(self) -> (FileEnd, Option<u64>) {
        match self {
            Self::Done { bytes } => (FileEnd::Done, Some(bytes)),
            Self::Failed => (FileEnd::Failed, None),
            Self::DoneSometime { bytes } => (FileEnd::Sometime, Some(bytes)),
            Self::Refused => (FileEnd::Refused, None),
        }
    }
}

/// An iocb between `io_submit` and its end.
#[derive(Clone, Copy, Debug)]
struct Aio {
    call: Call,
    /// Direct I/O was seen for it.
    direct: bool,
    /// Bytes that no ended bio has covered.
    left: u64,
    /// When its call returned without a bio: a limit may hold it back, or it was done.
    returned_ns: Option<u64>,
}

impl Aio {
    /// Ends it at `ts_ns` without a recorded end; if no bio came, it was done when its call returned.
    fn end_unseen(&self, host: &mut Host<'_>, ts_ns: u64) {
        let bytes = self.call.bytes;
        match self.returned_ns.filter(|_| !self.direct) {
            Some(returned_ns) => host.end(&self.call, Outcome::Done { bytes }, returned_ns),
            None => host.end(&self.call, self.call.ended_unseen(), ts_ns),
        }
    }
}

/// File I/O in flight.
#[derive(Debug, Default)]
pub(crate) struct FileIo {
    by_thread: PointerMap<u32, Call>,
    batches: PointerMap<u32, Vec<AioKey>>,
    aio: PointerMap<AioKey, Aio>,
    uring: PointerMap<u64, Call>,
    /// The image of each thread's last submission or direct I/O.
    submitting: PointerMap<u32, u32>,
    /// Submissions whose file the kernel had not looked up yet; direct I/O tells it.
    uring_without_file: PointerMap<u64, Event>,
    /// Calls to servers.
    rpcs: Rpcs,
    /// Begins of direct I/O are recorded (`iomap_dio_rw_begin`).
    dio_begin_recorded: bool,
    /// Events were seen.
    pub recorded: bool,
    /// Spans of what has ended, for the caller to drain; `None` unless asked for.
    pub spans: Option<Box<FileSpans>>,
}

impl FileIo {
    pub(crate) fn push(
        &mut self,
        kind: Kind,
        event: &Event,
        images: &mut Images,
        activity: &mut [Activity],
    ) {
        self.recorded = true;
        self.note_submitter(kind, event, images);
        let mut spans = self.spans.take();
        let mut host = Host {
            images,
            activity,
            spans: spans.as_deref_mut(),
        };
        match kind {
            Kind::SyscallEnter => self.enter(event, &mut host),
            Kind::SyscallExit => self.exit(event, &mut host),
            Kind::AioSubmit => self.aio_submit(event, &mut host),
            Kind::UringSubmit => self.uring_submit(event, &mut host),
            Kind::UringComplete => {
                self.uring_without_file.remove(&event.object);
                if let Some(call) = self.uring.remove(&event.object) {
                    host.end(&call, Outcome::of(event.result()), event.ts_ns);
                }
            }
            Kind::DioBegin => self.dio_begin(event, &mut host),
            Kind::DioComplete => self.dio_complete(event, &mut host),
            Kind::UringAsync => self.uring_async(event, &mut host),
            Kind::SyncEnter => host.sync_enter(event),
            Kind::SyncExit => self.sync_exit(event, &mut host),
            Kind::RpcBegin => self.rpc_begins(event, &mut host),
            Kind::RpcEnd => self.rpc_ends(event, &mut host),
            _ => {}
        }
        self.spans = spans;
    }

    /// A worker goes on: what the submitter queues from now on is not this request's.
    fn uring_async(&self, event: &Event, host: &mut Host<'_>) {
        if let (Some(spans), Some(call)) = (&mut host.spans, self.uring.get(&event.object)) {
            spans.handed_over(event.tid, call.serial);
        }
    }

    /// Remembers on which image a thread works now: until it returns, its direct I/O is that image's.
    fn note_submitter(&mut self, kind: Kind, event: &Event, images: &Images) {
        let image = match kind {
            Kind::SyscallEnter | Kind::AioSubmit | Kind::UringSubmit => {
                images.of_file(event, event.dev)
            }
            Kind::DioBegin => images.of_inode(event),
            Kind::SyscallExit => None,
            _ => return,
        };
        // Direct I/O names the file, and not the guest that has it too.
        let known = || self.submitting.get(&event.tid).copied();
        let image = match image.zip(known()) {
            Some((new, known)) if kind == Kind::DioBegin && images.same_file(new, known) => {
                Some(known)
            }
            _ => image,
        };
        match image {
            Some(image) => self.submitting.insert(event.tid, image),
            // io_uring may not have looked up the file yet; direct I/O follows.
            None => self.submitting.remove(&event.tid),
        };
    }

    /// The image that the thread of a bio is submitting direct I/O on. For bios that carry anonymous
    /// memory and name no kiocb (btrfs, block devices): the thread that queues them is in the call.
    pub(crate) fn submitting(&self, tid: u32) -> Option<u32> {
        self.submitting.get(&tid).copied()
    }

    fn enter(&mut self, event: &Event, host: &mut Host<'_>) {
        if let Some(unended) = self.by_thread.remove(&event.tid) {
            // A thread is in one call at a time: the return of the last one was lost.
            host.end(&unended, unended.ended_unseen(), event.ts_ns);
        }
        if event.sub == op::IO_SUBMIT {
            self.batches.insert(event.tid, Vec::new());
        } else if let Some(call) = host.begin(event) {
            self.by_thread.insert(event.tid, call);
        }
    }

    fn exit(&mut self, event: &Event, host: &mut Host<'_>) {
        if let Some(spans) = &mut host.spans {
            spans.leaves(event.tid);
        }
        if event.sub == op::IO_SUBMIT {
            self.submitted(event, host);
        } else if let Some(call) = self.by_thread.remove(&event.tid) {
            host.end(&call, Outcome::of(event.result()), event.ts_ns);
        }
    }

    fn aio_submit(&mut self, event: &Event, host: &mut Host<'_>) {
        let Some(call) = host.begin(event) else {
            // It still takes a place in the batch.
            if let Some(batch) = self.batches.get_mut(&event.tid) {
                batch.push(AioKey::default());
            }
            return;
        };
        let key = AioKey::of_submission(event);
        let aio = Aio {
            call,
            direct: false,
            left: call.bytes,
            returned_ns: None,
        };
        if let Some(old) = self.aio.insert(key, aio) {
            old.end_unseen(host, event.ts_ns);
        }
        if let Some(batch) = self.batches.get_mut(&event.tid) {
            batch.push(key);
        }
    }

    /// `io_submit` returned: the kernel took the first `result` control blocks.
    fn submitted(&mut self, event: &Event, host: &mut Host<'_>) {
        let Some(batch) = self.batches.remove(&event.tid) else {
            return;
        };
        let taken = usize::try_from(event.result()).unwrap_or(0);
        for (i, key) in batch.iter().enumerate() {
            let Some(aio) = self.aio.get_mut(key) else {
                continue;
            };
            let is_apart = !matches!(aio.call.op, op::READ | op::WRITE)
                || aio.direct
                || host.always_direct(aio.call.image);
            let image = aio.call.image;
            let may_begin_later = !self.dio_begin_recorded && host.images.may_be_held(image)
                || host.images.is_direct_at_server(image);
            if i < taken && !is_apart && may_begin_later {
                aio.returned_ns = Some(event.ts_ns);
                continue;
            }
            let aio = *aio;
            if i >= taken {
                self.aio.remove(key);
                host.end(&aio.call, Outcome::Refused, event.ts_ns);
            } else if !is_apart {
                // Buffered: the work was done inside the call.
                self.aio.remove(key);
                host.end(
                    &aio.call,
                    Outcome::Done {
                        bytes: aio.call.bytes,
                    },
                    event.ts_ns,
                );
            }
        }
    }

    fn dio_begin(&mut self, event: &Event, host: &mut Host<'_>) {
        self.dio_begin_recorded = true;
        if let Some(aio) = self.aio.get_mut(&AioKey::of_direct_io(event)) {
            aio.direct = true;
        }
        self.find_file_of_uring(event, host);
        let serial = self.serial_of_direct_io(event, host.images);
        if let (Some(spans), Some(serial)) = (&mut host.spans, serial) {
            spans.direct_io(serial, event);
        }
    }

    /// The call that direct I/O belongs to.
    fn serial_of_direct_io(&self, event: &Event, images: &Images) -> Option<u64> {
        if let Some(aio) = self.aio.get(&AioKey::of_direct_io(event)) {
            return Some(aio.call.serial);
        }
        if let Some(call) = self.uring.get(&event.origin).filter(|_| event.origin != 0) {
            return Some(call.serial);
        }
        let call = self.by_thread.get(&event.tid)?;
        let image = images.of_file(event, event.dev)?;
        images.same_file(image, call.image).then_some(call.serial)
    }

    fn find_file_of_uring(&mut self, event: &Event, host: &mut Host<'_>) {
        if let Some(mut submit) = self.uring_without_file.remove(&event.object) {
            submit.inode = event.inode;
            submit.owner_dev = event.owner_dev;
            self.uring_submit(&submit, host);
        }
    }

    fn uring_submit(&mut self, event: &Event, host: &mut Host<'_>) {
        if event.inode == 0 && matches!(event.sub, op::READ | op::WRITE) {
            self.uring_without_file.insert(event.object, *event);
            return;
        }
        if let Some(unended) = self.uring.remove(&event.object) {
            host.end(&unended, unended.ended_unseen(), event.ts_ns);
        }
        if let Some(call) = host.begin(event) {
            self.uring.insert(event.object, call);
        }
    }

    fn dio_complete(&mut self, event: &Event, host: &mut Host<'_>) {
        // Also where the end of its last bio has ended it already: from now on this is the end.
        if let Some(image) = host.images.of_inode(event) {
            host.ends_are_told(image, |file| &mut file.dio_end_recorded);
        }
        let key = AioKey::of_direct_io(event);
        let Some(aio) = self.aio.get_mut(&key) else {
            return;
        };
        if event.errno() == ENOTBLK {
            aio.direct = false;
            return;
        }
        let Some(aio) = self.aio.remove(&key) else {
            return;
        };
        let outcome = if event.errno() == 0 {
            Outcome::Done { bytes: event.bytes }
        } else {
            Outcome::Failed
        };
        host.end(&aio.call, outcome, event.ts_ns);
    }

    /// Native aio's fsync runs in a kernel worker; the file system's own tracepoint tells its end.
    fn sync_exit(&mut self, event: &Event, host: &mut Host<'_>) {
        if let Some(image) = host.images.of_inode(event) {
            host.ends_are_told(image, |file| &mut file.sync_end_recorded);
        }
        if let Some(spans) = &mut host.spans {
            spans.sync_exit(event.tid);
        }
        let waiting = self
            .aio
            .iter()
            .filter(|(key, aio)| {
                key.is_on_file_of(event) && matches!(aio.call.op, op::FSYNC | op::FDATASYNC)
            })
            .min_by_key(|(_, aio)| aio.call.start_ns)
            .map(|(key, _)| *key);
        if let Some(key) = waiting
            && let Some(aio) = self.aio.remove(&key)
        {
            host.end(&aio.call, Outcome::of(event.result()), event.ts_ns);
        }
    }

    /// The file I/O in flight that a bio is queued for, by its kiocb or by the thread that queues it; 0
    /// if there is none.
    pub(crate) fn carrier(&self, event: &Event) -> u64 {
        let Some(spans) = &self.spans else {
            return 0;
        };
        let by_origin = || {
            let aio = self.aio.get(&AioKey::of_direct_io(event))?;
            Some(aio.call.serial)
        };
        let uring = || Some(self.uring.get(&event.origin)?.serial);
        let origin = (event.origin != 0).then_some(());
        spans
            .of_kiocb(event)
            .map(|span| span.serial)
            .or_else(|| origin.and_then(|()| by_origin().or_else(uring)))
            .or_else(|| Some(spans.of_thread(event.tid)?.serial))
            .unwrap_or(0)
    }

    /// The image of that file I/O.
    pub(crate) fn carrying_image(&self, event: &Event) -> Option<u32> {
        let spans = self.spans.as_deref();
        let by_kiocb = spans.and_then(|spans| Some(spans.of_kiocb(event)?.image));
        let by_origin = || {
            let aio = self.aio.get(&AioKey::of_direct_io(event));
            let aio = aio.map(|aio| aio.call.image);
            aio.or_else(|| Some(self.uring.get(&event.origin)?.image))
        };
        let of_thread = |spans: &FileSpans| Some(spans.of_thread(event.tid)?.image);
        let origin = (event.origin != 0).then_some(());
        by_kiocb
            .or_else(|| origin.and_then(|()| by_origin()))
            .or_else(|| spans.and_then(of_thread))
            .or_else(|| Some(self.by_thread.get(&event.tid)?.image))
            .or_else(|| self.submitting(event.tid))
    }

    /// A bio of direct I/O was queued.
    #[inline]
    pub(crate) fn bio_queued(&mut self, event: &Event) {
        if !self.aio.is_empty()
            && event.origin != 0
            && let Some(aio) = self.aio.get_mut(&AioKey::of_direct_io(event))
        {
            aio.direct = true;
        }
    }

    /// A bio of direct I/O ended.
    pub(crate) fn bio_ended(
        &mut self,
        key: AioKey,
        bytes: u64,
        ts_ns: u64,
        images: &mut Images,
        activity: &mut [Activity],
    ) {
        let mut spans = self.spans.take();
        let mut host = Host {
            images,
            activity,
            spans: spans.as_deref_mut(),
        };
        self.moved(key, bytes, ts_ns, &mut host);
        self.spans = spans;
    }

    /// Counts what was accepted and has no recorded end.
    /// Events are missing: every call in flight may have ended, and its end may be another's.
    pub(crate) fn interrupted(
        &mut self,
        ts_ns: u64,
        images: &mut Images,
        activity: &mut [Activity],
    ) {
        let mut host = Host {
            images,
            activity,
            spans: self.spans.as_deref_mut(),
        };
        let calls = self.by_thread.drain().map(|(_, call)| call);
        let calls = calls.chain(self.uring.drain().map(|(_, call)| call));
        calls.for_each(|call| host.end(&call, call.ended_unseen(), ts_ns));
        for (_, aio) in self.aio.drain() {
            aio.end_unseen(&mut host, ts_ns);
        }
        self.batches.clear();
        self.submitting.clear();
        self.uring_without_file.clear();
        self.rpcs.clear();
    }

    pub(crate) fn finish(&mut self, ts_ns: u64, images: &mut Images, activity: &mut [Activity]) {
        let mut host = Host {
            images,
            activity,
            spans: self.spans.as_deref_mut(),
        };
        for (_, aio) in self.aio.drain() {
            aio.end_unseen(&mut host, ts_ns);
        }
    }
}

//! QEMU's file I/O on image files: system calls by thread, native aio by control block, io_uring
//! by request.
//!
//! A call counts when it has succeeded, with the bytes that it returned. Native aio is counted
//! when the kernel has accepted it (`io_submit` may take fewer control blocks than it is given);
//! its end is the end of direct I/O in iomap, or where that has no tracepoint the end of its last
//! bio, or the return of `io_submit` if it never became direct I/O.

use nestrace_abi::{Kind, flags::op};
use nestrace_trace::Event;

use crate::aio_key::AioKey;
use crate::analysis::{FileLatency, ImageFileIo};
use crate::histogram::Histogram;
use crate::image::{ImageState, Images};
use crate::overlap::Activity;
use crate::pointer::PointerMap;

/// RWF_DSYNC and RWF_SYNC of `linux/fs.h`.
const RWF_ANY_SYNC: u32 = 0x2 | 0x4;

/// Errno of iomap where direct I/O cannot be: the file system goes on with buffered I/O.
const ENOTBLK: u32 = 15;

/// What was done to one image.
#[derive(Debug, Default)]
pub(crate) struct FileMeter {
    /// The kernel tells the end of direct I/O on it (iomap; not a raw block device).
    dio_end_recorded: bool,
    /// The file system tells the end of a sync (ext4 does, xfs does not).
    sync_end_recorded: bool,
    counts: ImageFileIo,
    read: Histogram,
    write: Histogram,
    sync: Histogram,
}

impl FileMeter {
    fn count(&mut self, call: &Call, bytes: u64) {
        match call.op {
            op::READ => {
                self.counts.reads += 1;
                self.counts.bytes.read += bytes;
            }
            op::WRITE => {
                self.counts.writes += 1;
                self.counts.bytes.write += bytes;
                self.counts.dsync += u64::from(call.dsync);
            }
            op::FSYNC | op::FDATASYNC => self.counts.syncs += 1,
            op::FALLOCATE => self.counts.fallocates += 1,
            _ => {}
        }
    }

    fn took(&mut self, op: u8, ns: u64) {
        match op {
            op::READ => self.read.record(ns),
            op::WRITE => self.write.record(ns),
            op::FSYNC | op::FDATASYNC => self.sync.record(ns),
            _ => {}
        }
    }

    /// Counts and latencies; what is known from bios is added by the caller.
    pub(crate) fn finish(&self) -> ImageFileIo {
        let latency_ns = FileLatency {
            read: self.read.dist(),
            write: self.write.dist(),
            sync: self.sync.dist(),
        };
        ImageFileIo {
            latency_ns,
            ..self.counts.clone()
        }
    }
}

/// One call in flight.
#[derive(Clone, Copy, Debug)]
struct Call {
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
}

/// How a call ended.
#[derive(Clone, Copy, Debug)]
enum Outcome {
    Done {
        bytes: u64,
    },
    Failed,
    /// It ended, but nothing tells when.
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
}

/// An iocb between `io_submit` and its end.
#[derive(Clone, Copy, Debug)]
struct Aio {
    call: Call,
    /// Direct I/O was seen for it.
    direct: bool,
    /// Bytes that no ended bio has covered.
    left: u64,
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
    /// Events were seen.
    pub recorded: bool,
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
        let mut host = Host { images, activity };
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
            Kind::SyncExit => self.sync_exit(event, &mut host),
            _ => {}
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
        if event.sub == op::IO_SUBMIT {
            self.batches.insert(event.tid, Vec::new());
            return;
        }
        let Some(call) = host.begin(event) else {
            return;
        };
        if let Some(unended) = self.by_thread.insert(event.tid, call) {
            // A thread is in one call at a time: the return of the last one was lost.
            host.end(&unended, Outcome::Refused, event.ts_ns);
        }
    }

    fn exit(&mut self, event: &Event, host: &mut Host<'_>) {
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
        };
        if let Some(old) = self.aio.insert(key, aio) {
            host.end(
                &old.call,
                Outcome::DoneSometime {
                    bytes: old.call.bytes,
                },
                event.ts_ns,
            );
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
            let Some(aio) = self.aio.get(key).copied() else {
                continue;
            };
            if i >= taken {
                self.aio.remove(key);
                host.end(&aio.call, Outcome::Refused, event.ts_ns);
            } else if !aio.direct
                && matches!(aio.call.op, op::READ | op::WRITE)
                && !host.always_direct(aio.call.image)
            {
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
        if let Some(aio) = self.aio.get_mut(&AioKey::of_direct_io(event)) {
            aio.direct = true;
        } else if let Some(submit) = self.uring_without_file.remove(&event.object) {
            let (inode, owner_dev) = (event.inode, event.owner_dev);
            self.uring_submit(
                &Event {
                    inode,
                    owner_dev,
                    ..submit
                },
                host,
            );
        }
    }

    fn uring_submit(&mut self, event: &Event, host: &mut Host<'_>) {
        if event.inode == 0 && matches!(event.sub, op::READ | op::WRITE) {
            self.uring_without_file.insert(event.object, *event);
            return;
        }
        let Some(call) = host.begin(event) else {
            return;
        };
        if let Some(old) = self.uring.insert(event.object, call) {
            host.end(&old, Outcome::Refused, event.ts_ns);
        }
    }

    fn dio_complete(&mut self, event: &Event, host: &mut Host<'_>) {
        let key = AioKey::of_direct_io(event);
        let Some(aio) = self.aio.get_mut(&key) else {
            return;
        };
        host.meter(aio.call.image, |file| file.dio_end_recorded = true);
        if event.aux == ENOTBLK {
            aio.direct = false;
            return;
        }
        let Some(aio) = self.aio.remove(&key) else {
            return;
        };
        let outcome = if event.aux == 0 {
            Outcome::Done { bytes: event.bytes }
        } else {
            Outcome::Failed
        };
        host.end(&aio.call, outcome, event.ts_ns);
    }

    /// Native aio's fsync runs in a kernel worker; the file system's own tracepoint tells its end.
    fn sync_exit(&mut self, event: &Event, host: &mut Host<'_>) {
        if let Some(image) = host.images.of_inode(event) {
            host.meter(image, |file| file.sync_end_recorded = true);
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
        let Some(aio) = self.aio.get_mut(&key) else {
            return;
        };
        let image = images.images.get(aio.call.image as usize);
        if image.is_some_and(|image| image.file.dio_end_recorded) {
            return;
        }
        aio.left = aio.left.saturating_sub(bytes);
        if aio.left == 0
            && let Some(aio) = self.aio.remove(&key)
        {
            Host { images, activity }.end(
                &aio.call,
                Outcome::Done {
                    bytes: aio.call.bytes,
                },
                ts_ns,
            );
        }
    }

    /// Counts what was accepted and whose end nothing told.
    pub(crate) fn finish(&mut self, ts_ns: u64, images: &mut Images, activity: &mut [Activity]) {
        let mut host = Host { images, activity };
        for (_, aio) in self.aio.drain() {
            host.end(
                &aio.call,
                Outcome::DoneSometime {
                    bytes: aio.call.bytes,
                },
                ts_ns,
            );
        }
    }
}

/// Where calls are counted.
struct Host<'a> {
    images: &'a mut Images,
    activity: &'a mut [Activity],
}

impl Host<'_> {
    /// A call begins, if it is on an image.
    fn begin(&mut self, event: &Event) -> Option<Call> {
        if !matches!(event.sub, op::READ..=op::SYNC_FILE_RANGE) {
            return None;
        }
        let image = self.images.of_file(event, event.dev)?;
        let call = Call {
            image,
            op: event.sub,
            dsync: event.sub == op::WRITE && event.flags & RWF_ANY_SYNC != 0,
            bytes: event.bytes,
            start_ns: event.ts_ns,
            timed: self.end_will_be_known(event, image),
        };
        if call.timed
            && let Some(activity) = self.activity_of(image)
        {
            activity.advance(event.ts_ns);
            activity.file += 1;
            activity.sync += u64::from(call.syncs());
        }
        Some(call)
    }

    fn end(&mut self, call: &Call, outcome: Outcome, ts_ns: u64) {
        if call.timed
            && let Some(activity) = self.activity_of(call.image)
        {
            activity.advance(ts_ns);
            activity.file = activity.file.saturating_sub(1);
            activity.sync = activity.sync.saturating_sub(u64::from(call.syncs()));
        }
        let Some(image) = self.images.images.get_mut(call.image as usize) else {
            return;
        };
        match outcome {
            Outcome::Done { bytes } => {
                image.file.count(call, bytes);
                image
                    .file
                    .took(call.op, ts_ns.saturating_sub(call.start_ns));
            }
            Outcome::DoneSometime { bytes } => image.file.count(call, bytes),
            Outcome::Failed => image.file.counts.failed += 1,
            Outcome::Refused => {}
        }
    }

    /// Direct I/O on a raw block device never falls back to the page cache, even where no bio tells
    /// whose it is (those of several pages name no kiocb).
    fn always_direct(&self, image: u32) -> bool {
        self.images
            .images
            .get(image as usize)
            .is_some_and(ImageState::always_direct)
    }

    /// Native aio's sync ends in a kernel worker, which not every file system tells.
    fn end_will_be_known(&self, event: &Event, image: u32) -> bool {
        let aio_sync =
            event.kind == Kind::AioSubmit as u8 && matches!(event.sub, op::FSYNC | op::FDATASYNC);
        let image = self.images.images.get(image as usize);
        !aio_sync || image.is_some_and(|image| image.file.sync_end_recorded)
    }

    fn meter(&mut self, image: u32, change: impl FnOnce(&mut FileMeter)) {
        if let Some(image) = self.images.images.get_mut(image as usize) {
            change(&mut image.file);
        }
    }

    fn activity_of(&mut self, image: u32) -> Option<&mut Activity> {
        let disk = self.images.images.get(image as usize)?.disk;
        self.activity.get_mut(disk as usize)
    }
}

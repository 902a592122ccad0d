//! File I/Os as intervals, with the bios that they waited for, for those who ask.
//!
//! A thread is in one file I/O at a time: from its call until the return; in the submission of an
//! io_uring request until the next one or until a worker takes it; in direct I/O or in a sync from
//! the moment that the file system says so. What it queues in that time is the file I/O's own. Direct
//! I/O is known by its kiocb, whatever task queues it.

use nestrace_abi::Kind;
use nestrace_abi::flags::{self, op};
use nestrace_trace::Event;

use super::Call;
use crate::model::actor::Actor;
use crate::model::file_io_span::{FileEnd, FileIoSpan};
use crate::model::ids::ImageId;
use crate::model::pointer::PointerMap;

/// File I/Os in flight, and those that began and ended since they were last taken.
#[derive(Debug, Default)]
pub(crate) struct FileSpans {
    /// By serial.
    pub in_flight: PointerMap<u64, FileIoSpan>,
    /// Began since the last drain.
    pub began: Vec<u64>,
    /// Ended since the last drain.
    pub ended: Vec<FileIoSpan>,
    /// In which file I/O a thread is.
    inside: PointerMap<u32, u64>,
    by_kiocb: PointerMap<u64, u64>,
    serial: u64,
}

impl FileSpans {
    pub(super) fn begin(&mut self, call: &Call, event: &Event) -> u64 {
        self.serial += 1;
        let span = FileIoSpan {
            serial: self.serial,
            image: call.image,
            guest: event.dev,
            op: call.op,
            offset: event.offset,
            bytes: call.bytes,
            start_ns: call.start_ns,
            end_ns: call.start_ns,
            tid: event.tid,
            ends: match event.kind() {
                // io_uring completes in the thread that submitted.
                Some(Kind::SyscallEnter | Kind::UringSubmit) => Actor::host(event.tid),
                _ => Actor::Unknown,
            },
            buffer: event.first_buffer(),
            dsync: call.dsync,
            end: FileEnd::Open,
            bios: Vec::new(),
            rpcs: Vec::new(),
            kiocb: 0,
            worker: 0,
        };
        self.in_flight.insert(self.serial, span);
        self.began.push(self.serial);
        self.inside.insert(event.tid, self.serial);
        self.serial
    }

    pub(super) fn end(&mut self, serial: u64, end: FileEnd, bytes: Option<u64>, ts_ns: u64) {
        let Some(mut span) = self.in_flight.remove(&serial) else {
            return;
        };
        if span.kiocb != 0 && self.by_kiocb.get(&span.kiocb) == Some(&serial) {
            self.by_kiocb.remove(&span.kiocb);
        }
        for tid in [span.tid, span.worker] {
            self.handed_over(tid, serial);
        }
        span.end = end;
        if end != FileEnd::Sometime {
            span.end_ns = ts_ns;
        }
        // A vector that could not be read had no length.
        if span.bytes == 0 && matches!(span.op, op::READ | op::WRITE) {
            span.bytes = bytes.unwrap_or(0);
        }
        self.ended.push(span);
    }

    /// The thread does no file I/O of QEMU's from now on.
    pub(super) fn leaves(&mut self, tid: u32) {
        self.inside.remove(&tid);
    }

    /// The thread has no more to do with it: a worker goes on, or it has ended.
    pub(super) fn handed_over(&mut self, tid: u32, serial: u64) {
        if self.inside.get(&tid) == Some(&serial) {
            self.inside.remove(&tid);
        }
    }

    /// Direct I/O begins: what the thread queues now is its.
    pub(super) fn direct_io(&mut self, serial: u64, event: &Event) {
        let Some(span) = self.in_flight.get_mut(&serial) else {
            return;
        };
        if span.bytes == 0 {
            span.offset = event.offset;
            span.bytes = event.bytes;
        }
        if span.kiocb != 0 && span.kiocb != event.object {
            self.by_kiocb.remove(&span.kiocb);
        }
        span.kiocb = event.object;
        if event.tid != span.tid {
            span.worker = event.tid;
        }
        self.by_kiocb.insert(event.object, serial);
        self.inside.insert(event.tid, serial);
    }

    /// The file system begins to sync a file: by the thread that called, or by a worker on behalf of
    /// the oldest one that waits for it.
    pub(super) fn sync_enter(&mut self, image: ImageId, tid: u32) {
        let calls = self
            .inside
            .get(&tid)
            .and_then(|serial| self.in_flight.get(serial));
        if calls.is_some_and(|span| span.image == image.0) {
            return;
        }
        let waits = |span: &&FileIoSpan| {
            span.image == image.0
                && span.syncs()
                && !self.inside.values().any(|inside| *inside == span.serial)
        };
        let oldest = self
            .in_flight
            .values()
            .filter(waits)
            .min_by_key(|span| span.serial);
        if let Some(oldest) = oldest {
            self.inside.insert(tid, oldest.serial);
        }
    }

    pub(super) fn sync_exit(&mut self, tid: u32) {
        let own = self
            .inside
            .get(&tid)
            .and_then(|serial| self.in_flight.get(serial))
            .is_some_and(|span| span.tid == tid);
        if !own {
            self.inside.remove(&tid);
        }
    }

    /// File I/Os in flight, and those that this very event ended: native aio without a tracepoint of its
    /// own ends with its last bio.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = &FileIoSpan> {
        self.in_flight.values().chain(&self.ended)
    }

    pub(crate) fn waiting_mut(&mut self, serial: u64) -> Option<&mut FileIoSpan> {
        let ended = self.ended.iter_mut().find(|file| file.serial == serial);
        ended.or_else(|| self.in_flight.get_mut(&serial))
    }

    /// The file I/O in which the thread is.
    pub(super) fn of_thread(&self, tid: u32) -> Option<&FileIoSpan> {
        self.in_flight.get(self.inside.get(&tid)?)
    }

    /// The file I/O that a bio belongs to by its kiocb.
    pub(super) fn of_kiocb(&self, event: &Event) -> Option<&FileIoSpan> {
        if event.sub != flags::OWNER_DIRECT || event.iocb == 0 {
            return None;
        }
        self.in_flight.get(self.by_kiocb.get(&event.iocb)?)
    }
}

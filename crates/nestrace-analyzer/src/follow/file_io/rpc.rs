//! Calls of a client of files (NFS, SMB) to its server, and the file I/O that each is for.
//!
//! Asynchronous direct I/O names its kiocb. Other calls begin in the thread that does the file I/O; those that a
//! direct I/O goes on with in other threads (a commit) name the same direct I/O.

use nestrace_abi::{RPC_SENT_UNKNOWN, flags::op};
use nestrace_trace::Event;

use super::FileIo;
use super::host::Host;
use crate::model::aio_key::AioKey;
use crate::model::file_io_span::{FileIoSpan, RpcSpan};
use crate::model::pointer::PointerMap;

/// A call in flight.
#[derive(Clone, Copy, Debug)]
struct Rpc {
    image: u32,
    op: u8,
    offset: u64,
    bytes: u64,
    began_ns: u64,
    /// The span of the file I/O that it is for; 0 if none is known.
    serial: u64,
    /// The native aio that it is for, if it is for one.
    aio: AioKey,
}

/// Calls in flight, by the client's structure for them, and the file I/O of each direct I/O.
#[derive(Debug, Default)]
pub(super) struct Rpcs {
    in_flight: PointerMap<u64, Rpc>,
    by_direct: PointerMap<u64, u64>,
}

/// Direct I/Os that are remembered: more have ended than are in flight.
const MAX_DIRECT: usize = 1 << 14;

impl Rpcs {
    pub(super) fn clear(&mut self) {
        self.in_flight.clear();
        self.by_direct.clear();
    }
}

impl FileIo {
    pub(super) fn rpc_begins(&mut self, event: &Event, host: &mut Host<'_>) {
        let Some(image) = host.images.of_inode(event) else {
            return;
        };
        let aio = AioKey::of_direct_io(event);
        if let Some(aio) = self.aio.get_mut(&aio).filter(|_| event.origin != 0) {
            aio.direct = true;
        }
        let spans = host.spans.as_deref();
        let file = self.serial_of_rpc(event, host).and_then(|serial| {
            let file = spans?.in_flight.get(&serial)?;
            let is_on_it = host.images.same_file(image, file.image) && may_make(file, event);
            is_on_it.then_some(file)
        });
        let serial = file.map_or(0, |file| file.serial);
        if serial != 0 && event.related != 0 {
            if self.rpcs.by_direct.len() >= MAX_DIRECT {
                let in_flight =
                    |serial: &u64| spans.is_some_and(|it| it.in_flight.contains_key(serial));
                self.rpcs.by_direct.retain(|_, serial| in_flight(serial));
            }
            self.rpcs.by_direct.insert(event.related, serial);
        }
        let rpc = Rpc {
            image: file.map_or(image, |file| file.image),
            op: event.sub,
            offset: event.offset,
            bytes: event.bytes,
            began_ns: event.ts_ns,
            serial,
            aio,
        };
        self.rpcs.in_flight.insert(event.object, rpc);
    }

    /// The file I/O that a call may be for.
    fn serial_of_rpc(&self, event: &Event, host: &Host<'_>) -> Option<u64> {
        if event.origin != 0 {
            let aio = self.aio.get(&AioKey::of_direct_io(event));
            let uring = || self.uring.get(&event.origin);
            return aio
                .map(|aio| aio.call)
                .or_else(|| uring().copied())
                .map(|call| call.serial);
        }
        let of_thread = || Some(host.spans.as_deref()?.of_thread(event.tid)?.serial);
        of_thread().or_else(|| self.rpcs.by_direct.get(&event.related).copied())
    }

    pub(super) fn rpc_ends(&mut self, event: &Event, host: &mut Host<'_>) {
        let Some(rpc) = self.rpcs.in_flight.remove(&event.object) else {
            return;
        };
        let (sent_ns, answered_ns) = if event.related == RPC_SENT_UNKNOWN {
            // The client's work on the call and on its reply is little.
            (rpc.began_ns, event.ts_ns)
        } else {
            (event.related, event.related.saturating_add(event.offset))
        };
        // It may have failed before it was sent.
        let was_sent = sent_ns >= rpc.began_ns && answered_ns <= event.ts_ns;
        let at_server_ns = was_sent.then_some(answered_ns.saturating_sub(sent_ns));
        let waiting = host.spans.as_deref_mut();
        let waiting = waiting.and_then(|spans| spans.waiting_mut(rpc.serial));
        if let Some(image) = host.images.images.get_mut(rpc.image as usize) {
            let took_ns = event.ts_ns.saturating_sub(rpc.began_ns);
            let linked = waiting.is_some();
            image
                .file
                .rpc(rpc.op, rpc.bytes, took_ns, at_server_ns, linked);
        }
        if let Some(file) = waiting
            && was_sent
        {
            file.rpcs.push(RpcSpan {
                op: rpc.op,
                offset: rpc.offset,
                bytes: rpc.bytes,
                sent_ns,
                answered_ns,
            });
        }
        if matches!(rpc.op, op::READ | op::WRITE) && rpc.aio.names_iocb() {
            self.moved(rpc.aio, rpc.bytes, event.ts_ns, host);
        }
    }

    /// A part of native aio was moved: the last one ends it.
    pub(super) fn moved(&mut self, key: AioKey, bytes: u64, ts_ns: u64, host: &mut Host<'_>) {
        let Some(aio) = self.aio.get_mut(&key) else {
            return;
        };
        let image = host.images.images.get(aio.call.image as usize);
        if image.is_some_and(|image| image.file.dio_end_recorded) {
            return;
        }
        aio.left = aio.left.saturating_sub(bytes);
        if aio.left == 0
            && let Some(aio) = self.aio.remove(&key)
        {
            let bytes = aio.call.bytes;
            host.end(&aio.call, super::Outcome::Done { bytes }, ts_ns);
        }
    }
}

/// Whether a file I/O makes such a call: a read reads what it has pages of, a write writes it and commits, a sync writes and
/// commits anything.
fn may_make(file: &FileIoSpan, event: &Event) -> bool {
    let moves_it = || file.touches(event.offset, event.bytes);
    match (file.op, event.sub) {
        (op::READ, op::READ) => moves_it(),
        (op::WRITE, op::WRITE) => file.syncs() || moves_it(),
        (op::WRITE, op::FSYNC) => true,
        (_, op::WRITE | op::FSYNC) => file.syncs(),
        _ => false,
    }
}

//! The guest's requests, as its own block layer had them.

use std::collections::HashMap;

use anyhow::bail;
use nestrace_trace::flags::{
    OP_DISCARD, OP_FLUSH, OP_READ, OP_WRITE, OP_WRITE_ZEROES, OWNER_DIRECT,
};
use nestrace_trace::{Event, Kind};

use super::key::{Key, Operation};

/// What stands in the guest for the page that a request's data begin in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Buffer {
    /// The kernel's `struct page`.
    Page(u64),
    /// The control block of a thread's direct I/O: fio uses each with one buffer.
    ControlBlock {
        /// The thread.
        tid: u32,
        /// Its address in the program.
        iocb: u64,
    },
}

/// A request between D and C.
#[derive(Clone, Copy, Debug)]
pub struct GuestRequest {
    /// D, on the guest's clock.
    pub issued_ns: u64,
    /// The first C: its data are there.
    pub completed_ns: u64,
    /// Processor of D.
    pub cpu: u16,
    /// Address of the request in the guest.
    pub address: u64,
    /// What it asks for.
    pub key: Key,
    /// Where its data begin in the guest's memory.
    pub buffer: Option<Buffer>,
}

/// Every request of a disk, in the order of D.
pub fn requests(events: &[Event]) -> anyhow::Result<Vec<GuestRequest>> {
    let mut requests: Vec<GuestRequest> = Vec::new();
    let mut open: HashMap<u64, usize> = HashMap::new();
    let mut queued: HashMap<u64, &Event> = HashMap::new();
    for event in events {
        match event.kind() {
            Some(Kind::Queue) => {
                queued.insert(event.object, event);
            }
            Some(Kind::Issue) => {
                if open.insert(event.object, requests.len()).is_some() {
                    bail!("see the end of a request before it is issued again: {event:?}");
                }
                requests.push(issued(event, queued.get(&event.related).copied())?);
            }
            Some(Kind::Complete) if event.related == 0 => {
                // The flush sequence completes a request once more.
                let at = open.remove(&event.object);
                if let Some(request) = at.and_then(|at| requests.get_mut(at)) {
                    request.completed_ns = event.ts_ns;
                }
            }
            _ => {}
        }
    }
    if let Some(at) = open.values().next() {
        bail!("see the end of {:?}", requests.get(*at));
    }
    Ok(requests)
}

fn issued(event: &Event, first_bio: Option<&Event>) -> anyhow::Result<GuestRequest> {
    let operation = match event.op() {
        OP_READ => Operation::Read,
        OP_WRITE => Operation::Write,
        OP_WRITE_ZEROES => Operation::WriteZeroes,
        OP_DISCARD => Operation::Discard,
        OP_FLUSH => Operation::Flush,
        other => bail!("know the guest's operation {other}"),
    };
    let (offset, bytes) = match operation {
        Operation::Flush => (0, 0),
        _ => (event.offset, event.bytes),
    };
    let has_data = [Operation::Read, Operation::Write].contains(&operation);
    Ok(GuestRequest {
        issued_ns: event.ts_ns,
        completed_ns: event.ts_ns,
        cpu: event.cpu,
        address: event.object,
        key: Key {
            operation,
            offset,
            bytes,
        },
        buffer: first_bio
            .filter(|_| has_data)
            .and_then(|bio| buffer(bio, event.offset)),
    })
}

/// Where the data of a request at `offset` begin, if its first bio says that: what is left of one after
/// a split begins elsewhere, and a control block stands for the begin of its I/O.
fn buffer(bio: &Event, offset: u64) -> Option<Buffer> {
    if bio.offset != offset {
        None
    } else if bio.related != 0 {
        Some(Buffer::Page(bio.related))
    } else {
        let first = bio.sub == OWNER_DIRECT && bio.file_offset == offset;
        first.then_some(Buffer::ControlBlock {
            tid: bio.tid,
            iocb: bio.origin,
        })
    }
}

//! What probes would have written of events, for tests that stand at an agent's place.

use nestrace_abi::{OwnedRecord, Owner, Record};
use nestrace_trace::Event;
use nestrace_wire::AgentMessage;
use nestrace_wire::kernel_buffers::{Translation, put_record, record_bytes};

/// How these records read: operation 0 is 0, and there are no flags.
pub fn translation() -> Translation {
    Translation {
        operations: vec![0],
        ..Translation::default()
    }
}

/// The bytes of a buffer; of an event, all but its `end_io`, which is an address in a record.
pub fn buffer(events: &[Event]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for event in events {
        let record = Record {
            ts_ns: event.ts_ns,
            kind: event.kind,
            sub: event.sub,
            cpu: event.cpu,
            tid: event.tid,
            object: event.object,
            related: event.related,
            offset: event.offset,
            bytes: event.bytes,
            flags: event.flags,
            dev: event.dev,
        };
        let owner = Owner {
            inode: event.inode,
            file_offset: event.file_offset,
            iocb: event.iocb,
            origin: event.origin,
            end_io: 0,
            cgroup: event.cgroup,
            owner_dev: event.owner_dev,
            aux: event.aux,
        };
        put_record(&record_bytes(&OwnedRecord { record, owner }), &mut bytes);
    }
    bytes
}

/// Appends the frames of events that are complete.
pub fn put_events(events: &[Event], to: &mut Vec<u8>) {
    let bytes = &buffer(events);
    AgentMessage::Buffer { number: 0, bytes }.encode_to(to);
    AgentMessage::Until(u64::MAX).encode_to(to);
}

//! From a record as the kernel wrote it to an event as it is stored: the kernel's own bits, which move
//! between versions, become [`nestrace_abi::flags`], and addresses of functions become numbers.

use std::collections::HashMap;

use nestrace_abi::{Kind, OwnedRecord, flags};
use nestrace_kernel::layout::Layout;
use nestrace_trace::Event;

/// Our flag, and the kernel's enumerator for it.
const FLAGS: &[(u32, &str)] = &[
    (flags::SYNC, "__REQ_SYNC"),
    (flags::META, "__REQ_META"),
    (flags::PRIO, "__REQ_PRIO"),
    (flags::IDLE, "__REQ_IDLE"),
    (flags::FUA, "__REQ_FUA"),
    (flags::PREFLUSH, "__REQ_PREFLUSH"),
    (flags::RAHEAD, "__REQ_RAHEAD"),
    (flags::BACKGROUND, "__REQ_BACKGROUND"),
    (flags::NOWAIT, "__REQ_NOWAIT"),
];

/// Our operation, and the kernel's enumerator for it.
const OPERATIONS: &[(u32, &str)] = &[
    (flags::OP_READ, "REQ_OP_READ"),
    (flags::OP_WRITE, "REQ_OP_WRITE"),
    (flags::OP_FLUSH, "REQ_OP_FLUSH"),
    (flags::OP_DISCARD, "REQ_OP_DISCARD"),
    (flags::OP_WRITE_ZEROES, "REQ_OP_WRITE_ZEROES"),
    (flags::OP_SECURE_ERASE, "REQ_OP_SECURE_ERASE"),
];

/// How this kernel's bits read.
pub struct Translator {
    operations: [u8; 256],
    flags: Vec<(u32, u32)>,
    end_io: HashMap<u64, u8>,
}

impl Translator {
    /// Reads the positions from BTF.
    #[must_use]
    pub fn new(layout: &Layout, end_io: HashMap<u64, u8>) -> Self {
        let mut operations = [flags::OP_OTHER as u8; 256];
        for (ours, name) in OPERATIONS {
            if let Some(slot) = layout
                .enumerators
                .get(*name)
                .and_then(|value| usize::try_from(*value).ok())
                .and_then(|value| operations.get_mut(value))
            {
                *slot = *ours as u8;
            }
        }
        let flags = FLAGS
            .iter()
            .filter_map(|(ours, name)| {
                let bit = u32::try_from(*layout.enumerators.get(*name)?).ok()?;
                Some((1u32.checked_shl(bit)?, *ours))
            })
            .collect();
        Self {
            operations,
            flags,
            end_io,
        }
    }

    fn block_flags(&self, raw: u32) -> u32 {
        let mut ours = u32::from(self.operations[(raw & 0xff) as usize]);
        for (theirs, flag) in &self.flags {
            if raw & theirs != 0 {
                ours |= flag;
            }
        }
        if raw & flags::RAW_FLUSH_SEQ != 0 {
            ours |= flags::FLUSH_SEQ;
        }
        ours
    }

    /// The event that a record stands for.
    #[must_use]
    pub fn event(&self, owned: &OwnedRecord) -> Event {
        let OwnedRecord { record, owner } = owned;
        let is_block = record.kind < Kind::SyscallEnter as u8;
        Event {
            ts_ns: record.ts_ns,
            kind: record.kind,
            sub: record.sub,
            cpu: record.cpu,
            tid: record.tid,
            dev: record.dev,
            object: record.object,
            related: record.related,
            offset: record.offset,
            bytes: record.bytes,
            flags: if is_block {
                self.block_flags(record.flags)
            } else {
                record.flags
            },
            inode: owner.inode,
            file_offset: owner.file_offset,
            owner_dev: owner.owner_dev,
            iocb: owner.iocb,
            origin: owner.origin,
            end_io: if owner.end_io == 0 {
                0
            } else {
                self.end_io.get(&owner.end_io).copied().unwrap_or(0)
            },
            cgroup: owner.cgroup,
            aux: owner.aux,
        }
    }
}

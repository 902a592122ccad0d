//! From a record as the kernel wrote it to an event as it is stored: the kernel's own bits, which move
//! between versions, become [`nestrace_abi::flags`], and addresses of functions become numbers.

use std::collections::BTreeMap;

use nestrace_abi::{Kind, OwnedRecord, flags};
use serde::{Deserialize, Serialize};

use nestrace_trace::Event;

/// How the bits of one kernel read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Translation {
    /// Our operation, by the kernel's; what is not here is [`flags::OP_OTHER`].
    pub operations: Vec<u8>,
    /// The kernel's flag, and ours.
    pub flags: Vec<(u32, u32)>,
    /// An [`end_io`](nestrace_abi::end_io) number, by the address of the function.
    pub end_io: BTreeMap<u64, u8>,
}

/// More of each are no kernel's.
const MAX_OPERATIONS: usize = 256;
const MAX_FLAGS: usize = 32;
const MAX_END_IO: usize = 64;

impl Translation {
    /// Leaves out what is more than any kernel has: every record is held against it.
    pub fn bound(&mut self) {
        self.operations.truncate(MAX_OPERATIONS);
        self.flags.truncate(MAX_FLAGS);
        while self.end_io.len() > MAX_END_IO {
            self.end_io.pop_last();
        }
    }

    fn block_flags(&self, raw: u32) -> u32 {
        let operation = self.operations.get((raw & 0xff) as usize);
        let mut ours = operation.map_or(flags::OP_OTHER, |ours| u32::from(*ours));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_is_kept_than_a_kernel_has() {
        let mut translation = Translation {
            operations: vec![1; 100_000],
            flags: vec![(1, 1); 100_000],
            end_io: (0..1000).map(|address| (address, 1)).collect(),
        };
        translation.bound();
        let Translation {
            operations,
            flags,
            end_io,
        } = translation;
        assert_eq!((operations.len(), flags.len(), end_io.len()), (256, 32, 64));
    }

    #[test]
    fn an_operation_that_is_not_known_is_another_one() {
        let event = Translation::default().event(&OwnedRecord::default());
        assert_eq!(event.flags, flags::OP_OTHER);
    }
}

//! How this kernel's bits read, by its type information.

use std::collections::HashMap;

use nestrace_abi::flags;
use nestrace_kernel::layout::Layout;
use nestrace_wire::kernel_buffers::Translation;

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

/// Of the kernel with this layout, whose functions of [`nestrace_abi::end_io`] are at these addresses.
#[must_use]
pub fn translation(layout: &Layout, end_io: &HashMap<u64, u8>) -> Translation {
    let mut operations = vec![flags::OP_OTHER as u8; 256];
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
    Translation {
        operations,
        flags,
        end_io: end_io
            .iter()
            .map(|(address, number)| (*address, *number))
            .collect(),
    }
}

//! What a guest's kernel can have written, and what nobody can.

use nestrace_abi::Kind;
use nestrace_trace::Event;

use crate::device::Operation;

/// Whether a kernel can have written this: the guest is not trusted, and sums are not to overflow. A bio's
/// length has 32 bits, a place on a disk 64 bits of sectors at most, of which nobody has more than 2^51;
/// a clock that counts nanoseconds from its start does not pass a hundred years.
pub(super) fn is_plausible(kind: Kind, event: &Event) -> bool {
    // A Link holds addresses in these columns, and a flush has no place: its sector is −1.
    let extent = kind == Kind::Link
        || event.bytes == 0
        || event.bytes <= u64::from(u32::MAX) && event.offset < 1 << 60;
    extent && event.ts_ns < 1 << 62
}

/// A pass-through request has no place: its sector is −1. Every disk of virtio-blk has one where its
/// serial number is asked for, as the agent does when recording begins. It moves none of the disk's data,
/// so nothing here uses it, and nothing is wrong with it.
pub(super) fn lies_nowhere(event: &Event) -> bool {
    Operation::of(event.op()) == Operation::Other
        && event.offset == Event::NOWHERE
        && event.bytes <= u64::from(u32::MAX)
        && event.ts_ns < 1 << 62
}

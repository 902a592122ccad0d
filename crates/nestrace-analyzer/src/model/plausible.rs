//! Values that a kernel or QEMU can write, and values that neither can: a guest is not trusted, a recording may be
//! damaged, and sums are not to overflow.

use nestrace_abi::{Kind, Source};
use nestrace_trace::Event;

use crate::model::operation::Operation;

/// Longest bio or request, and most that one system call moves, in bytes: the kernel counts them with 32 bits.
const MAX_BYTES: u64 = u32::MAX as u64;
/// A place on a disk: sectors have 64 bits, but no disk has more than 2^51 of them.
const MAX_PLACE: u64 = 1 << 60;
/// Longest request of QEMU: virtio, SCSI and NVMe name a discard's length in blocks, with 32 bits, and blocks
/// have 64 KiB at most.
const MAX_OF_QEMU: u64 = 1 << 48;
/// A clock that counts nanoseconds from its start does not pass a hundred years.
pub(crate) const MAX_NS: u64 = 1 << 62;

/// Whether a guest's kernel can have written this.
pub(crate) fn of_guest(kind: Kind, event: &Event) -> bool {
    has_extent(kind, event) && event.ts_ns < MAX_NS
}

/// Whether the host's kernel or QEMU can have. Its stamps are another matter: what has an absurd one is
/// counted all the same, because it happened.
#[inline]
pub(crate) fn of_host(kind: Kind, event: &Event) -> bool {
    match kind.source() {
        Source::Block => of_blocks(kind, event),
        // What a call names is the caller's own (a kernel cuts it short, and makes room as large as a file
        // may be); what it says has been done is the kernel's. A failure is negative.
        Source::File => match kind {
            Kind::SyscallExit | Kind::UringComplete => {
                u64::try_from(event.result()).is_ok_and(|bytes| bytes <= MAX_BYTES)
                    || event.result() < 0
            }
            _ => event.bytes < 1 << 63,
        },
        Source::Qemu => {
            event.bytes <= MAX_OF_QEMU && (event.bytes == 0 || event.offset < MAX_PLACE)
        }
        Source::HostFs | Source::Meta | Source::Walk | Source::Cpu => true,
    }
}

/// Whether the host's block layer can have.
#[inline]
pub(crate) fn of_blocks(kind: Kind, event: &Event) -> bool {
    has_extent(kind, event) || is_nowhere(event)
}

/// Whether the block layer can have something of this length at this place.
#[inline]
pub(crate) fn has_extent(kind: Kind, event: &Event) -> bool {
    // A Link holds addresses in these columns, and a flush has no place: its sector is −1.
    event.bytes <= MAX_BYTES && event.offset < MAX_PLACE || event.bytes == 0 || kind == Kind::Link
}

/// A pass-through request of a guest has no place. Every disk of virtio-blk has one where its serial number
/// is asked for, as the agent does when recording begins. It moves none of the disk's data, so nothing uses
/// it there, and nothing is wrong with it.
pub(crate) fn lies_nowhere(event: &Event) -> bool {
    is_nowhere(event) && event.ts_ns < MAX_NS
}

/// A request that moves none of the disk's data: its sector is −1.
fn is_nowhere(event: &Event) -> bool {
    Operation::of(event.op()) == Operation::Other
        && event.offset == Event::NOWHERE
        && event.bytes <= MAX_BYTES
}

//! What goes into a pairing and what comes out.

use crate::model::clocks::{GuestNs, HostNs};
use crate::result::unlinked::UnlinkedReason;

/// What a request does, as far as guest and QEMU agree on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum OpClass {
    /// Reads.
    Read,
    /// Writes, and write-zeroes, which QEMU accounts as writes.
    Write,
    /// Flush of the disk's cache: offset and length are 0.
    Flush,
    /// Discards.
    Discard,
}

/// What a request of the guest and one of QEMU have in common besides the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    /// The operation.
    pub class: OpClass,
    /// Byte offset on the guest's disk; 0 for a flush.
    pub offset: u64,
    /// Length in bytes; 0 for a flush.
    pub bytes: u64,
}

/// A request of the guest's block layer, from D to its last C, on the guest's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GuestRequest {
    /// The caller's number for it.
    pub serial: u64,
    /// Index into `GuestSide::disks`.
    pub device: u32,
    /// Operation and place.
    pub key: Key,
    /// Address of its first byte in QEMU's memory; 0 if unknown.
    pub buffer: u64,
    /// It need not have a partner (QEMU may have merged it into the request before it): without one it says nothing about the
    /// clock.
    pub may_be_alone: bool,
    /// Requests of one virtqueue reach QEMU in the order of their D: the processor that issued it, as long
    /// as it was not put back (R). [`Self::ANY_LANE`] if that is not known.
    pub lane: u32,
    /// Of a flush: the address of its request, by which the hardware queue sends all of its flushes. 0 if that is not known,
    /// and for other requests.
    pub flushed_with: u64,
    /// D.
    pub issued_ns: GuestNs,
    /// C.
    pub completed_ns: GuestNs,
}

impl GuestRequest {
    /// Nothing is known of its order among others.
    pub const ANY_LANE: u32 = u32::MAX;

    /// Requests with an equal one reach QEMU in the order of their D; `None` if nothing is known of that. A hardware queue
    /// sends one flush after the other, on whatever processor.
    pub(super) fn in_order_with(&self) -> Option<u64> {
        match (self.flushed_with, self.lane) {
            (0, Self::ANY_LANE) => None,
            (0, lane) => Some(u64::from(lane)),
            (request, _) => Some(request),
        }
    }
}

/// A request as QEMU accounts it, on the host's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostRequest {
    /// The caller's number for it.
    pub serial: u64,
    /// Index into the guest's disks in the topology (`Guest::disks`).
    pub disk: u32,
    /// Operation and place.
    pub key: Key,
    /// Address of its first buffer in the guest's memory; 0 if unknown, or of other memory.
    pub buffer: u64,
    /// The virtqueue that it came from; [`Self::ANY_LANE`] if that is not known.
    pub lane: u32,
    /// `block_acct_start`.
    pub start_ns: HostNs,
    /// Completed: `virtqueue_push`, or the request's last host event. Never `block_acct_done`,
    /// which comes later than that and would prove what is not true.
    pub end_ns: HostNs,
}

impl HostRequest {
    /// Its queue is not known.
    pub const ANY_LANE: u32 = u32::MAX;

    /// From start to end, nanoseconds.
    pub(super) const fn length_ns(&self) -> i64 {
        self.end_ns.since(self.start_ns).cast_signed()
    }

    /// Whether it and a guest's request name different memory.
    pub(super) const fn is_of_other_memory(&self, guest: &GuestRequest) -> bool {
        self.buffer != 0 && guest.buffer != 0 && self.buffer != guest.buffer
    }
}

/// An interval that the guest's clock minus the host's lies in, nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Band {
    /// At least.
    pub lo_ns: i64,
    /// At most.
    pub hi_ns: i64,
}

/// What either of two bands leaves possible.
pub(super) fn hull(a: Band, b: Band) -> Band {
    Band {
        lo_ns: a.lo_ns.min(b.lo_ns),
        hi_ns: a.hi_ns.max(b.hi_ns),
    }
}

impl Band {
    /// The middle: splits the asymmetry of the ways there and back in half.
    #[must_use]
    pub const fn middle_ns(self) -> i64 {
        let width_ns = self.hi_ns.saturating_sub(self.lo_ns);
        self.lo_ns.saturating_add(width_ns / 2)
    }

    /// Half the width, rounded up: how far the middle may be off.
    #[must_use]
    pub const fn bound_ns(self) -> u64 {
        self.hi_ns.abs_diff(self.lo_ns).div_ceil(2)
    }
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// A guest request and the QEMU request that served it.
    Paired(Paired),
    /// A guest request without a certain partner.
    Unpaired(Unpaired),
    /// A QEMU request that no guest request was tied to: [`HostRequest::serial`].
    Unclaimed(u64),
}

/// A guest request and the QEMU request that served it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paired {
    /// [`GuestRequest::serial`].
    pub guest: u64,
    /// [`HostRequest::serial`].
    pub host: u64,
    /// The guest's clock minus the host's, for this request: the middle of the band, moved (within the
    /// band) so that neither D is after the start nor the end after C where that is possible.
    pub offset_ns: i64,
    /// The band at D and C of the request: the wider end of the two on each side.
    pub band: Band,
    /// The guest's D to C is shorter than the host's start to end: the guest was paused in between, or
    /// its clock runs slower. One offset cannot put the one inside the other; `offset_ns` holds at D.
    pub stretched: bool,
    /// Nothing but its key and the band proves the pair, so that it narrows the band itself. Not set for
    /// pairs that follow from the order in a queue or from others being certain.
    pub exchange: bool,
}

/// A guest request without a certain partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unpaired {
    /// [`GuestRequest::serial`].
    pub guest: u64,
    /// Why.
    pub reason: UnpairedReason,
}

/// Why a guest request has no partner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnpairedReason {
    /// The host lost events about that time.
    LostEvents,
    /// The host's recording had not begun.
    BeforeStart,
    /// The host's recording had ended.
    AfterEnd,
    /// Several equal requests were in flight and their order is not certain; or it is not certain which
    /// disk the guest's device is.
    Ambiguous,
    /// QEMU requests with its key exist, but the clock forbids them, or no clock was found.
    OutsideClockBound,
    /// QEMU has no such request.
    NoMatch,
}

impl From<UnpairedReason> for UnlinkedReason {
    fn from(reason: UnpairedReason) -> Self {
        match reason {
            UnpairedReason::LostEvents => Self::LostEvents,
            UnpairedReason::BeforeStart => Self::BeforeStart,
            UnpairedReason::AfterEnd => Self::AfterEnd,
            UnpairedReason::Ambiguous => Self::Ambiguous,
            UnpairedReason::OutsideClockBound => Self::OutsideClockBound,
            UnpairedReason::NoMatch => Self::NoMatch,
        }
    }
}

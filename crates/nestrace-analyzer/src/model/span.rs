//! What the layers hand on when something has ended: bios, requests, QEMU requests, file I/Os as
//! intervals with their identities. Chains are built from these and from nothing else.
//!
//! Times are those of the machine that the layer runs on.

use crate::model::actor::Actors;
use crate::model::clocks::HostNs;
use crate::model::operation::Operation;
use crate::model::owner::Owner;
pub(crate) use crate::result::analysis::{StoryLayer as Layer, StoryWork as What};

/// A request of one device from D to its last C. Flushes of the flush machinery are requests too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestSpan {
    /// Number that no other request of this machine has.
    pub serial: u64,
    /// The device, `MAJOR << 20 | MINOR`.
    pub dev: u32,
    /// What it does; [`Operation::Other`] with `flush` for a flush.
    pub operation: Operation,
    /// Zero-length flush to the device.
    pub flush: bool,
    /// Byte offset on the device.
    pub offset: u64,
    /// Bytes at D.
    pub bytes: u64,
    /// First D: nanoseconds.
    pub issued_ns: u64,
    /// Its last C that moved data (or the flush's C): nanoseconds.
    pub completed_ns: u64,
    /// Pointer of the request: the identity that loop devices' file I/O names as its origin.
    pub pointer: u64,
    /// How many bios it carried.
    pub bios: u32,
    /// Processor of its D; [`Self::ANY_LANE`] where it was put back, or is not known.
    pub lane: u32,
    /// Page identity of its first byte (`nestrace_abi::PAGE_IDENTITY_SHIFT`); 0 if unknown.
    pub page: u64,
    /// Thread of its first D; 0 where it is not known.
    pub tid: u32,
    /// Processor of its last C.
    pub end_cpu: u16,
}

impl RequestSpan {
    /// Nothing is known of its order among others.
    pub(crate) const ANY_LANE: u32 = u32::MAX;
}

/// A bio from Q to its end, with every request that carried it or a part of it, and the flushes
/// that it made or waited for, in the order of their D.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BioSpan {
    /// The device of its Q.
    pub dev: u32,
    pub operation: Operation,
    /// `nestrace_abi::flags` at Q.
    pub flags: u32,
    /// A flush without data.
    pub empty_flush: bool,
    pub offset: u64,
    pub bytes: u64,
    pub queued_ns: u64,
    /// The end of its last fragment, as the file system sees it: after a flush that FUA makes.
    pub ended_ns: u64,
    /// Thread that queued it.
    pub tid: u32,
    /// Pointer of the bio: with `queued_ns` its identity.
    pub pointer: u64,
    /// The owner of its data.
    pub owner: Owner,
    /// That of the uppermost bio it was made for; its own where it was made for none.
    pub owner_at_top: Owner,
    /// For a process that reads a guest's image beside QEMU.
    pub for_another: bool,
    /// `OWNER_*` of its Q.
    pub owner_kind: u8,
    /// Index into `end_io::SYMBOLS`.
    pub end_io: u8,
    /// Identity columns of its Q.
    pub inode: u64,
    pub owner_dev: u32,
    pub file_offset: u64,
    pub iocb: u64,
    pub origin: u64,
    /// Page identity of its first byte; 0 if unknown.
    pub page: u64,
    /// Where the rest of it began after each split, with its page identity.
    pub further_pages: Vec<(u64, u64)>,
    /// Serial of the file I/O in flight that it was queued for; 0 if there is none.
    pub file_io: u64,
    /// It waited for a flush, and more than one could be it: the last is taken.
    pub ambiguous: bool,
    /// Number of its life; no other bio in flight has it.
    pub generation: u32,
    /// The bios of a device above that were handed on to it; `None` where none was.
    pub above: Option<Above>,
    pub requests: Vec<RequestSpan>,
}

impl BioSpan {
    /// Byte offset on its device; a flush has none.
    pub(crate) fn place(&self) -> Option<u64> {
        (!self.empty_flush).then_some(self.offset)
    }

    /// It, as the one that others are made for.
    pub(crate) const fn as_parent(&self) -> Parent {
        Parent {
            generation: self.generation,
            queued_ns: self.queued_ns,
            tid: self.tid,
        }
    }
}

/// A bio of a stacked device (dm, md) that was handed on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Above {
    /// It, by the number of its life; several where they write one block of RAID5; none where it is not certain.
    pub bios: Vec<Parent>,
    /// What all bios of one stripe of RAID4, 5 or 6 have in common; 0 elsewhere.
    pub stripe: u64,
    /// Number of the write of a stripe of RAID4, 5 or 6 that it is work for; 0 elsewhere, and of a read for a bio that reads.
    pub round: u64,
}

/// A bio that one below was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    pub generation: u32,
    pub queued_ns: u64,
    /// The thread that queued it.
    pub tid: u32,
}

/// An interval in the tree of a chain: guest bio ⊃ guest requests ⊃ QEMU requests ⊃ file I/Os ⊃
/// host bios ⊃ host requests (⊃ the same again). Above a bio may stand a call ⊃ what it waited for ⊃ bios.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub layer: Layer,
    pub start_ns: u64,
    pub end_ns: u64,
    /// Byte offset in the layer's own address space: disk, image file, device.
    pub offset: u64,
    pub bytes: u64,
    /// What it does.
    pub what: What,
    /// Others wait for it as well.
    pub shared: bool,
    /// Index that the layer is called by: disk number, image number, or device number.
    pub place: u32,
    /// What the work goes on to.
    pub below: Below,
    /// The threads of its ends.
    pub actors: Actors,
    /// What it waited for, in any order.
    pub children: Vec<Span>,
}

/// What the work of a span of the block layer, or of an image file, goes on to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Below {
    /// The layer's own device, or other spans.
    #[default]
    Nothing,
    /// Devices below: the device is one of dm, md, bcache or loop.
    Devices,
    /// A server on a network.
    Server,
}

impl What {
    /// What a bio or a request does in the block layer.
    pub(crate) const fn of(operation: Operation, flush: bool) -> Self {
        match operation {
            _ if flush => Self::Flush,
            Operation::Read => Self::Read,
            Operation::Write => Self::Write,
            Operation::Discard => Self::Discard,
            Operation::Other => Self::Other,
        }
    }
}

/// The guest's clock at a bio.
#[derive(Clone, Debug, Default)]
pub(crate) struct BioClock {
    /// Guest's clock minus the host's.
    pub offset_ns: i64,
    /// The same at each request where there are several.
    pub offsets_ns: Vec<i64>,
    /// How far it may be off.
    pub bound_ns: u64,
}

/// A QEMU request with everything below it on the host, all on the host's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// Number that no other request of this recording has; ascending with `span.start_ns` per disk as far as known.
    pub serial: u64,
    /// Index into `Images::disks`.
    pub disk: u32,
    /// [`Layer::Qemu`], host clock: `block_acct_start` to the completion notification (`virtqueue_push`, else the end of the last
    /// host event below it, else `block_acct_done`).
    pub span: Span,
    /// `block_acct_done`.
    pub done_ns: u64,
    /// QEMU reported an error.
    pub failed: bool,
    /// The completion notification was seen (`virtqueue_push`).
    pub handed_back: bool,
    /// Address of the virtqueue that it completed on; 0 where that was not seen.
    pub queue: u64,
    /// Offset on the guest's disk is known (merged and restarted requests included).
    pub offset_known: bool,
    /// Served by the same `blk_aio_*` call as others.
    pub merged: bool,
    /// Serial of the discard that this one goes on with: QEMU does a SCSI UNMAP in several.
    pub continues: Option<u64>,
    /// Below it something could not be tied to one request alone.
    pub ambiguous: bool,
    /// Address of the first buffer of its own; 0 if unknown.
    pub buffer: u64,
    /// QEMU's functions were not seen: a file I/O stands for the request.
    pub file_io: Option<FileIoFacts>,
}

impl Served {
    /// `block_acct_start`.
    pub(crate) const fn start_ns(&self) -> HostNs {
        HostNs(self.span.start_ns)
    }

    /// The completion notification, or what stands for it.
    pub(crate) const fn end_ns(&self) -> HostNs {
        HostNs(self.span.end_ns)
    }
}

/// What more is known of a file I/O that stands for a request of QEMU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileIoFacts {
    /// The range of the guest's disk that it moves; `None` where no map tells.
    pub place: Option<(u64, u64)>,
    /// Of a table of the image.
    pub of_table: bool,
}

/// A host bio that a file I/O waited for, as a tree.
#[derive(Clone, Debug)]
pub(crate) struct HostBio {
    pub span: Span,
    /// Serial of each request below it and how many bios that carried, in the order of the children.
    pub requests: Vec<(u64, u32)>,
    pub ambiguous: bool,
}

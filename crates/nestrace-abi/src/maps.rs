//! Names of maps, and the shapes of their keys and values.

use crate::Record;
use crate::histogram::BUCKETS;

/// One ring buffer per processor, in an array of maps.
pub const RINGS: &str = "RINGS";
/// Hash: device number (`MAJOR << 20 | MINOR`) of a whole disk → 1. Block events of others are not sent.
pub const DEVICES: &str = "DEVICES";
/// Array of one [`FirstDevices`]: some of [`DEVICES`], which are found without a look into the hash.
pub const FIRST_DEVICES: &str = "FIRST_DEVICES";
/// Device numbers that are all in [`DEVICES`], in any order; 0 is a free place.
pub type FirstDevices = [u32; 8];
/// Hash: process id (tgid) → guest index. Where files are chosen by mount: processes that are left out.
pub const PROCESSES: &str = "PROCESSES";
/// Hash: device number of a super block → 1. File I/O on other regular files is not sent where files are
/// chosen by mount; else not looked at.
pub const MOUNTS: &str = "MOUNTS";
/// LRU hashes of what is in flight where files are chosen by mount; else not used.
pub const IN_FLIGHT_BY_MOUNT: &[&str] = &["IN_CALL", "IN_URING", "CALL_BEGAN", "IN_JOURNAL_WAIT"];
/// Hash: [`InodeKey`] → 1. Page cache, read-ahead and write-back events of others are not sent.
pub const INODES: &str = "INODES";
/// Per-CPU array indexed by [`crate::Source`]: events that found no room.
pub const DROPS: &str = "DROPS";

/// Per-CPU array indexed by [`crate::Source`]: completions (of bios, requests, direct I/O) that a second program
/// on the tracepoint took over from the first, which the kernel had skipped.
pub const RESCUED: &str = "RESCUED";
/// What the name of such a second program ends with.
pub const NESTED_PROGRAM: &str = "_nested";
/// Array of one: while the probes send events the number of the recording, counted from 1, else 0.
pub const GATE: &str = "GATE";

/// LRU hash: thread id → 1. Threads that carry I/O; switches of others are not sent.
pub const CARRIERS: &str = "CARRIERS";
/// Array: not 0 where a thread with these low bits may be in [`CARRIERS`].
pub const CARRIER_FILTER: &str = "CARRIER_FILTER";
/// Places of [`CARRIER_FILTER`], a power of two.
pub const CARRIER_FILTER_SLOTS: usize = 1 << 16;

/// Array of [`DoneSlot`]s, which the collector maps: where an agent's light detail puts whole requests. A look at the next
/// place is all that it takes, where a ring takes two calls of the kernel's. Each processor has as many places as the global
/// [`DONE_SLOTS`](crate::layout::DONE_SLOTS) says, a power of two, one after the other.
pub const DONE: &str = "DONE";
/// Array of a [`DoneCount`] for each processor, mapped too.
pub const DONE_COUNTS: &str = "DONE_COUNTS";

/// How far the places of one processor in [`DONE`] are used.
#[repr(C, align(64))]
pub struct DoneCount {
    /// How many places the probe has begun to fill.
    pub written: u64,
    /// How many the collector has taken; it writes this.
    pub taken: u64,
}

/// A place of [`DONE`]: of the request with number `n`, from 0, it is `n` modulo the number of places.
#[repr(C)]
pub struct DoneSlot {
    /// The request.
    pub record: Record,
    /// Its number and 1, written last.
    pub number: u64,
}
const _: () = assert!(size_of::<DoneSlot>() == 64 && size_of::<DoneCount>() == 64);

/// Array of [`InFlight`], which the collector maps while the probes sum: requests of light detail, each at the place that its
/// address gives.
pub const IN_FLIGHT: &str = "IN_FLIGHT";
/// LRU hash: a request's address → [`InFlight`], where its place in [`IN_FLIGHT`] was taken.
pub const DISPLACED: &str = "DISPLACED";
/// Places of [`IN_FLIGHT`].
pub const IN_FLIGHT_PLACES: usize = 1 << 16;
/// The fraction of the golden ratio: mixes the bits of addresses.
pub const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// What is known of a request from D on.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InFlight {
    /// A number that stands for its address.
    pub request: u64,
    /// [`InFlight::check_of`] what does not change until it completes; then the time of its end.
    pub check: u64,
    /// `CLOCK_MONOTONIC` at D; 0: not in flight.
    pub issued_ns: u64,
    /// Where its first part began, if one was completed.
    pub offset: u64,
    /// Bytes of the parts that were completed.
    pub done_bytes: u32,
    /// What the last of them left.
    pub left_bytes: u32,
    /// The number of the recording that saw it issued.
    pub recording: u32,
    /// The device; while the probes sum, the place of its operation in [`SUMS`].
    pub dev: u32,
}
const _: () = assert!(size_of::<InFlight>() == 48);

impl InFlight {
    /// Distinguishes an entry that one processor wrote from one that two wrote into at once.
    #[inline(always)]
    #[must_use]
    pub const fn check_of(request: u64, issued_ns: u64, recording: u32, dev: u32) -> u64 {
        request ^ issued_ns.wrapping_mul(MIX) ^ ((dev as u64) << 32) ^ recording as u64
    }

    /// Whether the request was issued in this recording and has not completed.
    #[inline(always)]
    #[must_use]
    pub const fn is_in_flight(&self, recording: u32) -> bool {
        self.issued_ns != 0
            && self.recording == recording
            && self.check == Self::check_of(self.request, self.issued_ns, self.recording, self.dev)
    }
}

/// Array of [`Sum`], which the collector maps. A disk, device or image has a *slot*: as many places as [`SUM_PLACES`], from
/// slot × [`SUM_PLACES`] on: those of each operation ([`sum_op`]) in the first layer, then in the second.
pub const SUMS: &str = "SUMS";
/// Operations that are summed apart.
pub const SUM_OPS: usize = 4;
/// Layers of a slot: of a device its own (D to C) and the queue above it; of others one.
pub const SUM_LAYERS: usize = 2;
/// Places of a slot.
pub const SUM_PLACES: usize = SUM_OPS * SUM_LAYERS;
/// Hash: [`IoKey`] with the address of a BlockBackend's accounting and the guest → its slot. The probes add what they meet.
pub const SUM_BACKENDS: &str = "SUM_BACKENDS";
/// Array of [`SUM_POOL_PLACES`] and one, which the collector maps: slots and 1 that the probes may give to a BlockBackend that they
/// meet. They take the place that the last one says (modulo [`SUM_POOL_PLACES`]), add 1 there, and put 0 into the place. Only the
/// collector fills places.
pub const SUM_POOL: &str = "SUM_POOL";
/// Places of [`SUM_POOL`] with slots: so many disks can begin between two looks of the collector.
pub const SUM_POOL_PLACES: usize = 512;
/// Hash: [`InodeKey`] of an image, with the guest as its `pad` → its slot.
pub const SUM_IMAGES: &str = "SUM_IMAGES";
/// Hash: [`IoKey`] → [`Began`]: what QEMU has in flight.
pub const SUM_BEGAN: &str = "SUM_BEGAN";
/// Array of one: `CLOCK_MONOTONIC` when the gate was opened.
pub const SUMS_SINCE: &str = "SUMS_SINCE";

/// The latencies of one operation in one layer. A bound reader sees each field by itself; together they are of about the same
/// moment.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Sum {
    /// Bytes of what has ended.
    pub bytes: u64,
    /// Latencies together, in nanoseconds.
    pub sum_ns: u64,
    /// The longest since the collector put 0 there, in nanoseconds.
    pub max_ns: u64,
    /// What has ended in each bucket of [`histogram`](crate::histogram).
    pub buckets: [u64; BUCKETS],
}
const _: () = assert!(size_of::<Sum>() == 1832 && size_of::<Sum>() * SUM_PLACES * 3 < 64 << 10);

/// Numbers of operations, as they follow one another in a slot.
pub mod sum_op {
    /// Reads.
    pub const READ: u32 = 0;
    /// Writes.
    pub const WRITE: u32 = 1;
    /// Flushes and syncs.
    pub const FLUSH: u32 = 2;
    /// Discards, writes of zeros without data.
    pub const DISCARD: u32 = 3;
}

/// What has begun in QEMU, or belongs to it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoKey {
    /// Of a cookie, a control block, a request of io_uring; the number of a thread.
    pub address: u64,
    /// The guest's index; 0 where the address needs none.
    pub guest: u32,
    /// One of [`io_kind`].
    pub kind: u32,
}
const _: () = assert!(size_of::<IoKey>() == 16);

/// What the address of an [`IoKey`] is.
pub mod io_kind {
    /// A BlockBackend's accounting.
    pub const BACKEND: u32 = 0;
    /// The cookie of a request that QEMU accounts.
    pub const REQUEST: u32 = 1;
    /// A thread that is in a system call.
    pub const CALL: u32 = 2;
    /// A request of io_uring.
    pub const URING: u32 = 3;
    /// A control block of native aio, mixed with the inode.
    pub const AIO: u32 = 4;
}

/// Something that has begun.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Began {
    /// `CLOCK_MONOTONIC`.
    pub ts_ns: u64,
    /// Bytes, where they are known then.
    pub bytes: u64,
    /// Its place in [`SUMS`].
    pub place: u32,
    /// The guest's index.
    pub guest: u32,
}
const _: () = assert!(size_of::<Began>() == 24);

/// Key of [`INODES`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeKey {
    /// Inode number.
    pub inode: u64,
    /// Device number of the super block.
    pub dev: u32,
    /// 0; in [`SUM_IMAGES`] the guest's index.
    pub pad: u32,
}
const _: () = assert!(size_of::<InodeKey>() == 16);

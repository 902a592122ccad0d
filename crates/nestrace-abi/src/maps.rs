//! Names of maps, and the shapes of their keys and values.

use crate::Record;

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
pub const IN_FLIGHT_BY_MOUNT: &[&str] = &["IN_CALL", "IN_URING", "CALL_BEGAN"];
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

/// Key of [`INODES`].
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InodeKey {
    /// Inode number.
    pub inode: u64,
    /// Device number of the super block.
    pub dev: u32,
    /// Always 0.
    pub pad: u32,
}
const _: () = assert!(size_of::<InodeKey>() == 16);

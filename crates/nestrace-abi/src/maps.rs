//! Names of maps, and the shapes of their keys and values.

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
pub const IN_FLIGHT_BY_MOUNT: &[&str] = &["IN_CALL", "IN_URING"];
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

//! The records that cross from the kernel to user space, and the names of maps and globals.
//!
//! This crate sits below every other one: the probes (`ebpf/`) write these records, the collector
//! (`nestrace-record`, `nestrace-agent`) drains them, `nestrace-trace` stores them. It has no
//! dependencies, no `std` and no behaviour beyond naming things.
//!
//! ```
//! use nestrace_abi::{Kind, Record};
//! let record = Record { kind: Kind::Issue as u8, ..Record::default() };
//! assert_eq!(Kind::from_u8(record.kind), Some(Kind::Issue));
//! ```
#![no_std]

pub mod end_io;
pub mod flags;
pub mod histogram;
pub mod kind;
pub mod layout;
pub mod maps;

pub use kind::{Kind, Source};

/// One event as a probe writes it: 56 bytes (a cache line with the ring's own header), integers only. What `object`, `related`, `offset`,
/// `bytes`, `flags`, `aux` and `dev` hold depends on [`Kind`]; each variant's documentation says so.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// `CLOCK_MONOTONIC` in nanoseconds, read by the probe itself.
    pub ts_ns: u64,
    /// A [`Kind`].
    pub kind: u8,
    /// Small extra fact of the kind (see [`Kind`]); 0 where unused.
    pub sub: u8,
    /// The processor that the probe ran on.
    pub cpu: u16,
    /// The kernel's thread id (`pid` in kernel terms) that the probe ran in; 0 in the idle task.
    pub tid: u32,
    /// The identity that the event is about: a bio, a request, a kiocb, a QEMU cookie.
    pub object: u64,
    /// A second identity that the event ties to `object`.
    pub related: u64,
    /// Byte offset on the device or in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// As the kernel has it on the way to user space, as [`flags`] in a stored event.
    pub flags: u32,
    /// Device (`MAJOR << 20 | MINOR`) or, for file I/O and QEMU events, the guest's index.
    pub dev: u32,
}

/// The second half of a record that says whose pages or control block a bio carries, and of a
/// record that names a file. Follows a [`Record`] in the same ring entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// Inode whose pages (or whose direct I/O) the event concerns; 0 where none is known.
    pub inode: u64,
    /// Byte offset in that inode.
    pub file_offset: u64,
    /// The kernel's `kiocb`, where the bio belongs to a direct I/O; of a call by QEMU, or of one on a
    /// file, the user's address of the first buffer (see [`Kind`]).
    pub iocb: u64,
    /// What the kiocb was made from: the user's `struct iocb` (native aio), the loop device's
    /// request, or the `io_kiocb` itself.
    pub origin: u64,
    /// `bio->bi_end_io`; becomes an [`end_io`] number in a stored event.
    pub end_io: u64,
    /// cgroup id of the bio (or of the caller where the bio has none).
    pub cgroup: u64,
    /// Device number (`MAJOR << 20 | MINOR`) of the super block that holds `inode`.
    pub owner_dev: u32,
    /// I/O priority (`ioprio`) of the bio; errno of a completion; a file's flags, a guest's state (see [`Kind`]).
    pub aux: u32,
}

/// A [`Record`] with its [`Owner`], as one ring entry.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OwnedRecord {
    /// The event.
    pub record: Record,
    /// Whose it is.
    pub owner: Owner,
}

/// `related` of a [`Kind::RpcEnd`] whose client does not say when it sent the call.
pub const RPC_SENT_UNKNOWN: u64 = u64::MAX;

/// Size of the kernel's `struct page` for which the low bits of a [`Kind::Queue`]'s first page hold the place within the page.
pub const PAGE_IDENTITY_SIZE: u16 = 64;
/// The place within the page is in units of `1 << PAGE_IDENTITY_SHIFT` bytes. So 64 × `related` of a [`Kind::Queue`] grows as
/// the address of its memory does, wherever that is mapped: in QEMU, too.
pub const PAGE_IDENTITY_SHIFT: u32 = 6;

const _: () = assert!(size_of::<Record>() == 56);
const _: () = assert!(size_of::<Owner>() == 56);
const _: () = assert!(size_of::<OwnedRecord>() == 112);
const _: () = assert!(core::mem::offset_of!(Record, object) == 16);
const _: () = assert!(core::mem::offset_of!(Record, flags) == 48);
const _: () = assert!(core::mem::offset_of!(OwnedRecord, owner) == 56);

//! Why a run cannot go on.

use std::path::PathBuf;
use std::sync::Arc;

use nestrace_rig::cache_dir::CacheError;
use nestrace_rig::guest::GuestError;
use nestrace_rig::initramfs::InitramfsError;
use nestrace_rig::interrupt::Interrupted;
use nestrace_rig::kernel_image::KernelImageError;
use nestrace_rig::stack::HostFsKind;

use super::{BaseError, DatabaseError, FolderError, OwnGuestError, RecorderError, TreeError};
use crate::plan::{GuestFs, Scheduler};

/// A run could not go on. What fails within a cell is no such error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The folder of results.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Not enough space.
    #[error(
        "put devices and images into {folder}: {needed_mib} MiB are needed, {available_mib} MiB are free"
    )]
    NoSpace {
        /// Where.
        folder: PathBuf,
        /// MiB.
        needed_mib: u64,
        /// MiB.
        available_mib: u64,
    },
    /// Not enough space for what a guest is booted from.
    #[error(
        "put the guests' boot files into {folder}: {needed_mib} MiB are needed, {available_mib} MiB are free"
    )]
    NoTemporarySpace {
        /// Where.
        folder: PathBuf,
        /// MiB.
        needed_mib: u64,
        /// MiB.
        available_mib: u64,
    },
    /// Not enough space for what is kept for guests.
    #[error(
        "put the guests' data into {folder}: {needed_mib} MiB are needed, {available_mib} MiB are free"
    )]
    NoCacheSpace {
        /// The cache.
        folder: PathBuf,
        /// MiB.
        needed_mib: u64,
        /// MiB.
        available_mib: u64,
    },
    /// Not enough memory.
    #[error("boot guests: {needed_mib} MiB of memory are needed, {available_mib} MiB are free")]
    NoMemory {
        /// MiB.
        needed_mib: u64,
        /// MiB.
        available_mib: u64,
    },
    /// There is no agent to put into guests.
    #[error("find the agent for guests at {0}")]
    NoAgent(PathBuf),
    /// There is no program to serve modelled disks.
    #[error("find what serves modelled disks at {0}")]
    NoDisk(PathBuf),
    /// A device.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// The databases of guests.
    #[error(transparent)]
    Database(#[from] Arc<DatabaseError>),
    /// The tree of small files.
    #[error(transparent)]
    Tree(#[from] Arc<TreeError>),
    /// The folder of what is kept for guests.
    #[error(transparent)]
    Cache(#[from] CacheError),
    /// The kernel for guests.
    #[error(transparent)]
    Kernel(#[from] KernelImageError),
    /// Why a guest does not have one of its disks.
    #[error(transparent)]
    Disk(#[from] Arc<LabError>),
    /// A disk that QEMU does not take.
    #[error("give the guest its disk {disk}: QEMU refuses it: {said}")]
    Refused {
        /// The disk's id.
        disk: String,
        /// QEMU's words.
        said: String,
    },
    /// The user space of guests.
    #[error(transparent)]
    Initramfs(#[from] InitramfsError),
    /// A guest.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// A guest of the user's.
    #[error(transparent)]
    OwnGuest(#[from] OwnGuestError),
    /// A recording.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    /// This machine's kernel lacks a host file system.
    #[error("mount {fs}: this machine's kernel has no such file system")]
    NoHostFs {
        /// Which.
        fs: HostFsKind,
    },
    /// This machine's kernel lacks an I/O scheduler.
    #[error("set host_scheduler {scheduler}: this machine's kernel has no such scheduler")]
    NoHostScheduler {
        /// Which.
        scheduler: Scheduler,
    },
    /// The guests' kernel lacks a file system.
    #[error("make {fs} in guests: their kernel {release} has no such file system")]
    NoGuestFs {
        /// Which.
        fs: GuestFs,
        /// Of the kernel.
        release: String,
    },
    /// io_uring is forbidden on this machine.
    #[error("open disks with aio=io_uring: kernel.io_uring_disabled is 2 on this machine")]
    NoIoUring,
    /// What ran inside a guest in the host's role failed.
    #[error("run the plan inside a guest: it ended with status {status}: {said}")]
    InGuest {
        /// Its exit code.
        status: i32,
        /// The end of its messages.
        said: String,
    },
    /// A script in a guest that ran into its time limit.
    #[error(
        "run a script in the guest: it took too long and was stopped after {seconds} s: {said}"
    )]
    TookTooLong {
        /// How long it ran.
        seconds: u64,
        /// The end of what it said.
        said: String,
        /// All of it.
        script: String,
    },
    /// A workload that left no result.
    #[error("read the result of {workload}: {said}")]
    NoResult {
        /// Its name.
        workload: String,
        /// What there is instead.
        said: String,
    },
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

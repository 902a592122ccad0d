//! The axes of a plan and their words, besides those of a disk (`nestrace_rig::stack`).

use std::fmt;
use std::str::FromStr;

use nestrace_modelled_disk::parameters::BUILT_IN;
use nestrace_rig::modelled_disk::is_file;
use nestrace_rig::stack::{GuestFsKind, HostFsKind, UnknownValue, axis};

axis!(
    /// The axes of a plan.
    Axis, "an axis", {
        /// File system in the guest.
        GuestFs = "guest_fs",
        /// File system under the image, or `bd`.
        HostFs = "host_fs",
        /// Format of the image.
        Format = "format",
        /// QEMU's cache mode.
        Cache = "cache",
        /// How QEMU submits.
        Aio = "aio",
        /// The guest's bus.
        Bus = "bus",
        /// qemu-img's preallocation.
        Preallocation = "preallocation",
        /// How the image lies on the host's file system.
        Placement = "placement",
        /// The guest's I/O scheduler.
        GuestScheduler = "guest_scheduler",
        /// The host's I/O scheduler.
        HostScheduler = "host_scheduler",
        /// Options of the guest's mount.
        GuestMountOptions = "guest_mount_options",
        /// Options of the host's mount.
        HostMountOptions = "host_mount_options",
        /// The guest's read-ahead, KiB.
        GuestReadAhead = "guest_read_ahead_kib",
        /// The host's read-ahead, KiB.
        HostReadAhead = "host_read_ahead_kib",
        /// The disk under the image, or in its place.
        HostDisk = "host_disk",
        /// Nothing: copies of a cell are equal.
        Copy = "copy",
    }
);

axis!(
    /// qemu-img's preallocation.
    Preallocation, "a preallocation", {
        /// Nothing is allocated.
        Off = "off",
        /// Tables of a qcow2 image.
        Metadata = "metadata",
        /// Space by fallocate.
        Falloc = "falloc",
        /// Space by writing.
        Full = "full",
    }
);

axis!(
    /// How a raw image lies on the host's file system before each run.
    Placement, "a placement", {
        /// Nothing is allocated.
        Sparse = "sparse",
        /// Written once from start to end.
        Preallocated = "preallocated",
        /// Written once in pieces of 64 KiB in a random order, with another file's between them.
        Fragmented = "fragmented",
    }
);

axis!(
    /// An I/O scheduler.
    Scheduler, "a scheduler", {
        /// What the kernel chose.
        Default = "default",
        /// None.
        None = "none",
        /// mq-deadline.
        MqDeadline = "mq-deadline",
        /// BFQ.
        Bfq = "bfq",
        /// Kyber.
        Kyber = "kyber",
    }
);

/// The disk that a host file system or a bare device lies on, where the plan names none of this machine's.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HostDisk {
    /// A loop device over a file of the lab's.
    #[default]
    LoopFile,
    /// A modelled disk: a built-in model's name, or a TOML file.
    Modelled(String),
}

/// The word for what a plan leaves as it is.
pub(super) const DEFAULT: &str = "default";

impl HostDisk {
    /// The word of a plan.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::LoopFile => DEFAULT,
            Self::Modelled(model) => model,
        }
    }

    /// The modelled disk.
    #[must_use]
    pub fn model(&self) -> Option<&str> {
        match self {
            Self::LoopFile => None,
            Self::Modelled(model) => Some(model),
        }
    }
}

impl FromStr for HostDisk {
    type Err = UnknownValue;

    /// A file of parameters is read when the plan runs.
    fn from_str(word: &str) -> Result<Self, UnknownValue> {
        if word == DEFAULT {
            return Ok(Self::LoopFile);
        }
        if is_file(word) || BUILT_IN.contains(&word) {
            return Ok(Self::Modelled(word.to_owned()));
        }
        Err(UnknownValue {
            axis: "a modelled disk",
            word: word.to_owned(),
            expected: [DEFAULT]
                .into_iter()
                .chain(BUILT_IN)
                .chain(["a file that ends with .toml"])
                .collect(),
        })
    }
}

/// What the guest mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum GuestFs {
    /// A file system of its own on a disk.
    Fs(GuestFsKind),
    /// A folder of the host's file system, over 9p: there is no image and no disk.
    PassThrough,
}

/// The word for a folder of the host's.
pub const PASS_THROUGH: &str = "9p";

impl GuestFs {
    /// The word of a plan.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Fs(kind) => kind.word(),
            Self::PassThrough => PASS_THROUGH,
        }
    }

    /// The module of the guest's kernel.
    #[must_use]
    pub fn module(self) -> &'static str {
        match self {
            Self::Fs(kind) => kind.module(),
            Self::PassThrough => "9p",
        }
    }
}

impl fmt::Display for GuestFs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.word())
    }
}

impl FromStr for GuestFs {
    type Err = UnknownValue;

    fn from_str(word: &str) -> Result<Self, UnknownValue> {
        if word == PASS_THROUGH {
            return Ok(Self::PassThrough);
        }
        word.parse()
            .map(Self::Fs)
            .map_err(|mut unknown: UnknownValue| {
                unknown.expected.push(PASS_THROUGH);
                unknown
            })
    }
}

/// What lies under the image, or in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Host {
    /// The bare block device: the guest's disk is the device itself.
    Bare,
    /// A file system with the image on it.
    Fs(HostFsKind),
}

/// The word for the bare block device.
pub const BARE: &str = "bd";

impl Host {
    /// The word of a plan.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Bare => BARE,
            Self::Fs(kind) => kind.word(),
        }
    }

    /// Every word.
    #[must_use]
    pub fn words() -> Vec<&'static str> {
        let kinds = HostFsKind::ALL.iter().map(|kind| kind.word());
        kinds.chain([BARE]).collect()
    }
}

impl FromStr for Host {
    type Err = UnknownValue;

    fn from_str(word: &str) -> Result<Self, UnknownValue> {
        if word == BARE {
            return Ok(Self::Bare);
        }
        word.parse().map(Self::Fs).map_err(|_| UnknownValue {
            axis: "the file system or bare device below on the host",
            word: word.to_owned(),
            expected: Self::words(),
        })
    }
}

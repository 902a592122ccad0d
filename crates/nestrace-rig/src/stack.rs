//! The axes of a nested stack, which combinations exist, and small sets that cover them.

use std::fmt;

/// A word that is no value of an axis.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("read {word:?} as {axis}: expected one of {}", expected.join(", "))]
pub struct UnknownValue {
    /// Which axis.
    pub axis: &'static str,
    /// What was given.
    pub word: String,
    /// What there is.
    pub expected: Vec<&'static str>,
}

/// Declares an axis: an enum whose values have the names that QEMU and mkfs use.
#[macro_export]
macro_rules! axis {
    ($(#[$doc:meta])* $name:ident, $axis:literal, { $($(#[$value_doc:meta])* $value:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$value_doc])* $value),+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$value),+];

            /// The word that QEMU, mkfs and the command line use.
            #[must_use]
            pub fn word(self) -> &'static str {
                match self { $(Self::$value => $word),+ }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.word())
            }
        }

        impl std::str::FromStr for $name {
            type Err = $crate::stack::UnknownValue;

            fn from_str(word: &str) -> Result<Self, Self::Err> {
                Self::ALL.iter().copied().find(|value| value.word() == word).ok_or_else(|| $crate::stack::UnknownValue {
                    axis: $axis,
                    word: word.to_owned(),
                    expected: Self::ALL.iter().map(|value| value.word()).collect(),
                })
            }
        }
    };
}

pub use axis;

axis!(
    /// File system on the host, under the image.
    HostFsKind, "a host file system", {
        /// ext4.
        Ext4 = "ext4",
        /// XFS.
        Xfs = "xfs",
        /// btrfs.
        Btrfs = "btrfs",
        /// ext3, mounted by the ext4 driver.
        Ext3 = "ext3",
        /// ext2, mounted by the ext4 driver.
        Ext2 = "ext2",
        /// JFS, which today's kernels of hosts lack.
        Jfs = "jfs",
        /// reiserfs, which today's kernels of hosts lack.
        Reiserfs = "reiserfs",
    }
);
axis!(
    /// File system in the guest.
    GuestFsKind, "a guest file system", {
        /// ext2.
        Ext2 = "ext2",
        /// ext3.
        Ext3 = "ext3",
        /// ext4.
        Ext4 = "ext4",
        /// XFS.
        Xfs = "xfs",
        /// JFS.
        Jfs = "jfs",
        /// reiserfs.
        Reiserfs = "reiserfs",
        /// btrfs.
        Btrfs = "btrfs",
        /// f2fs.
        F2fs = "f2fs",
    }
);
axis!(
    /// Format of the image.
    ImageFormat, "an image format", {
        /// The disk's bytes as they are.
        Raw = "raw",
        /// QEMU's copy-on-write format.
        Qcow2 = "qcow2",
    }
);
axis!(
    /// QEMU's cache mode.
    CacheMode, "a cache mode", {
        /// O_DIRECT, the guest's flushes honoured.
        None = "none",
        /// Host page cache, the guest's flushes honoured.
        Writeback = "writeback",
        /// Host page cache, a flush after each write.
        Writethrough = "writethrough",
        /// O_DIRECT, a flush after each write.
        Directsync = "directsync",
        /// Host page cache, flushes ignored.
        Unsafe = "unsafe",
    }
);
axis!(
    /// How QEMU submits file I/O.
    Aio, "a kind of asynchronous I/O", {
        /// A pool of threads with pread and pwrite.
        Threads = "threads",
        /// Linux AIO (`io_submit`); needs O_DIRECT.
        Native = "native",
        /// io_uring.
        IoUring = "io_uring",
    }
);
axis!(
    /// What the guest sees the disk on.
    Bus, "a bus", {
        /// virtio-blk.
        Virtio = "virtio",
        /// virtio-scsi.
        VirtioScsi = "virtio-scsi",
        /// PIIX IDE.
        Ide = "ide",
    }
);

impl CacheMode {
    /// Whether QEMU opens the image with O_DIRECT.
    #[must_use]
    pub fn is_direct(self) -> bool {
        matches!(self, Self::None | Self::Directsync)
    }
}

/// How one disk of a guest is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DiskStack {
    /// Format of the image.
    pub format: ImageFormat,
    /// Cache mode.
    pub cache: CacheMode,
    /// Submission.
    pub aio: Aio,
    /// Controller.
    pub bus: Bus,
    /// Whether an iothread of its own serves it (not on IDE).
    pub iothread: bool,
}

impl Default for DiskStack {
    fn default() -> Self {
        Self {
            format: ImageFormat::Qcow2,
            cache: CacheMode::None,
            aio: Aio::IoUring,
            bus: Bus::Virtio,
            iothread: false,
        }
    }
}

impl DiskStack {
    /// The least between guest and host: a raw image on virtio, past the host's page cache.
    pub const RAW: Self = Self {
        format: ImageFormat::Raw,
        cache: CacheMode::None,
        aio: Aio::Native,
        bus: Bus::Virtio,
        iothread: false,
    };

    /// A raw image through the host's page cache, which every folder allows.
    pub const RAW_CACHED: Self = Self {
        cache: CacheMode::Writeback,
        aio: Aio::Threads,
        ..Self::RAW
    };

    /// Why QEMU would refuse it, if it would.
    #[must_use]
    pub fn objection(&self) -> Option<&'static str> {
        if self.aio == Aio::Native && !self.cache.is_direct() {
            return Some("aio=native needs cache=none or cache=directsync");
        }
        if self.iothread && self.bus == Bus::Ide {
            return Some("IDE has no iothread");
        }
        None
    }
}

/// A whole stack: a disk, and the host file system that its image lies on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Stack {
    /// Host file system.
    pub host_fs: HostFsKind,
    /// The disk.
    pub disk: DiskStack,
}

impl fmt::Display for Stack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DiskStack {
            format,
            cache,
            aio,
            bus,
            iothread,
        } = self.disk;
        write!(f, "{}/{format}/{cache}/{aio}/{bus}", self.host_fs)?;
        if iothread {
            write!(f, "/iothread")
        } else {
            Ok(())
        }
    }
}

/// The host file systems of the matrix.
pub const MATRIX_HOST_FS: [HostFsKind; 4] = [
    HostFsKind::Ext4,
    HostFsKind::Xfs,
    HostFsKind::Btrfs,
    HostFsKind::Ext3,
];

/// Every stack that QEMU accepts: 4 host file systems × 2 formats × 12 pairs of cache mode and
/// submission × 3 buses.
#[must_use]
pub fn every_stack() -> Vec<Stack> {
    let mut stacks = Vec::new();
    for host_fs in MATRIX_HOST_FS {
        for &format in ImageFormat::ALL {
            for (cache, aio) in cache_and_aio() {
                for &bus in Bus::ALL {
                    let disk = DiskStack {
                        format,
                        cache,
                        aio,
                        bus,
                        iothread: false,
                    };
                    stacks.push(Stack { host_fs, disk });
                }
            }
        }
    }
    stacks
}

/// Every pair of cache mode and submission that QEMU accepts.
#[must_use]
pub fn cache_and_aio() -> Vec<(CacheMode, Aio)> {
    let all = CacheMode::ALL
        .iter()
        .flat_map(|&cache| Aio::ALL.iter().map(move |&aio| (cache, aio)));
    all.filter(|&(cache, aio)| aio != Aio::Native || cache.is_direct())
        .collect()
}

/// A set for every run: each value of each axis, each pair of cache mode and submission, cache=none
/// on each host file system, and one iothread on each virtio bus; four guests of four disks.
#[must_use]
pub fn covering_set() -> Vec<Stack> {
    use self::Aio::{IoUring, Native, Threads};
    use self::Bus::{Ide, Virtio, VirtioScsi};
    use self::CacheMode::{Directsync, None as Uncached, Unsafe, Writeback, Writethrough};
    use self::HostFsKind::{Btrfs, Ext3, Ext4, Xfs};
    use self::ImageFormat::{Qcow2, Raw};
    let rows = [
        (Xfs, Raw, Uncached, IoUring, Virtio, false),
        (Ext4, Qcow2, Uncached, Native, Virtio, false),
        (Btrfs, Raw, Uncached, Threads, VirtioScsi, false),
        (Ext3, Raw, Uncached, IoUring, Ide, false),
        (Ext4, Raw, Writeback, Threads, Virtio, false),
        (Btrfs, Qcow2, Writeback, IoUring, VirtioScsi, false),
        (Xfs, Raw, Writethrough, IoUring, Ide, false),
        (Ext3, Qcow2, Writethrough, Threads, Virtio, false),
        (Xfs, Qcow2, Directsync, Native, VirtioScsi, true),
        (Ext4, Raw, Directsync, IoUring, VirtioScsi, false),
        (Xfs, Raw, Directsync, Threads, Ide, false),
        (Ext4, Qcow2, Uncached, Threads, Ide, false),
        (Ext3, Raw, Unsafe, IoUring, Virtio, false),
        (Xfs, Qcow2, Unsafe, Threads, VirtioScsi, false),
        (Xfs, Qcow2, Uncached, IoUring, Virtio, true),
        (Btrfs, Raw, Directsync, Native, Ide, false),
    ];
    let stack = |(host_fs, format, cache, aio, bus, iothread)| Stack {
        host_fs,
        disk: DiskStack {
            format,
            cache,
            aio,
            bus,
            iothread,
        },
    };
    rows.map(stack).to_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn the_matrix_has_288_stacks_and_qemu_accepts_each() {
        let stacks = every_stack();
        assert_eq!(stacks.len(), 4 * 2 * 12 * 3);
        assert!(stacks.iter().all(|stack| stack.disk.objection().is_none()));
        assert_eq!(cache_and_aio().len(), 12);
    }

    #[test]
    fn the_covering_set_covers_every_value_and_every_pair() {
        let set = covering_set();
        let pairs: BTreeSet<_> = set
            .iter()
            .map(|stack| (stack.disk.cache, stack.disk.aio))
            .collect();
        assert_eq!(pairs, cache_and_aio().into_iter().collect());
        for host_fs in MATRIX_HOST_FS {
            assert!(
                set.iter()
                    .any(|s| s.host_fs == host_fs && s.disk.cache == CacheMode::None)
            );
        }
        for &bus in Bus::ALL {
            for &format in ImageFormat::ALL {
                assert!(
                    set.iter()
                        .any(|s| s.disk.bus == bus && s.disk.format == format),
                    "{bus} {format}"
                );
            }
        }
        assert!(set.iter().all(|stack| stack.disk.objection().is_none()));
        assert_eq!(set.len(), set.iter().collect::<BTreeSet<_>>().len());
        // IDE has room for four disks in a guest.
        for guest in set.chunks(4) {
            assert!(
                guest
                    .iter()
                    .filter(|stack| stack.disk.bus == Bus::Ide)
                    .count()
                    <= 4
            );
        }
    }

    #[test]
    fn words_are_read_back() {
        for &aio in Aio::ALL {
            assert_eq!(aio.word().parse(), Ok(aio));
        }
        let error = "scsi".parse::<Bus>().unwrap_err();
        assert_eq!(
            error.to_string(),
            "read \"scsi\" as a bus: expected one of virtio, virtio-scsi, ide"
        );
    }
}

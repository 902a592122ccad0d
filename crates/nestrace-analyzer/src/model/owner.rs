//! The owner of a bio's data.

use nestrace_abi::{end_io, flags};
use nestrace_trace::Event;

/// The owner of a bio's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Owner {
    /// An image file: index into `Images::images`.
    Image(u32),
    /// Metadata or journal of a file system: everybody's.
    FileSystem,
    /// The file below the loop device with this number.
    Loop(u32),
    /// The owner is this thread's process.
    Thread(u32),
}

impl Owner {
    /// The owner of a bio's data at Q as far as its pages and its end show it, without knowing any file.
    ///
    /// Inodes of block devices are numbered by the device: pages of the one below a file system are its metadata (super
    /// blocks of btrfs, ext4's and jbd2's blocks).
    pub(crate) fn by_pages(queue: &Event) -> Self {
        if queue.sub == flags::OWNER_PAGES && queue.inode == u64::from(queue.dev) {
            return Self::FileSystem;
        }
        match queue.end_io {
            end_io::BUFFER_HEAD | end_io::XFS_LOG | end_io::XFS_BUF => Self::FileSystem,
            end_io::F2FS_WRITE | end_io::F2FS_READ if is_of_f2fs_areas(queue) => Self::FileSystem,
            _ => Self::Thread(queue.tid),
        }
    }
}

/// Node and checkpoint areas of f2fs lie in inodes of their own (`node_ino` and `meta_ino` of its super block, which
/// mkfs.f2fs always makes 1 and 2); its files have numbers from 3.
fn is_of_f2fs_areas(queue: &Event) -> bool {
    queue.sub == flags::OWNER_PAGES && matches!(queue.inode, 1 | 2)
}

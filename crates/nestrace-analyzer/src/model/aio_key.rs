//! Which native aio an event belongs to.

use nestrace_trace::Event;

/// The user's iocb in its file: addresses alone may repeat between two QEMUs, inode numbers between
/// two file systems.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct AioKey {
    inode: u64,
    /// The super block's device.
    owner_dev: u32,
    iocb: u64,
}

impl AioKey {
    /// Of an event that names the user's iocb as the origin of its direct I/O; the iocb is 0 where
    /// there is none.
    pub(crate) const fn of_direct_io(event: &Event) -> Self {
        Self {
            inode: event.inode,
            owner_dev: event.owner_dev,
            iocb: event.origin,
        }
    }

    /// Of an event whose object is the user's iocb.
    pub(crate) const fn of_submission(event: &Event) -> Self {
        Self {
            iocb: event.object,
            ..Self::of_direct_io(event)
        }
    }

    pub(crate) const fn names_iocb(&self) -> bool {
        self.iocb != 0
    }

    /// Whether the event is about the same file.
    pub(crate) const fn is_on_file_of(&self, event: &Event) -> bool {
        self.inode == event.inode && self.owner_dev == event.owner_dev
    }
}

//! Which bios a call waits for.

use nestrace_abi::{end_io, flags, flags::op};

use crate::model::call::{By, Call, FileId, Why};
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::span::BioSpan;

/// The inode that has the pages of all trees of a btrfs (`BTRFS_BTREE_INODE_OBJECTID`); its files have numbers from 256.
const BTRFS_TREES: u64 = 1;

/// Metadata of a btrfs but for its super blocks. Its super block has no device of its own, so its major number is 0.
pub(super) fn is_of_trees(bio: &BioSpan) -> bool {
    let has_pages = bio.owner_kind == flags::OWNER_PAGES;
    has_pages && bio.inode == BTRFS_TREES && bio.owner_dev != 0 && bio.owner_dev >> 20 == 0
}

/// Metadata or journal of a file system.
fn is_metadata(bio: &BioSpan) -> bool {
    bio.owner == Owner::FileSystem || is_of_trees(bio)
}

/// The file whose data a bio carries; `None` for metadata, journals and direct I/O.
pub(super) fn data_of(bio: &BioSpan) -> Option<FileId> {
    let data = bio.owner_kind == flags::OWNER_PAGES && !is_metadata(bio);
    data.then_some(FileId {
        dev: bio.owner_dev,
        inode: bio.inode,
    })
}

/// Whether the thread that queues this bio waits for it: metadata that it has to read.
pub(super) fn may_be_waited_for(bio: &BioSpan) -> bool {
    let ahead = bio.flags & flags::RAHEAD != 0;
    bio.operation == Operation::Read && is_metadata(bio) && !ahead
}

/// Whether a call in flight waits for a bio that has ended; `own` if it queued it.
pub(super) fn waits(call: &Call, bio: &BioSpan, own: bool) -> Option<Why> {
    let file = data_of(bio);
    let reads = bio.operation == Operation::Read;
    if bio.end_io == end_io::XFS_LOG {
        let forced_ns = call.log_forced_ns?;
        return (call.syncs() && bio.ended_ns >= forced_ns).then_some(Why::Log);
    }
    if file == Some(call.caller.file) {
        if reads {
            let touches = call.moves_data() && call.touches(bio.file_offset, bio.bytes);
            return touches.then_some(Why::Pages);
        }
        let in_range = !call.synced_write || call.touches(bio.file_offset, bio.bytes);
        return match own {
            true if call.syncs() || call.direct => Some(Why::Pages),
            // Which pages an msync is about is not recorded.
            false if call.syncs() && in_range && call.caller.op != op::MSYNC => {
                Some(Why::WriteBack)
            }
            _ => None,
        };
    }
    if !own {
        return None;
    }
    let ahead = bio.flags & flags::RAHEAD != 0;
    match bio.owner_kind {
        flags::OWNER_DIRECT => Some(Why::Own),
        flags::OWNER_ANONYMOUS if call.direct => Some(Why::Own),
        // Another file's pages: not this call's.
        _ if file.is_some() => None,
        // Metadata that it has to read first.
        _ if reads => (!ahead).then_some(Why::Own),
        // Flushes, and what a sync writes itself.
        _ => (call.syncs() || matches!(call.by, By::Uring(_) | By::Aio(_)) && call.direct)
            .then_some(Why::Own),
    }
}

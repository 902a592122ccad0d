//! Whose data a bio carries, whom it is charged to, and which clocks run for it.

use nestrace_abi::flags;
use nestrace_trace::Event;

use super::Above;
use super::bio::ClocksOf;
use crate::model::owner::Owner;

/// Whose data a bio carries, and whom it is charged to.
pub(super) fn owner_of(event: &Event, above: &mut Above<'_>) -> (Owner, Owner) {
    let mut owner = above.images.owner(event);
    if event.sub == flags::OWNER_ANONYMOUS
        && let Some(image) = above.files.submitting(event.tid)
        && above.images.is_over(image, event.dev, Some(event.offset))
    {
        owner = Owner::Image(image);
    }
    let Owner::Image(image) = owner else {
        return (owner, owner);
    };
    if above.images.is_for_another(image, event, above.threads) {
        return (owner, Owner::Thread(event.tid));
    }
    if above.images.is_over(image, event.dev, Some(event.offset)) {
        let files = &above.files;
        let carrier = || files.carrying_image(event);
        owner = Owner::Image(above.images.charged(image, carrier));
    }
    (owner, owner)
}

/// Direct I/O from memory that processes share (memfd, `/dev/shm`, huge pages, as a guest with virtiofs has it), which
/// names no kiocb: a bio that the current call of its thread explains, as one of anonymous memory. Its pages are of a
/// file in memory, whose super block has no device (major 0); what the file system holds is of its own super block.
pub(super) fn from_shared_memory(event: &Event, above: &Above<'_>) -> Option<Event> {
    if event.sub != flags::OWNER_PAGES || event.owner_dev >> 20 != 0 {
        return None;
    }
    let image = above.files.submitting(event.tid)?;
    let is_memory = matches!(above.images.owner(event), Owner::Thread(_))
        && !above.images.is_super_block(event.owner_dev)
        && above.images.is_over(image, event.dev, Some(event.offset));
    is_memory.then_some(Event {
        sub: flags::OWNER_ANONYMOUS,
        inode: 0,
        owner_dev: 0,
        file_offset: 0,
        ..*event
    })
}

/// Counts a data bio for its image, and says which clocks it lets run.
pub(super) fn clocks_of(owner: Owner, event: &Event, above: &mut Above<'_>) -> Option<ClocksOf> {
    match owner {
        Owner::Image(image) => {
            let first = above.images.queued(image, event);
            let disk = above.images.images.get(image as usize)?.disk();
            let direct = matches!(event.sub, flags::OWNER_DIRECT | flags::OWNER_ANONYMOUS);
            first.then_some(if direct {
                ClocksOf::Direct(disk)
            } else {
                ClocksOf::Cached(disk)
            })
        }
        Owner::FileSystem => {
            let number = above.images.file_system_at(event.dev, Some(event.offset));
            number.map(ClocksOf::FileSystem)
        }
        Owner::Loop(_) | Owner::Thread(_) => None,
    }
}

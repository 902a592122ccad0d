//! Which file I/Os waited for a host bio.
//!
//! A bio that was queued for a file I/O is its own. Beyond that,
//! - whoever reads waits for every bio that reads pages of its range, whoever queued it;
//! - O_DIRECT that fell back to the page cache waits for the write-back of its range;
//! - a sync waits for write-back of the file, and for the journal: what jbd2's thread does between the
//!   begin and the end of a commit, XFS' log, btrfs' trees. That is work for several: shared.
//!
//! All of it is decided when a bio ends: a file I/O that waits for it is still in flight then.

use nestrace_abi::{Kind, end_io, flags, flags::op};
use nestrace_trace::Event;

use super::stacked::Stacked;
use crate::follow::file_io::FileSpans;
use crate::follow::image::Images;
use crate::model::file_io_span::FileIoSpan;
use crate::model::operation::Operation;
use crate::model::owner::Owner;
use crate::model::pointer::PointerMap;
use crate::model::span::{BioSpan, HostBio};

/// What the file systems below the images do for all.
#[derive(Debug, Default)]
pub(super) struct HostBios {
    /// jbd2's threads that commit now.
    committing: PointerMap<u32, u64>,
}

/// Why a file I/O waited for a bio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    Own,
    /// Pages of its range or file.
    Pages,
    Journal,
}

impl HostBios {
    pub(super) fn host_fs(&mut self, kind: Kind, event: &Event) {
        match kind {
            Kind::JournalCommitStart => {
                self.committing.insert(event.tid, event.object);
            }
            Kind::JournalCommitEnd => {
                self.committing.remove(&event.tid);
            }
            _ => {}
        }
    }

    /// Gives a bio that has ended, with its tree if that is known, to those who waited for it. Says whether anybody did.
    pub(super) fn ended(
        &self,
        bio: &BioSpan,
        files: &mut FileSpans,
        images: &Images,
        (stacked, tree): (&mut Stacked, Option<HostBio>),
    ) -> bool {
        let journal = self.is_journal(bio, images);
        let waiting: Vec<(u64, Wait)> = if others_may_wait(bio, journal) {
            files
                .waiting()
                .filter_map(|file| Some((file.serial, self.wait(file, bio, journal, images)?)))
                .collect()
        } else {
            files
                .waiting_mut(bio.file_io)
                .and_then(|file| Some((file.serial, self.wait(file, bio, journal, images)?)))
                .into_iter()
                .collect()
        };
        if waiting.is_empty() {
            return false;
        }
        let several = waiting.len() > 1;
        let tree = tree.unwrap_or_else(|| stacked.tree(bio, journal, images));
        for (serial, wait) in waiting {
            let Some(file) = files.waiting_mut(serial) else {
                continue;
            };
            let mut tree = tree.clone();
            let for_others = journal || bio.operation == Operation::Write;
            tree.span.shared = several || wait != Wait::Own && for_others;
            file.end_ns = file.end_ns.max(bio.ended_ns);
            file.bios.push(tree);
        }
        true
    }

    fn wait(
        &self,
        file: &FileIoSpan,
        bio: &BioSpan,
        journal: bool,
        images: &Images,
    ) -> Option<Wait> {
        if !images.is_under(file.image, bio) {
            return None;
        }
        let own = bio.file_io == file.serial;
        match bio.owner {
            Owner::Image(image) if !images.same_file(image, file.image) => None,
            Owner::Image(_) if own => Some(Wait::Own),
            Owner::Image(_) => (bio.owner_kind == flags::OWNER_PAGES
                && waits_for_pages(file, bio, images))
            .then_some(Wait::Pages),
            _ if own => Some(Wait::Own),
            _ => (journal && file.syncs()).then_some(Wait::Journal),
        }
    }

    /// Work of the file system that a sync may wait for, whoever does it.
    pub(super) fn is_journal(&self, bio: &BioSpan, images: &Images) -> bool {
        if self.committing.contains_key(&bio.tid) || bio.end_io == end_io::XFS_LOG {
            return true;
        }
        let trees = bio.owner == Owner::FileSystem && bio.operation == Operation::Write;
        (trees || bio.empty_flush && bio.file_io != 0) && images.is_on_btrfs(bio)
    }
}

/// Direct I/O is waited for by the one that did it; so is what a thread does beside.
fn others_may_wait(bio: &BioSpan, journal: bool) -> bool {
    let pages = matches!(bio.owner, Owner::Image(_)) && bio.owner_kind == flags::OWNER_PAGES;
    pages || journal
}

fn waits_for_pages(file: &FileIoSpan, bio: &BioSpan, images: &Images) -> bool {
    let touches = file.touches(bio.file_offset, bio.bytes);
    match (bio.operation, file.op) {
        (Operation::Read, op::READ | op::WRITE) => touches,
        (Operation::Write, op::WRITE) if file.dsync => touches,
        (Operation::Write, op::WRITE) => {
            touches && images.is_direct(file.image) && bio.queued_ns >= file.start_ns
        }
        (Operation::Write, _) => file.syncs(),
        _ => false,
    }
}

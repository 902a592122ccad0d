//! One UNMAP of a guest that QEMU does in several discards, one after the other: the guest's request is
//! their sum.

use std::collections::VecDeque;
use std::rc::Rc;

use crate::model::clocks::HostNs;
use crate::model::ids::GuestDiskId;
use crate::model::span::Served;

/// A discard is held back until the host has been read so far; the caller reads the host in smaller
/// steps, and the next piece begins at once.
const STEP_NS: u64 = 2_000_000;
/// Discards that are held back at most.
const HELD: usize = 1 << 12;

/// Discards that another may go on with.
#[derive(Debug, Default)]
pub(super) struct Unmaps {
    held: VecDeque<Held>,
}

#[derive(Debug)]
struct Held {
    served: Rc<Served>,
    /// Serial of its last piece.
    last: u64,
    disk: GuestDiskId,
}

impl Unmaps {
    /// Takes a discard: by itself, or as the next piece of one that is held.
    pub(super) fn add(&mut self, piece: &Rc<Served>, disk: GuestDiskId) {
        let goes_on = |held: &&mut Held| Some(held.last) == piece.continues && held.disk == disk;
        if let Some(held) = self.held.iter_mut().find(goes_on) {
            held.last = piece.serial;
            let whole = Rc::make_mut(&mut held.served);
            whole.span.end_ns = whole.span.end_ns.max(piece.span.end_ns);
            whole.span.bytes = whole.span.bytes.saturating_add(piece.span.bytes);
            whole
                .span
                .children
                .extend(piece.span.children.iter().cloned());
            whole.done_ns = whole.done_ns.max(piece.done_ns);
            whole.failed |= piece.failed;
            whole.ambiguous |= piece.ambiguous;
            return;
        }
        self.held.push_back(Held {
            served: Rc::clone(piece),
            last: piece.serial,
            disk,
        });
    }

    /// The next that nothing goes on with, when the host has been read up to a time.
    pub(super) fn whole_before(&mut self, host_ns: HostNs) -> Option<(Rc<Served>, GuestDiskId)> {
        let first = self.held.front()?;
        let due = first.served.end_ns() <= host_ns.saturating_add(STEP_NS);
        if !due && self.held.len() <= HELD {
            return None;
        }
        let first = self.held.pop_front()?;
        Some((first.served, first.disk))
    }

    /// The end of the oldest that is held.
    pub(super) fn oldest_ns(&self) -> Option<HostNs> {
        let ends = self.held.iter().map(|held| held.served.end_ns());
        ends.min()
    }
}

//! Which syncs needed a commit of the journal.

use crate::model::call::FileId;

/// Waiters of a commit that are remembered; of a commit with more, not all are known.
const MAX_WAITERS: usize = 8;

/// A file that was synced, and by which program.
pub(super) type Waiter = (FileId, u32);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    known: Vec<Waiter>,
    more: bool,
}

impl Waiters {
    pub(super) fn add(&mut self, waiter: Waiter) {
        if self.known.contains(&waiter) {
            return;
        }
        if self.known.len() < MAX_WAITERS {
            self.known.push(waiter);
        } else {
            self.more = true;
        }
    }

    /// Those of other files, if no sync of this file needed the commit.
    pub(super) fn others(&self, file: FileId) -> &[Waiter] {
        let its_own = self.more || self.known.iter().any(|(known, _)| *known == file);
        if its_own { &[] } else { &self.known }
    }
}

//! How many notices there may be of a guest, and which of them the guest cannot use up.

use std::collections::{BTreeMap, BTreeSet};

/// Notices in a guest's words, or that it can cause with words.
const MAX_SAID: usize = 40;
/// Notices of one kind that are the recorder's own.
const MAX_OF_A_KIND: usize = 16;

/// Whether a notice has room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Room {
    None,
    /// It is the last one.
    Last,
    More,
}

/// Notices that were written of a guest.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// What its agent has said: one that cannot record says the same with each try, every three seconds.
    said: BTreeSet<(String, String)>,
    /// How many of the recorder's own there are of each kind, and the kinds that are reported once.
    kinds: BTreeMap<&'static str, usize>,
    once: BTreeSet<(&'static str, String)>,
}

impl Told {
    /// For words of the guest; those that were reported before have none.
    pub fn room_for_said(&mut self, what: &str, message: &str) -> Room {
        let is_full = self.said.len() >= MAX_SAID;
        if is_full || !self.said.insert((what.to_owned(), message.to_owned())) {
            return Room::None;
        }
        room(self.said.len(), MAX_SAID)
    }

    /// For one of the recorder's own.
    pub fn room_for(&mut self, what: &'static str) -> Room {
        let n = self.kinds.entry(what).or_default();
        *n = n.saturating_add(1);
        room(*n, MAX_OF_A_KIND)
    }

    /// Whether one that is reported once is reported now.
    pub fn is_new(&mut self, what: &'static str, message: &str) -> bool {
        self.once.insert((what, message.to_owned()))
    }
}

fn room(nth: usize, most: usize) -> Room {
    match nth.cmp(&most) {
        std::cmp::Ordering::Less => Room::More,
        std::cmp::Ordering::Equal => Room::Last,
        std::cmp::Ordering::Greater => Room::None,
    }
}

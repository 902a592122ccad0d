//! Slices that wait to be drawn.
//!
//! Chains are known in the order of their ends, slices are drawn in that of their starts, and what
//! several chains waited for (a merged request, another's journal commit) is one slice with an arrow
//! from each. So slices wait, as many as there is room for.

use std::collections::{BTreeMap, HashMap};

use super::{packets::Slice, tracks::Place};

/// Some 30 MB.
const MOST: usize = 1 << 16;

/// What makes two descriptions one slice.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Identity {
    /// The track.
    pub place: Place,
    /// Its begin as the recording's event has it, nanoseconds.
    pub ts_ns: u64,
    /// How long it took.
    pub lasted_ns: u64,
    /// Byte offset.
    pub offset: u64,
    /// Bytes.
    pub bytes: u64,
}

/// Start, and number in the order of arrival.
pub type Key = (u64, u64);

#[derive(Debug)]
struct Waits {
    identity: Identity,
    slice: Slice,
}

/// The slices, by their start.
#[derive(Debug)]
pub struct Waiting {
    most: usize,
    by_start: BTreeMap<Key, Waits>,
    known: HashMap<Identity, Key>,
    arrived: u64,
    last_flow: u64,
}

impl Default for Waiting {
    fn default() -> Self {
        Self::of_at_most(MOST)
    }
}

impl Waiting {
    /// None yet, and never more than so many.
    pub fn of_at_most(most: usize) -> Self {
        Self {
            most,
            by_start: BTreeMap::new(),
            known: HashMap::new(),
            arrived: 0,
            last_flow: 0,
        }
    }

    /// Where a slice waits that was added before.
    pub fn find(&self, identity: &Identity) -> Option<Key> {
        self.known.get(identity).copied()
    }

    /// Takes a slice.
    pub fn add(&mut self, identity: Identity, slice: Slice) -> Key {
        self.arrived += 1;
        let key = (slice.start_ns, self.arrived);
        self.known.insert(identity.clone(), key);
        self.by_start.insert(key, Waits { identity, slice });
        key
    }

    /// An arrow from the slice that waits to what it waits for. An arrow points forward in time: what began
    /// before its parent (another's commit) points to it.
    pub fn connect(&mut self, parent: Key, child: Key) {
        self.last_flow += 1;
        let (from, to) = (parent.min(child), parent.max(child));
        if !self.by_start.contains_key(&from) || !self.by_start.contains_key(&to) {
            return;
        }
        if let Some(from) = self.by_start.get_mut(&from) {
            from.slice.flows_out.push(self.last_flow);
        }
        if let Some(to) = self.by_start.get_mut(&to) {
            to.slice.flows_in.push(self.last_flow);
        }
    }

    /// The same between one that waits here and `parent`, which waits elsewhere.
    pub fn arrow(&mut self, child: Key, parent: &mut Slice) {
        let Some(waits) = self.by_start.get_mut(&child) else {
            return;
        };
        self.last_flow += 1;
        let (from, to) = match parent.start_ns < child.0 {
            true => (parent, &mut waits.slice),
            false => (&mut waits.slice, parent),
        };
        from.flows_out.push(self.last_flow);
        to.flows_in.push(self.last_flow);
    }

    /// The first slice, where there is no room for more or nothing more comes.
    pub fn next(&mut self, all: bool) -> Option<(Place, Slice)> {
        if !all && self.by_start.len() <= self.most {
            return None;
        }
        let (_, first) = self.by_start.pop_first()?;
        self.known.remove(&first.identity);
        Some((first.identity.place, first.slice))
    }
}

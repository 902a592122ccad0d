//! Names to types: a chained hash table over indexes, so that no name is copied.

/// No further type in a chain.
const END: u32 = u32::MAX;

/// Chains of types whose names share a hash.
#[derive(Debug, Default)]
pub(super) struct NameIndex {
    /// First type of each chain; the length is a power of two.
    heads: Vec<u32>,
    /// The next type of the chain, by type.
    next: Vec<u32>,
}

impl NameIndex {
    pub(super) fn with_types(n_types: usize) -> Self {
        Self {
            heads: vec![END; n_types.max(1).next_power_of_two()],
            next: vec![END; n_types],
        }
    }

    /// Puts a type at the front of its chain.
    pub(super) fn insert(&mut self, name: &[u8], index: u32) {
        let chain = self.chain(name);
        let (Some(head), Some(next)) =
            (self.heads.get_mut(chain), self.next.get_mut(index as usize))
        else {
            return;
        };
        *next = std::mem::replace(head, index);
    }

    /// Types whose name may be this one. An index is entered once, so a chain ends.
    pub(super) fn candidates(&self, name: &[u8]) -> impl Iterator<Item = u32> + '_ {
        let head = self.heads.get(self.chain(name)).copied();
        std::iter::successors(head, |index| self.next.get(*index as usize).copied())
            .take_while(|index| *index != END)
    }

    fn chain(&self, name: &[u8]) -> usize {
        // FNV-1a; a bad case costs time linear in the number of types, no more.
        let hash = name.iter().fold(0x811c_9dc5_u32, |hash, byte| {
            (hash ^ u32::from(*byte)).wrapping_mul(0x0100_0193)
        });
        let mixed = hash ^ (hash >> 15);
        mixed as usize & self.heads.len().saturating_sub(1)
    }
}

//! Hash maps keyed by kernel and QEMU addresses.
//!
//! Addresses are spread well by one multiplication. They come from the recording's kernel, so
//! no attacker chooses them to collide, and a hash that resists that would be a third of the run time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

/// A map from addresses (or other small integers) to state.
pub(crate) type PointerMap<K, V> = HashMap<K, V, BuildHasherDefault<PointerHasher>>;

/// Multiplies and folds each word that it is given.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PointerHasher(u64);

impl PointerHasher {
    fn mix(&mut self, word: u64) {
        let product =
            u128::from(self.0 ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);
        self.0 = (product as u64) ^ ((product >> 64) as u64);
    }
}

impl Hasher for PointerHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.mix(u64::from(*byte));
        }
    }

    fn write_u32(&mut self, word: u32) {
        self.mix(u64::from(word));
    }

    fn write_u64(&mut self, word: u64) {
        self.mix(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.mix(word as u64);
    }
}

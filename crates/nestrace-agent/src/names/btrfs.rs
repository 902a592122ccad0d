//! Whether an inode number names one file of a btrfs: each subvolume counts its own, and the kernel's events do not say
//! which it is.

use std::fs::File;
use std::os::fd::AsRawFd;

/// Keys of the tree of roots: a root's item, and the first number of a subvolume.
const ROOT_ITEM: u32 = 132;
const FIRST_SUBVOLUME: u64 = 256;
const LAST_SUBVOLUME: u64 = u64::MAX - 255;
const TREE_OF_ROOTS: u64 = 1;
/// Bytes before each item.
const HEADER_BYTES: usize = 32;
/// The tree of roots also has the free space's cache; with more of that, nothing is known.
const MAX_SEARCHES: usize = 100;

/// `struct btrfs_ioctl_search_args`.
#[repr(C)]
#[derive(Clone, Copy)]
struct SearchArgs {
    tree: u64,
    min_object: u64,
    max_object: u64,
    min_offset: u64,
    max_offset: u64,
    min_transaction: u64,
    max_transaction: u64,
    min_type: u32,
    max_type: u32,
    /// Most items; answer: how many there are.
    n_items: u32,
    unused: u32,
    reserved: [u64; 4],
    items: [u8; 3992],
}

const _: () = assert!(size_of::<SearchArgs>() == 4096);

nix::ioctl_readwrite!(tree_search, 0x94, 17, SearchArgs);

/// Whether the file system of this folder has no subvolume besides its own root. `false` where it does not say.
pub fn has_one_tree(folder: &File) -> bool {
    let mut from = (FIRST_SUBVOLUME, 0, 0);
    for _ in 0..MAX_SEARCHES {
        let mut args = SearchArgs {
            tree: TREE_OF_ROOTS,
            min_object: from.0,
            max_object: LAST_SUBVOLUME,
            min_offset: from.2,
            max_offset: u64::MAX,
            min_transaction: 0,
            max_transaction: u64::MAX,
            min_type: from.1,
            max_type: u32::from(u8::MAX),
            n_items: u32::MAX,
            unused: 0,
            reserved: [0; 4],
            items: [0; 3992],
        };
        // SAFETY: the structure is the kernel's, and lives as long as the call.
        if unsafe { tree_search(folder.as_raw_fd(), &raw mut args) }.is_err() {
            return false;
        }
        let keys = keys(&args.items, args.n_items);
        if keys.iter().any(|(_, kind, _)| *kind == ROOT_ITEM) {
            return false;
        }
        let Some((object, kind, offset)) = keys.last() else {
            return true;
        };
        from = match offset.checked_add(1) {
            Some(offset) => (*object, *kind, offset),
            None => (object.saturating_add(1), 0, 0),
        };
    }
    false
}

/// Object, type and offset of each item.
fn keys(mut items: &[u8], n: u32) -> Vec<(u64, u32, u64)> {
    let mut keys = Vec::new();
    for _ in 0..n {
        let u64_at = |at: usize| {
            items
                .get(at..)?
                .first_chunk()
                .map(|b| u64::from_ne_bytes(*b))
        };
        let u32_at = |at: usize| {
            items
                .get(at..)?
                .first_chunk()
                .map(|b| u32::from_ne_bytes(*b))
        };
        let key = || Some((u64_at(8)?, u32_at(24)?, u64_at(16)?, u32_at(28)?));
        let Some((object, kind, offset, length)) = key() else {
            break;
        };
        keys.push((object, kind, offset));
        items = items
            .get(HEADER_BYTES + length as usize..)
            .unwrap_or_default();
    }
    keys
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_read_one_after_the_other() {
        let mut items = Vec::new();
        for (object, offset, kind, length) in [(257_u64, 3_u64, 1_u32, 5_u32), (258, 0, 132, 0)] {
            items.extend(7_u64.to_ne_bytes());
            items.extend(object.to_ne_bytes());
            items.extend(offset.to_ne_bytes());
            items.extend(kind.to_ne_bytes());
            items.extend(length.to_ne_bytes());
            items.resize(items.len() + length as usize, 0);
        }
        assert_eq!(keys(&items, 9), [(257, 1, 3), (258, 132, 0)]);
        assert_eq!(keys(&items[..30], 1), []);
    }

    #[test]
    fn what_is_no_btrfs_says_nothing() {
        assert!(!has_one_tree(&File::open("/proc").unwrap()));
    }
}

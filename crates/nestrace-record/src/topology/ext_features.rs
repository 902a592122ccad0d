//! ext2, ext3 or ext4? The ext4 driver mounts all three; the super block tells them apart.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

/// Where the super block lies on the device, and how much of it is needed.
pub const SUPERBLOCK: (u64, usize) = (1024, 1024);

const MAGIC: u16 = 0xef53;
/// `s_feature_compat`: a journal.
const HAS_JOURNAL: u32 = 0x4;
/// `s_feature_incompat` that ext3 knows: FILETYPE, RECOVER, META_BG.
const EXT3_INCOMPAT: u32 = 0x2 | 0x4 | 0x10;
/// `s_feature_ro_compat` that ext3 knows: SPARSE_SUPER, LARGE_FILE, BTREE_DIR.
const EXT3_RO_COMPAT: u32 = 0x1 | 0x2 | 0x4;

/// The file system's generation by its features, as `blkid` decides it; `None` if it is no ext super block.
#[must_use]
pub fn generation(superblock: &[u8]) -> Option<&'static str> {
    let word = |at: usize| {
        Some(u32::from_le_bytes(
            superblock.get(at..at + 4)?.try_into().ok()?,
        ))
    };
    let magic = u16::from_le_bytes(superblock.get(56..58)?.try_into().ok()?);
    if magic != MAGIC {
        return None;
    }
    let (compat, incompat, ro_compat) = (word(92)?, word(96)?, word(100)?);
    if incompat & !EXT3_INCOMPAT != 0 || ro_compat & !EXT3_RO_COMPAT != 0 {
        return Some("ext4");
    }
    Some(if compat & HAS_JOURNAL == 0 {
        "ext2"
    } else {
        "ext3"
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(compat: u32, incompat: u32, ro_compat: u32, expected: &str) {
        let mut block = vec![0; SUPERBLOCK.1];
        block[56..58].copy_from_slice(&MAGIC.to_le_bytes());
        for (at, value) in [(92, compat), (96, incompat), (100, ro_compat)] {
            block[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        assert_eq!(generation(&block), Some(expected));
    }

    #[test]
    fn generations() {
        // As mke2fs 1.47 makes them: -t ext2, ext3, ext4, and ext4 mounted (RECOVER).
        check(0x38, 0x2, 0x3, "ext2");
        check(0x3c, 0x2, 0x3, "ext3");
        check(0x3c, 0x6, 0x3, "ext3");
        check(0x3c, 0x2c2, 0x46b, "ext4");
        check(0x3c, 0x42, 0x3, "ext4");
        assert_eq!(generation(&[0; 1024]), None);
        assert_eq!(generation(&[]), None);
    }
}

//! Pages of files that a guest's page cache had, lost, and had to read again.
//!
//! A page is known by its file and its place. Of a disk with more pages than there is room for, a part is followed that
//! their hash chooses, each standing for as many others: what is counted of it holds for all of them.

use crate::measure::histogram::Histogram;
use crate::model::call::FileId;
use crate::model::pointer::PointerMap;
use crate::result::dist::Dist;

const PAGE: u64 = 4096;
/// Pages that are followed.
const MAX_PAGES: usize = 1 << 16;
/// Pages of one bio: 8 MiB. A guest's stream can claim any length.
const MAX_OF_ONE: u64 = 1 << 11;
/// One page in four thousand millions. A guest can choose its inode numbers for their hashes.
const MAX_ZEROS: u32 = 32;

/// What was counted of a disk's files.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BroughtAgainCounts {
    /// Bytes read into the guest's page cache.
    pub read_bytes: u64,
    /// About so many of these had been there before in this recording: read, or written back from there.
    pub again_bytes: u64,
    /// About so many bytes were there at one time or another, each counted once.
    pub distinct_bytes: u64,
    /// Bytes that the disk's files brought into the page cache between the two times, of each followed page.
    pub between_bytes: Dist,
}

impl BroughtAgainCounts {
    pub(super) fn add(&mut self, other: Self) {
        self.read_bytes += other.read_bytes;
        self.again_bytes += other.again_bytes;
        self.distinct_bytes += other.distinct_bytes;
        // A guest that rebooted has an empty cache: the session with more of it speaks.
        if other.between_bytes.n > self.between_bytes.n {
            self.between_bytes = other.between_bytes;
        }
    }
}

/// The pages of a disk's files.
#[derive(Debug, Default)]
pub(super) struct BroughtAgain {
    /// By hash: how many bytes had been read when the page was last read or written back.
    pages: PointerMap<u64, u64>,
    /// A page is followed if its hash ends with so many zeros.
    zeros: u32,
    read_bytes: u64,
    again_bytes: u64,
    between: Option<Box<Histogram>>,
}

impl BroughtAgain {
    /// A bio has read pages of a file into the page cache.
    pub(super) fn read(&mut self, file: FileId, offset: u64, bytes: u64) {
        let now = self.read_bytes;
        for hash in self.pages_of(file, offset, bytes) {
            if let Some(before) = self.pages.insert(hash, now) {
                self.again_bytes = self.again_bytes.saturating_add(PAGE << self.zeros);
                let between = self.between.get_or_insert_default();
                between.record(now.saturating_sub(before));
            }
        }
        self.read_bytes = now.saturating_add(bytes);
        self.bound();
    }

    /// A bio has written back pages that are in the page cache.
    pub(super) fn written_back(&mut self, file: FileId, offset: u64, bytes: u64) {
        let pages = self.pages_of(file, offset, bytes);
        self.pages.extend(pages.map(|hash| (hash, self.read_bytes)));
        self.bound();
    }

    /// Those of its pages that are followed.
    fn pages_of(&self, file: FileId, offset: u64, bytes: u64) -> impl Iterator<Item = u64> + use<> {
        let zeros = self.zeros;
        let first = offset / PAGE;
        let pages = first..first + bytes.div_ceil(PAGE).min(MAX_OF_ONE);
        let hashes = pages.map(move |page| hash([u64::from(file.dev), file.inode, page]));
        hashes.filter(move |hash| hash.trailing_zeros() >= zeros)
    }

    fn bound(&mut self) {
        while self.pages.len() > MAX_PAGES {
            if self.zeros == MAX_ZEROS {
                return self.pages.clear();
            }
            self.zeros += 1;
            let zeros = self.zeros;
            self.pages.retain(|hash, _| hash.trailing_zeros() >= zeros);
        }
    }

    pub(super) fn finish(&self) -> BroughtAgainCounts {
        let between = self.between.as_ref();
        BroughtAgainCounts {
            read_bytes: self.read_bytes,
            again_bytes: self.again_bytes.min(self.read_bytes),
            distinct_bytes: (self.pages.len() as u64 * PAGE) << self.zeros,
            between_bytes: between.map(|all| all.dist()).unwrap_or_default(),
        }
    }
}

/// Spreads what identifies a page over all bits (the finalizer of SplitMix64, a word at a time).
fn hash(words: [u64; 3]) -> u64 {
    words
        .into_iter()
        .fold(0x9e37_79b9_7f4a_7c15, |state, word| {
            let mut mixed = state ^ word;
            mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (mixed ^ (mixed >> 31)).wrapping_add(0x9e37_79b9_7f4a_7c15)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: FileId = FileId { dev: 7, inode: 5 };
    const SECOND: FileId = FileId { dev: 7, inode: 6 };

    #[test]
    fn a_page_that_comes_again_had_been_lost() {
        let mut all = BroughtAgain::default();
        all.written_back(FIRST, 0, 8192);
        all.read(FIRST, 65536, 131_072);
        assert_eq!(all.finish().again_bytes, 0);
        all.read(FIRST, 0, 8192);
        all.read(SECOND, 65536, 131_072);
        all.read(FIRST, 65536, 131_072);
        let counts = all.finish();
        assert_eq!(counts.read_bytes, 8192 + 3 * 131_072);
        assert_eq!(counts.again_bytes, 8192 + 131_072);
        assert_eq!(counts.distinct_bytes, 8192 + 2 * 131_072);
        let between = counts.between_bytes;
        assert_eq!((between.n, between.min), (34, Some(131_072)));
        assert_eq!(between.max, Some(2 * 131_072 + 8192));
    }

    #[test]
    fn a_part_of_many_pages_stands_for_all() {
        // 4 GiB, read twice: sixteen times the pages that have room.
        let mut all = BroughtAgain::default();
        for _ in 0..2 {
            for at in 0..4096 {
                all.read(FIRST, at << 20, 1 << 20);
            }
        }
        assert!(all.pages.len() <= MAX_PAGES);
        let counts = all.finish();
        let near = |bytes: u64| (bytes as f64 / (1u64 << 32) as f64 - 1.0).abs() < 0.02;
        assert!(near(counts.distinct_bytes), "{counts:?}");
        assert!(near(counts.again_bytes), "{counts:?}");
        assert!(near(counts.between_bytes.p50.unwrap_or(0)), "{counts:?}");
    }

    #[test]
    fn a_length_that_no_bio_has_takes_no_time() {
        let mut all = BroughtAgain::default();
        all.read(FIRST, u64::MAX - 100, u64::MAX);
        assert!(all.pages.len() <= MAX_PAGES);
        assert_eq!(all.finish().read_bytes, u64::MAX);
    }
}

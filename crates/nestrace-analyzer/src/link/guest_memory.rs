//! Where QEMU has a guest's memory.
//!
//! The pages that a guest's bio carries are the buffer that QEMU reads or writes. A `struct page` has 64 bytes and stands
//! for 4,096, so 64 × the page identity of a bio ([`nestrace_abi::PAGE_IDENTITY_SHIFT`]) grows as the address of the
//! buffer in QEMU does, and the difference of the two is one constant for each piece of the guest's memory that is one
//! piece in QEMU: up to the hole below 4 GiB, and above it.
//!
//! The constants are learned from pairs that something else has found. A constant counts for the pages between the
//! first and the last one that had it; where two want the same pages, the one with more pairs is right.
//! Buffers outside of the guest's memory are copies (misaligned or encrypted data, IDE's PIO) and say nothing.

use crate::model::pointer::PointerMap;
use crate::result::analysis;

/// So many pairs make a constant.
pub(crate) const LEARNED: u64 = 8;
/// Constants that pairs have asked for and that are none yet.
const MAX_CANDIDATES: usize = 1 << 10;
/// Pairs that wait for the first constant.
const MAX_EARLY: usize = 1 << 12;
/// Constants of one guest.
const MAX_REGIONS: usize = 64;
/// Bytes of memory for each byte of `struct page`.
const SCALE: u64 = 64;

/// The constant that a pair asks for.
pub(crate) const fn constant(page: u64, buffer: u64) -> u64 {
    buffer.wrapping_sub(page.wrapping_mul(SCALE))
}

/// What the guest's memory says of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Agreement {
    /// It is the same memory.
    Agreed,
    /// It is not.
    Contradicted,
    /// One of the two is not known, or is a copy.
    Unknown,
}

/// Pairs by what the guest's memory says of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct MemoryCheck {
    pub agreed: u64,
    pub contradicted: u64,
    pub unknown: u64,
}

impl MemoryCheck {
    pub(crate) fn count(&mut self, agreement: Agreement) {
        match agreement {
            Agreement::Agreed => self.agreed += 1,
            Agreement::Contradicted => self.contradicted += 1,
            Agreement::Unknown => self.unknown += 1,
        }
    }

    /// `chains[].memory_check`.
    pub(crate) const fn finish(self) -> analysis::MemoryCheck {
        analysis::MemoryCheck {
            agreed: self.agreed,
            contradicted: self.contradicted,
            unknown: self.unknown,
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.agreed += other.agreed;
        self.contradicted += other.contradicted;
        self.unknown += other.unknown;
    }
}

/// Pages with one constant.
#[derive(Clone, Copy, Debug)]
struct Region {
    /// Buffer less 64 × page, wrapping.
    constant: u64,
    /// The first page identity that had it, and the last.
    pages: (u64, u64),
    pairs: u64,
}

impl Region {
    fn new(constant: u64, page: u64) -> Self {
        Self {
            constant,
            pages: (page, page),
            pairs: 0,
        }
    }

    fn add(&mut self, page: u64) {
        self.pages = (self.pages.0.min(page), self.pages.1.max(page));
        self.pairs += 1;
    }

    const fn has(&self, page: u64) -> bool {
        self.pages.0 <= page && page <= self.pages.1
    }

    fn overlaps(&self, other: &Self) -> bool {
        self.pages.0 <= other.pages.1 && other.pages.0 <= self.pages.1
    }

    fn buffer_of(&self, page: u64) -> u64 {
        page.wrapping_mul(SCALE).wrapping_add(self.constant)
    }

    fn holds(&self, buffer: u64) -> bool {
        self.buffer_of(self.pages.0) <= buffer && buffer <= self.buffer_of(self.pages.1)
    }

    const fn distance(&self, page: u64) -> u64 {
        if page < self.pages.0 {
            self.pages.0 - page
        } else {
            page.saturating_sub(self.pages.1)
        }
    }
}

/// The memory of one guest in its QEMU.
#[derive(Clone, Debug, Default)]
pub(crate) struct GuestMemory {
    regions: Vec<Region>,
    candidates: PointerMap<u64, Region>,
    /// Pairs from before the first constant: page, buffer, and the caller's number.
    early: Vec<(u64, u64, u32)>,
}

impl GuestMemory {
    /// Where QEMU has a page; `None` before a constant is known.
    pub(crate) fn buffer_of(&self, page: u64) -> Option<u64> {
        let near = self.regions.iter().min_by_key(|it| it.distance(page))?;
        Some(near.buffer_of(page))
    }

    /// Where QEMU has a page by each of the constants.
    pub(crate) fn buffers_of(&self, page: u64) -> impl Iterator<Item = u64> + '_ {
        self.regions.iter().map(move |it| it.buffer_of(page))
    }

    /// Whether the constant of a page is known and not that of a page near it.
    pub(crate) fn knows(&self, page: u64) -> bool {
        self.regions.iter().any(|region| region.has(page))
    }

    /// Whether a buffer is known to lie in the guest's memory.
    pub(crate) fn holds(&self, buffer: u64) -> bool {
        self.regions.iter().any(|region| region.holds(buffer))
    }

    /// A constant is known.
    pub(crate) fn is_learned(&self) -> bool {
        !self.regions.is_empty()
    }

    /// Takes a pair that something else has found, of whatever the caller calls `owner`, and says what the memory says of
    /// it. Pairs from before the first constant come with [`GuestMemory::early`].
    pub(crate) fn check(&mut self, page: u64, buffer: u64, owner: u32) -> Option<Agreement> {
        if page == 0 || buffer == 0 {
            return Some(Agreement::Unknown);
        }
        let waits = self.regions.is_empty() && self.early.len() < MAX_EARLY;
        if waits {
            self.early.push((page, buffer, owner));
        }
        self.learn(page, buffer);
        (!waits).then(|| self.judge(page, buffer))
    }

    fn judge(&self, page: u64, buffer: u64) -> Agreement {
        let of_constant = |region: &&Region| region.buffer_of(page) == buffer;
        if self.regions.iter().any(|region| of_constant(&region)) {
            Agreement::Agreed
        } else if self.knows(page) && self.holds(buffer) {
            Agreement::Contradicted
        } else {
            Agreement::Unknown
        }
    }

    /// What the memory says of the pairs from before the first constant, with their owners; nothing before there is one,
    /// unless nothing more comes.
    pub(crate) fn early(&mut self, is_end: bool) -> Vec<(u32, Agreement)> {
        if self.regions.is_empty() && !is_end {
            return Vec::new();
        }
        let early = std::mem::take(&mut self.early).into_iter();
        early
            .map(|(page, buffer, owner)| (owner, self.judge(page, buffer)))
            .collect()
    }

    /// Learns from a pair that something else has found.
    pub(crate) fn learn(&mut self, page: u64, buffer: u64) {
        let constant = constant(page, buffer);
        let known = self.regions.iter_mut();
        if let Some(region) = known.into_iter().find(|region| region.constant == constant) {
            return region.add(page);
        }
        if self.candidates.len() >= MAX_CANDIDATES {
            self.candidates.clear();
        }
        let candidates = &mut self.candidates;
        let candidate = candidates
            .entry(constant)
            .or_insert_with(|| Region::new(constant, page));
        candidate.add(page);
        let candidate = *candidate;
        let better =
            |region: &Region| !region.overlaps(&candidate) || region.pairs < candidate.pairs;
        if candidate.pairs >= LEARNED && self.regions.iter().all(better) {
            self.candidates.remove(&constant);
            self.regions.retain(|region| !region.overlaps(&candidate));
            if self.regions.len() < MAX_REGIONS {
                self.regions.push(candidate);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 0xffff_ea00_0100_0000;
    const BUFFER: u64 = 0x7f12_3400_0000;

    fn learned(pairs: u64) -> GuestMemory {
        let mut memory = GuestMemory::default();
        for i in 0..pairs {
            memory.learn(PAGE + 64 * i, BUFFER + 4096 * i);
        }
        memory
    }

    #[test]
    fn one_constant_tells_where_each_page_is() {
        let memory = learned(20);
        assert!(memory.is_learned());
        assert_eq!(memory.buffer_of(PAGE + 64 * 7), Some(BUFFER + 4096 * 7));
        // 512 bytes into the page.
        assert_eq!(memory.buffer_of(PAGE + 8), Some(BUFFER + 512));
        assert_eq!(learned(LEARNED - 1).buffer_of(PAGE), None);
    }

    #[test]
    fn a_wrong_pair_is_contradicted_and_a_copy_is_not() {
        let mut memory = learned(20);
        let mut check = |page, buffer| memory.check(page, buffer, 0);
        assert_eq!(check(PAGE + 64, BUFFER + 4096), Some(Agreement::Agreed));
        assert_eq!(
            check(PAGE + 64, BUFFER + 2 * 4096),
            Some(Agreement::Contradicted)
        );
        assert_eq!(check(PAGE + 64, 0x5555_0000_1000), Some(Agreement::Unknown));
        assert_eq!(check(PAGE + 64, 0), Some(Agreement::Unknown));
        assert_eq!(check(0, BUFFER), Some(Agreement::Unknown));
    }

    #[test]
    fn early_pairs_are_judged_once_a_constant_is_known() {
        let mut memory = GuestMemory::default();
        for i in 0..LEARNED {
            let told = memory.check(PAGE + 64 * i, BUFFER + 4096 * i, 3);
            assert_eq!(told, None);
        }
        assert_eq!(memory.early(false).len(), LEARNED as usize);
        assert_eq!(memory.early(true), []);
        let mut never = GuestMemory::default();
        assert_eq!(never.check(PAGE, BUFFER, 1), None);
        assert_eq!(never.early(false), []);
        assert_eq!(never.early(true), [(1, Agreement::Unknown)]);
    }

    #[test]
    fn memory_above_the_hole_has_a_constant_of_its_own() {
        let mut memory = learned(20);
        let (page, buffer) = (PAGE + (64 << 20), BUFFER + (3 << 30));
        for i in 0..20 {
            memory.learn(page + 64 * i, buffer + 4096 * i);
        }
        assert_eq!(memory.buffer_of(PAGE + 64), Some(BUFFER + 4096));
        assert_eq!(memory.buffer_of(page + 64), Some(buffer + 4096));
    }

    #[test]
    fn the_constant_of_more_pairs_is_right() {
        // Eight wrong ones first: each page lies elsewhere by one.
        let mut memory = GuestMemory::default();
        for i in 0..LEARNED {
            memory.learn(PAGE + 64 * i, BUFFER + 4096 * (i + 1));
        }
        for i in 0..20 {
            memory.learn(PAGE + 64 * i, BUFFER + 4096 * i);
        }
        assert_eq!(memory.buffer_of(PAGE), Some(BUFFER));
    }
}

//! A sample of where requests went.

use crate::model::operation::Operation;
use crate::result::analysis::Address;

/// Bytes of a sector in the kernel's terms.
const SECTOR: u64 = 512;
/// Requests that are kept: when there are more, every second is dropped, and of those to come, too.
const MOST: usize = 2048;

/// Keeps requests with equal probability, whenever they come. Which ones is decided by a hash of their
/// number: every n-th would single out one of several streams that take turns.
#[derive(Debug, Default)]
pub(crate) struct AddressSample {
    n: u64,
    /// A request is kept whose hash has these bits clear.
    mask: u64,
    kept: Vec<(u64, Address)>,
    touched: Option<(u64, u64)>,
}

impl AddressSample {
    #[inline]
    pub(super) fn io(&mut self, ts_ns: u64, operation: Operation, offset: u64, bytes: u64) {
        let sector = offset / SECTOR;
        let end = sector.saturating_add(bytes / SECTOR);
        let (first, last) = self.touched.get_or_insert((sector, end));
        *first = sector.min(*first);
        *last = end.max(*last);
        let hash = mixed(self.n);
        self.n += 1;
        if hash & self.mask == 0 {
            self.keep(
                hash,
                Address {
                    at_ns: ts_ns,
                    sector,
                    is_write: operation != Operation::Read,
                },
            );
        }
    }

    #[cold]
    fn keep(&mut self, hash: u64, address: Address) {
        self.kept.push((hash, address));
        if self.kept.len() > MOST {
            self.mask = self.mask << 1 | 1;
            let mask = self.mask;
            self.kept.retain(|(hash, _)| hash & mask == 0);
        }
    }

    pub(super) const fn n(&self) -> u64 {
        self.n
    }

    pub(super) const fn touched(&self) -> Option<(u64, u64)> {
        self.touched
    }

    pub(super) fn kept(&self, start_ns: u64) -> Vec<Address> {
        let since_start = |(_, address): &(u64, Address)| Address {
            at_ns: address.at_ns.saturating_sub(start_ns),
            ..*address
        };
        self.kept.iter().map(since_start).collect()
    }
}

/// Spreads successive numbers (the finalizer of splitmix64).
const fn mixed(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ n >> 31
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sample_is_bounded_and_fair_to_streams_and_times() {
        let mut sample = AddressSample::default();
        let n = 1_000_000;
        for i in 0..n {
            let offset = if i % 2 == 0 { 0 } else { 1 << 30 };
            sample.io(i, Operation::Write, offset, 4096);
        }
        let kept = sample.kept(0);
        assert_eq!(sample.n(), n);
        assert_eq!(sample.touched(), Some((0, (1 << 21) + 8)));
        assert!((900..=MOST).contains(&kept.len()), "{}", kept.len());
        let share = |of: &dyn Fn(&Address) -> bool| {
            kept.iter().filter(|address| of(address)).count() as f64 / kept.len() as f64
        };
        assert!((0.4..0.6).contains(&share(&|address| address.sector == 0)));
        assert!((0.4..0.6).contains(&share(&|address| address.at_ns < n / 2)));
        assert!(kept.is_sorted_by_key(|address| address.at_ns));
    }

    #[test]
    fn few_are_all_kept() {
        let mut sample = AddressSample::default();
        (0..100).for_each(|i| sample.io(1000 + i, Operation::Read, i * 4096, 4096));
        assert_eq!(sample.kept(1000).len(), 100);
        assert_eq!(sample.kept(1000)[3].sector, 24);
    }
}

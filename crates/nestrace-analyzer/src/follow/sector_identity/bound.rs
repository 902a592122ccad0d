//! A bound on what is in flight, as [`crate::follow::block`] has one: captures are not trusted.

use super::SectorIdentity;
use super::disk::Disk;

/// Bios and requests in flight on all disks together; of more, the oldest half is forgotten.
const MAX_IN_FLIGHT: usize = 1 << 16;
/// Events between two looks at that.
const LOOK_EVENTS: u64 = 1 << 14;

impl SectorIdentity {
    #[inline]
    pub(super) fn bound(&mut self) {
        self.events += 1;
        if self.events.is_multiple_of(LOOK_EVENTS) {
            self.forget_the_oldest();
        }
    }

    #[cold]
    fn forget_the_oldest(&mut self) {
        let weight: usize = self.disks.iter().map(Disk::n_in_flight).sum();
        if weight <= MAX_IN_FLIGHT {
            return;
        }
        let mut since: Vec<u64> = self.disks.iter().flat_map(Disk::begins).collect();
        if since.is_empty() {
            return;
        }
        let middle = since.len() / 2;
        let (_, middle_ns, _) = since.select_nth_unstable(middle);
        let middle_ns = *middle_ns;
        for disk in &mut self.disks {
            disk.keep(|since_ns| since_ns > middle_ns);
        }
    }
}

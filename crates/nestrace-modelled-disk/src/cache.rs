//! A hard disk's buffer: segments that were read, and extents that are written but not yet on the medium.

use std::collections::VecDeque;

use crate::request::DiskNs;

/// An extent takes in what follows it up to this many sectors: 1 MiB, about a track.
const MAX_EXTENT_SECTORS: u64 = 2048;

/// Segments that were read, the last used ones.
#[derive(Clone, Debug)]
pub struct ReadCache {
    /// First sector and the one after the last; the latest is in front.
    segments: VecDeque<(u64, u64)>,
    max_segments: usize,
    segment_sectors: u64,
}

impl ReadCache {
    /// An empty one.
    #[must_use]
    pub fn new(max_segments: usize, segment_sectors: u64) -> Self {
        Self {
            segments: VecDeque::new(),
            max_segments,
            segment_sectors,
        }
    }

    /// Keeps the end of what was read, as much as a segment holds.
    pub fn insert(&mut self, first: u64, end: u64) {
        let first = first.max(end.saturating_sub(self.segment_sectors));
        // A segment grows by what follows it.
        let grows = |&(from, to): &(u64, u64)| from <= first && first <= to && to <= end;
        let first = match self.segments.iter().position(grows) {
            Some(at) => self.segments.remove(at).map_or(first, |(from, _)| from),
            None => first,
        };
        let first = first.max(end.saturating_sub(self.segment_sectors));
        if first < end && self.max_segments > 0 {
            self.segments.push_front((first, end));
            self.segments.truncate(self.max_segments);
        }
    }

    /// Whether one segment holds all of this.
    #[must_use]
    pub fn holds(&self, first: u64, end: u64) -> bool {
        let mut segments = self.segments.iter();
        segments.any(|&(from, to)| from <= first && end <= to)
    }

    /// Drops what was overwritten.
    pub fn drop_overlapping(&mut self, first: u64, end: u64) {
        self.segments
            .retain(|&(from, to)| end <= from || to <= first);
    }
}

/// What is written and not yet on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// First sector.
    pub first: u64,
    /// The one after the last.
    pub end: u64,
    /// When its oldest data came.
    pub since: DiskNs,
}

impl Extent {
    fn sectors(&self) -> u64 {
        self.end - self.first
    }
}

/// Extents that wait for the medium.
#[derive(Clone, Debug)]
pub struct WriteCache {
    extents: Vec<Extent>,
    held_sectors: u64,
    capacity_sectors: u64,
    max_extents: usize,
}

impl WriteCache {
    /// An empty one; with no sectors, the disk has none.
    #[must_use]
    pub fn new(capacity_sectors: u64, max_extents: usize) -> Self {
        Self {
            extents: Vec::new(),
            held_sectors: 0,
            capacity_sectors,
            max_extents: max_extents.max(1),
        }
    }

    /// Whether the disk has one.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.capacity_sectors > 0
    }

    /// What waits.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Whether more than three quarters of it are in use: then reads do not go first any more.
    #[must_use]
    pub fn is_nearly_full(&self) -> bool {
        self.held_sectors * 4 > self.capacity_sectors * 3
            || self.extents.len() * 4 > self.max_extents * 3
    }

    /// Takes a write in, unless there is no room. A write larger than the whole cache finds room when it is empty.
    pub fn insert(&mut self, first: u64, end: u64, at: DiskNs) -> bool {
        let n = end - first;
        if let Some(same) = self
            .extents
            .iter()
            .position(|it| it.first <= first && end <= it.end)
        {
            // Written again before it was destaged.
            debug_assert!(self.extents[same].since <= at);
            return true;
        }
        if self.held_sectors > 0 && self.held_sectors + n > self.capacity_sectors {
            return false;
        }
        let follows = |it: &&mut Extent| it.end == first && it.sectors() + n <= MAX_EXTENT_SECTORS;
        if let Some(before) = self.extents.iter_mut().find(follows) {
            before.end = end;
            self.held_sectors += n;
            return true;
        }
        if self.extents.len() >= self.max_extents {
            return false;
        }
        self.extents.push(Extent {
            first,
            end,
            since: at,
        });
        self.held_sectors += n;
        true
    }

    /// Whether one extent holds all of this.
    #[must_use]
    pub fn holds(&self, first: u64, end: u64) -> bool {
        let mut extents = self.extents.iter();
        extents.any(|it| it.first <= first && end <= it.end)
    }

    /// Takes an extent out to be written; its room is free once [`WriteCache::is_written`].
    pub fn take(&mut self, number: usize) -> Option<Extent> {
        (number < self.extents.len()).then(|| self.extents.remove(number))
    }

    /// An extent that was taken is on the medium.
    pub fn is_written(&mut self, extent: &Extent) {
        self.held_sectors = self.held_sectors.saturating_sub(extent.sectors());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_keeps_the_end_and_the_oldest_goes() {
        let mut cache = ReadCache::new(2, 100);
        cache.insert(0, 300);
        assert!(cache.holds(200, 300) && !cache.holds(199, 300));
        cache.insert(1000, 1050);
        cache.insert(1050, 1080);
        assert!(cache.holds(1000, 1080) && cache.holds(250, 260));
        cache.insert(5000, 5001);
        assert!(!cache.holds(250, 260));
        cache.drop_overlapping(1010, 1011);
        assert!(!cache.holds(1020, 1021));
    }

    #[test]
    fn a_write_waits_for_room_and_a_sequence_is_one_extent() {
        let mut cache = WriteCache::new(100, 2);
        assert!(cache.insert(0, 10, DiskNs(0)) && cache.insert(10, 20, DiskNs(1)));
        assert_eq!(cache.extents().len(), 1);
        assert!(cache.insert(50, 60, DiskNs(2)));
        assert!(!cache.insert(90, 91, DiskNs(3)), "two extents are all");
        assert!(cache.insert(50, 60, DiskNs(3)), "it is written again");
        let extent = cache.take(0).unwrap();
        assert!(
            !cache.insert(200, 290, DiskNs(4)),
            "its room is not free yet"
        );
        cache.is_written(&extent);
        assert!(cache.insert(200, 290, DiskNs(5)));
        assert!(cache.holds(210, 220) && !cache.holds(0, 10));
    }
}

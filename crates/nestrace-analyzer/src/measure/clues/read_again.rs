//! Reads of QEMU that the host's page cache answers, of what was read before.

use super::ranges::Ranges;

/// Ranges remembered of a disk. What lies scattered over more is not remembered, and counted.
const MAX_RANGES: usize = 1 << 16;

/// What was counted of the images of a disk that are read through the page cache.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReadAgainCounts {
    /// Bytes read.
    pub bytes: u64,
    /// Of these, read before in this recording.
    pub again_bytes: u64,
    /// Of these, without any I/O of the host.
    pub again_cached_bytes: u64,
    /// Bytes of the images that were read, each counted once.
    pub distinct_bytes: u64,
    /// Bytes that found no room in the memory of what was read.
    pub given_up_bytes: u64,
}

/// What was read of a disk's images.
#[derive(Debug, Default)]
pub(super) struct ReadAgain {
    /// By image.
    images: Vec<(u32, Ranges)>,
    counts: ReadAgainCounts,
}

impl ReadAgain {
    /// A file I/O has read; `cached`: no bio was needed for it.
    pub(super) fn read(&mut self, image: u32, offset: u64, bytes: u64, cached: bool) {
        let known = self.images.iter().position(|(known, _)| *known == image);
        let at = known.unwrap_or_else(|| {
            self.images.push((image, Ranges::default()));
            self.images.len() - 1
        });
        let before = &mut self.images[at].1;
        let end = offset.saturating_add(bytes);
        let again = before.common(offset, end);
        self.counts.bytes += bytes;
        self.counts.again_bytes += again;
        if cached {
            self.counts.again_cached_bytes += again;
        }
        if !before.add(offset, end, MAX_RANGES) {
            self.counts.given_up_bytes += bytes - again;
        }
    }

    pub(super) fn finish(&self) -> ReadAgainCounts {
        let distinct = self.images.iter().map(|(_, ranges)| ranges.covered());
        ReadAgainCounts {
            distinct_bytes: distinct.sum(),
            ..self.counts
        }
    }
}

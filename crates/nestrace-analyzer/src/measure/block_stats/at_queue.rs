//! How many bios wait when another one is queued.

use crate::result::analysis::AtQueue;

/// Bios (and pieces of split ones) that were queued, and neither merged nor issued since.
#[derive(Debug, Default)]
pub(crate) struct AtQueueMeter {
    waiting: u64,
    n: u64,
    sum: u64,
    max: u64,
}

impl AtQueueMeter {
    /// Q, or R of a request: it comes to those that wait.
    #[inline]
    pub(crate) fn arrives(&mut self) {
        self.n += 1;
        self.sum += self.waiting;
        self.max = self.max.max(self.waiting);
        self.waiting += 1;
    }

    /// X: one more to issue, but nothing arrived.
    pub(crate) fn split(&mut self) {
        self.waiting += 1;
    }

    /// D, M, F, or the end of a bio that had no request.
    #[inline]
    pub(crate) fn leaves(&mut self) {
        self.waiting = self.waiting.saturating_sub(1);
    }

    /// What waits is not known any more.
    pub(crate) fn forget(&mut self) {
        self.waiting = 0;
    }

    pub(crate) fn finish(&self) -> AtQueue {
        AtQueue {
            n: self.n,
            mean: (self.n > 0).then(|| self.sum as f64 / self.n as f64),
            max: self.max,
        }
    }
}

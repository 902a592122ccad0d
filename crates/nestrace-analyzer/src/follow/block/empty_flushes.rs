//! Zero-length flushes on their way.

use std::collections::VecDeque;

/// A zero-length flush on its way.
#[derive(Clone, Copy, Debug)]
pub(super) struct EmptyFlush {
    pub generation: u32,
    pub queued_ns: u64,
    /// Its request was allocated: from then on the flush machinery has it. Until then Q.
    pub ready_ns: u64,
}

/// Zero-length flushes remembered for one device. More are not in flight: completions were lost. They are
/// looked through in their order, so a guest that makes them wait must not make that long.
const MAX_FLUSHES: usize = 1 << 12;

/// Zero-length flushes without an end yet, by device, in the order in which they came to the
/// flush machinery. Their request has no D. Its completion names the bio; where it does not
/// (blktrace's) the oldest is taken: count and mean are exact, single samples may be exchanged between flushes
/// that overlap on a device with several hardware queues.
#[derive(Debug, Default)]
pub(super) struct EmptyFlushes {
    by_device: Vec<VecDeque<EmptyFlush>>,
}

impl EmptyFlushes {
    /// Takes one at its Q.
    pub(super) fn queued(&mut self, device: u16, generation: u32, ts_ns: u64) {
        let place = usize::from(device);
        if self.by_device.len() <= place {
            self.by_device.resize_with(place + 1, VecDeque::new);
        }
        let waiting = &mut self.by_device[place];
        if waiting.len() == MAX_FLUSHES {
            waiting.pop_front();
        }
        waiting.push_back(EmptyFlush {
            generation,
            queued_ns: ts_ns,
            ready_ns: ts_ns,
        });
    }

    /// One has its request: its place is now behind those that had one before.
    #[inline(never)]
    pub(super) fn is_ready(&mut self, device: u16, generation: u32, ts_ns: u64) {
        let Some(waiting) = self.by_device.get_mut(usize::from(device)) else {
            return;
        };
        let its_own = |flush: &EmptyFlush| flush.generation == generation;
        if let Some(place) = waiting.iter().rposition(its_own)
            && let Some(mut flush) = waiting.remove(place)
        {
            flush.ready_ns = ts_ns;
            waiting.push_back(flush);
        }
    }

    /// Takes one out by the generation of its bio.
    pub(super) fn remove(&mut self, device: u16, generation: u32) -> Option<EmptyFlush> {
        let waiting = self.by_device.get_mut(usize::from(device))?;
        let place = waiting
            .iter()
            .position(|flush| flush.generation == generation)?;
        waiting.remove(place)
    }

    /// Whether one waits whose bio has this generation.
    pub(super) fn holds(&self, device: u16, generation: u32) -> bool {
        let mut waiting = self
            .by_device
            .get(usize::from(device))
            .into_iter()
            .flatten();
        waiting.any(|flush| flush.generation == generation)
    }

    /// Takes out the next one where a C names no bio (blktrace's do not): flushes without data end in the order in
    /// which they came to the flush machinery (`blk-flush.c` keeps them in a list), and only those that came before
    /// the D of the flush that serves them.
    pub(super) fn next(&mut self, device: u16, served_until_ns: Option<u64>) -> Option<EmptyFlush> {
        let waiting = self.by_device.get_mut(usize::from(device))?;
        let served = served_until_ns
            .and_then(|until_ns| waiting.iter().position(|flush| flush.ready_ns <= until_ns));
        waiting.remove(served.unwrap_or(0))
    }

    pub(super) fn is_empty(&self, device: u16) -> bool {
        let waiting = self.by_device.get(usize::from(device));
        waiting.is_none_or(VecDeque::is_empty)
    }

    /// Forgets those of a device; how many they were.
    pub(super) fn forget(&mut self, device: usize) -> usize {
        let waiting = self.by_device.get_mut(device);
        waiting.map_or(0, |waiting| waiting.drain(..).count())
    }

    pub(super) fn clear(&mut self) {
        self.by_device.iter_mut().for_each(VecDeque::clear);
    }

    pub(super) fn len(&self) -> usize {
        self.by_device.iter().map(VecDeque::len).sum()
    }

    pub(super) fn generations(&self) -> impl Iterator<Item = u32> + '_ {
        self.by_device
            .iter()
            .flatten()
            .map(|flush| flush.generation)
    }

    /// Keeps those with the generations that `is_kept`.
    pub(super) fn retain(&mut self, is_kept: impl Fn(u32) -> bool) {
        for waiting in &mut self.by_device {
            waiting.retain(|flush| is_kept(flush.generation));
        }
    }
}

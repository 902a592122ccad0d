//! What a workload will measure on a disk: the model in its own time, with requests that follow one another at once.

use crate::disk::Disk;
use crate::parameters::{Parameters, ParametersError};
use crate::request::{DiskNs, Operation, Request};
use crate::split_mix::SplitMix;

/// A workload as fio's: a number of requests is kept in flight.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Workload {
    /// Reads of a hundred requests.
    pub read_percent: u64,
    /// Whether places are random; else they follow one another.
    pub is_random: bool,
    /// Size of a request, bytes.
    pub block_bytes: u64,
    /// Requests in flight.
    pub depth: u64,
    /// Whether a flush follows each write.
    pub flushes: bool,
    /// Where on the disk: from this share of it.
    pub from: f64,
    /// To this share.
    pub to: f64,
    /// Seconds of the disk's time.
    pub seconds: f64,
}

impl Workload {
    /// Random reads of 4 KiB over the whole disk, one at a time, for ten seconds.
    #[must_use]
    pub fn random_reads() -> Self {
        Self {
            read_percent: 100,
            is_random: true,
            block_bytes: 4096,
            depth: 1,
            flushes: false,
            from: 0.0,
            to: 1.0,
            seconds: 10.0,
        }
    }

    /// Sequential reads of 1 MiB.
    #[must_use]
    pub fn sequential_reads() -> Self {
        Self {
            is_random: false,
            block_bytes: 1 << 20,
            ..Self::random_reads()
        }
    }

    /// Random writes of 4 KiB, each with a flush.
    #[must_use]
    pub fn synced_writes() -> Self {
        Self {
            read_percent: 0,
            flushes: true,
            ..Self::random_reads()
        }
    }
}

/// What it measures.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prediction {
    /// Requests a second, without flushes.
    pub per_second: f64,
    /// Bytes a second.
    pub bytes_per_s: f64,
    /// Mean time of a request, nanoseconds; a flush is part of its write's.
    pub mean_ns: f64,
}

/// Runs a workload on a new disk.
///
/// # Errors
/// No disk can have these parameters and this size.
pub fn predict(
    parameters: &Parameters,
    size_bytes: u64,
    seed: u64,
    workload: &Workload,
) -> Result<Prediction, ParametersError> {
    let mut disk = Disk::new(parameters, size_bytes, seed)?;
    let mut source = Source::new(workload, size_bytes, seed);
    let end = DiskNs((workload.seconds * 1e9) as u64);
    for slot in 0..workload.depth {
        disk.submit(DiskNs(0), source.request(slot));
    }
    let depth = usize::try_from(workload.depth).unwrap_or(usize::MAX);
    let mut begun = vec![DiskNs(0); depth];
    let (mut n, mut sum_ns) = (0u64, 0u128);
    let mut done = Vec::new();
    loop {
        let next = [disk.next_decision(), disk.next_completion()];
        let Some(at) = next.into_iter().flatten().min().filter(|at| *at <= end) else {
            break;
        };
        disk.advance(at, &mut done);
        for completion in done.drain(..) {
            let slot = completion.id % workload.depth;
            let was_flush = completion.id >= workload.depth;
            let was_write = source.was_write(slot);
            if was_write && workload.flushes && !was_flush {
                disk.submit(completion.at, flush(slot + workload.depth));
                continue;
            }
            n += 1;
            if let Some(begun) = begun.get_mut(slot as usize) {
                sum_ns += u128::from(completion.at.since(*begun));
                *begun = completion.at;
            }
            disk.submit(completion.at, source.request(slot));
        }
    }
    let seconds = workload.seconds.max(1e-9);
    Ok(Prediction {
        per_second: n as f64 / seconds,
        bytes_per_s: (n * workload.block_bytes) as f64 / seconds,
        mean_ns: sum_ns as f64 / n.max(1) as f64,
    })
}

fn flush(id: u64) -> Request {
    Request {
        id,
        operation: Operation::Flush,
        offset_bytes: 0,
        length_bytes: 0,
    }
}

/// Where requests come from.
struct Source<'w> {
    workload: &'w Workload,
    random: SplitMix,
    first_block: u64,
    n_blocks: u64,
    next: u64,
    /// Whether the last request of each slot was a write.
    writes: Vec<bool>,
}

impl<'w> Source<'w> {
    fn new(workload: &'w Workload, size_bytes: u64, seed: u64) -> Self {
        let blocks = size_bytes / workload.block_bytes.max(1);
        let block_at = |share: f64| ((blocks as f64 * share.clamp(0.0, 1.0)) as u64).min(blocks);
        let first_block = block_at(workload.from);
        Self {
            workload,
            random: SplitMix(seed ^ 0x5EED),
            first_block,
            n_blocks: (block_at(workload.to) - first_block.min(block_at(workload.to))).max(1),
            next: 0,
            writes: vec![false; usize::try_from(workload.depth).unwrap_or(0)],
        }
    }

    fn was_write(&self, slot: u64) -> bool {
        self.writes.get(slot as usize).copied().unwrap_or(false)
    }

    fn request(&mut self, slot: u64) -> Request {
        let number = if self.workload.is_random {
            self.random.below(self.n_blocks)
        } else {
            self.next
        };
        self.next = (self.next + 1) % self.n_blocks;
        let is_read = self.random.below(100) < self.workload.read_percent;
        if let Some(write) = self.writes.get_mut(slot as usize) {
            *write = !is_read;
        }
        Request {
            id: slot,
            operation: if is_read {
                Operation::Read
            } else {
                Operation::Write
            },
            offset_bytes: (self.first_block + number) * self.workload.block_bytes,
            length_bytes: self.workload.block_bytes,
        }
    }
}

//! How far a difference may be off, judged by how the recordings vary within themselves.
//!
//! The circular block bootstrap (Politis and Romano, "A circular block-resampling procedure for stationary
//! data", 1992): stretches of time are drawn with replacement, several neighbours at once, so that what one
//! stretch hands on to the next (a full queue, a write-back) stays together; the value is computed anew from
//! each draw. Neighbours are as many as n^(1/3), or what Carlstein (1986) gives for the correlation that is
//! seen between neighbours, whichever is more, and twice as many while blocks of them are still alike (as
//! Fishman's batch means, 1978). Both recordings are drawn independently. The interval lies
//! between percentiles of the draws, moved outwards for the number of blocks (Hesterberg, "What teachers
//! should know about the bootstrap", 2015: the expanded percentile interval), because few blocks show less
//! spread than there is.
//!
//! It holds what varies within a recording. What varies from one run to the next (where files were put,
//! what was cached before) is in no single recording.

use super::student;

/// Draws of each recording.
pub(super) const DRAWS: usize = 2_000;
/// Part of such intervals that hold the true difference.
pub(super) const CONFIDENCE: f64 = 0.95;
/// Where the numbers for the draws begin: the same recordings give the same intervals.
pub(super) const SEED: u64 = 0x6e65_7374_7261_6365;
/// Blocks of independent stretches without which nothing is said.
pub(super) const LEAST_BLOCKS: usize = 6;

/// One recording's stretches of time, as one value is computed from them.
pub(super) trait Stretches {
    /// How many there are.
    fn len(&self) -> usize;
    /// How many have something in them.
    fn filled(&self) -> usize;
    /// The value if each stretch is taken so many times; `None` where nothing is in them.
    fn value(&self, times: &[u32]) -> Option<f64>;
    /// How far each stretch draws the value upwards.
    fn pulls(&self) -> Vec<f64>;
}

/// Between which limits B − A and B ÷ A lie.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub difference: (f64, f64),
    /// `None` where A may be 0.
    pub ratio: Option<(f64, f64)>,
}

/// Why nothing can be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TooFew {
    /// Independent stretches, in the recording that has fewer.
    Blocks(usize),
    /// Stretches with something in them.
    Filled(usize),
    /// Enough of these, but side by side: too many draws have none of them.
    Close,
}

/// The spread of the difference between two recordings.
pub(super) fn spread(a: &dyn Stretches, b: &dyn Stretches) -> Result<Spread, TooFew> {
    let filled = a.filled().min(b.filled());
    if filled < LEAST_BLOCKS {
        return Err(TooFew::Filled(filled));
    }
    let (long_a, long_b) = (block_length(&a.pulls()), block_length(&b.pulls()));
    let blocks = (a.len() / long_a).min(b.len() / long_b);
    if blocks < LEAST_BLOCKS {
        return Err(TooFew::Blocks(blocks));
    }
    let pairs = draws(a, long_a, SEED)
        .into_iter()
        .zip(draws(b, long_b, !SEED));
    let pairs: Vec<(f64, f64)> = pairs.filter_map(|(a, b)| a.zip(b)).collect();
    if pairs.len() < DRAWS - DRAWS / 100 {
        return Err(TooFew::Close);
    }
    let tail = student::expanded_tail(1.0 - CONFIDENCE, blocks);
    let differences = pairs.iter().map(|(a, b)| b - a).collect();
    let ratios: Vec<f64> = pairs.iter().map(|(a, b)| b / a).collect();
    let known = ratios.iter().all(|ratio| ratio.is_finite());
    Ok(Spread {
        difference: between(differences, tail),
        ratio: known.then(|| between(ratios, tail)),
    })
}

/// What is left when this part is cut off at either end.
fn between(mut values: Vec<f64>, tail: f64) -> (f64, f64) {
    values.sort_unstable_by(f64::total_cmp);
    let cut = ((tail * (values.len() + 1) as f64).floor() as usize).clamp(1, values.len());
    (values[cut - 1], values[values.len() - cut])
}

/// The value of each draw.
fn draws(of: &dyn Stretches, block: usize, seed: u64) -> Vec<Option<f64>> {
    let n = of.len();
    let mut random = Random(seed);
    let mut times = vec![0u32; n];
    let mut draw = |_| {
        times.fill(0);
        let mut drawn = 0;
        while drawn < n {
            let from = random.below(n);
            let more = block.min(n - drawn);
            (from..from + more).for_each(|place| times[place % n] += 1);
            drawn += more;
        }
        of.value(&times)
    };
    (0..DRAWS).map(&mut draw).collect()
}

/// How many neighbours are drawn at once.
fn block_length(pulls: &[f64]) -> usize {
    let cube_root = (pulls.len() as f64).cbrt();
    let correlation = neighbours_alike(pulls).clamp(0.0, 0.99);
    let alike = 6f64.sqrt() * correlation / (1.0 - correlation * correlation);
    let length = cube_root * alike.powf(2.0 / 3.0).max(1.0);
    // A cube root of 64 must not become 4.0000000001.
    let mut length = ((length - 1e-9).ceil() as usize).clamp(1, pulls.len().max(1));
    // A slow drift hides behind what varies fast: blocks must not be alike either.
    loop {
        let blocks = pulls.chunks_exact(length);
        if blocks.len() < LEAST_BLOCKS {
            return length;
        }
        let sums: Vec<f64> = blocks.map(|block| block.iter().sum()).collect();
        // The standard error of the correlation of what is not alike.
        if neighbours_alike(&sums) < 1.0 / (sums.len() as f64).sqrt() {
            return length;
        }
        length *= 2;
    }
}

/// Correlation between neighbours.
fn neighbours_alike(pulls: &[f64]) -> f64 {
    let n = pulls.len() as f64;
    let mean = pulls.iter().sum::<f64>() / n;
    let own: f64 = pulls.iter().map(|pull| (pull - mean).powi(2)).sum();
    let next = pulls.windows(2).map(|it| (it[0] - mean) * (it[1] - mean));
    let correlation = next.sum::<f64>() / own;
    if correlation.is_finite() {
        correlation
    } else {
        0.0
    }
}

/// splitmix64 (Steele, Lea and Flood 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let n = self.0;
        let n = (n ^ n >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let n = (n ^ n >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        n ^ n >> 31
    }

    /// A number below `n`; its bias is less than `n` in 2^64.
    pub(super) fn below(&mut self, n: usize) -> usize {
        ((u128::from(self.next()) * n as u128) >> 64) as usize
    }
}

#[cfg(test)]
impl Random {
    /// Evenly spread in 0 … 1.
    pub(super) fn part(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// A sum over another: a mean, a rate, a share.
pub(super) struct Ratio {
    /// What is divided, and by what.
    pub stretches: Vec<(f64, f64)>,
}

impl Ratio {
    fn total(&self) -> (f64, f64) {
        let add = |sum: (f64, f64), it: &(f64, f64)| (sum.0 + it.0, sum.1 + it.1);
        self.stretches.iter().fold((0.0, 0.0), add)
    }

    /// Of all stretches.
    pub(super) fn whole(&self) -> Option<f64> {
        let (above, below) = self.total();
        (below > 0.0).then(|| above / below)
    }
}

impl Stretches for Ratio {
    fn len(&self) -> usize {
        self.stretches.len()
    }

    fn filled(&self) -> usize {
        self.stretches.iter().filter(|it| it.1 > 0.0).count()
    }

    fn value(&self, times: &[u32]) -> Option<f64> {
        let (mut above, mut below) = (0.0, 0.0);
        for (it, times) in self.stretches.iter().zip(times) {
            above += it.0 * f64::from(*times);
            below += it.1 * f64::from(*times);
        }
        (below > 0.0).then(|| above / below)
    }

    fn pulls(&self) -> Vec<f64> {
        let ratio = self.whole().unwrap_or(0.0);
        let pull = |it: &(f64, f64)| it.0 - ratio * it.1;
        self.stretches.iter().map(pull).collect()
    }
}

/// A quantile of what lies in buckets.
pub(super) struct Quantile {
    q: f64,
    /// Lower and upper limit of each bucket in which anything lies.
    buckets: Vec<(f64, f64)>,
    /// Samples by bucket, stretch by stretch.
    stretches: Vec<Vec<f64>>,
}

impl Quantile {
    /// `counts`: samples by bucket, a list for each stretch (empty where there are none). `limits`: of a
    /// bucket.
    pub(super) fn new(q: f64, counts: &[&[u64]], limits: impl Fn(usize) -> (f64, f64)) -> Self {
        let n_buckets = counts.iter().map(|counts| counts.len()).max().unwrap_or(0);
        let of = |counts: &[u64], bucket: usize| counts.get(bucket).copied().unwrap_or(0);
        let used: Vec<usize> = (0..n_buckets)
            .filter(|bucket| counts.iter().any(|counts| of(counts, *bucket) > 0))
            .collect();
        let stretch = |counts: &&[u64]| used.iter().map(|it| of(counts, *it) as f64).collect();
        Self {
            q,
            buckets: used.iter().map(|bucket| limits(*bucket)).collect(),
            stretches: counts.iter().map(stretch).collect(),
        }
    }

    /// Of all stretches.
    pub(super) fn whole(&self) -> Option<f64> {
        self.value(&vec![1; self.stretches.len()])
    }
}

impl Stretches for Quantile {
    fn len(&self) -> usize {
        self.stretches.len()
    }

    fn filled(&self) -> usize {
        let has_any = |counts: &&Vec<f64>| counts.iter().any(|n| *n > 0.0);
        self.stretches.iter().filter(has_any).count()
    }

    fn value(&self, times: &[u32]) -> Option<f64> {
        let mut sums = vec![0.0; self.buckets.len()];
        for (counts, times) in self.stretches.iter().zip(times).filter(|it| *it.1 > 0) {
            let times = f64::from(*times);
            let pairs = sums.iter_mut().zip(counts);
            pairs.for_each(|(sum, n)| *sum += n * times);
        }
        let rank = self.q * sums.iter().sum::<f64>();
        let mut below = 0.0;
        for (n, (from, to)) in sums.iter().zip(&self.buckets).filter(|it| *it.0 > 0.0) {
            if below + n >= rank {
                return Some(from + (to - from) * (rank - below) / n);
            }
            below += n;
        }
        None
    }

    fn pulls(&self) -> Vec<f64> {
        let limit = self.whole().unwrap_or(0.0);
        let pull = |counts: &Vec<f64>| {
            // The limit lies within a bucket: what is above it there counts too.
            let part = |(from, to): (f64, f64)| ((to - limit) / (to - from)).clamp(0.0, 1.0);
            let samples = counts.iter().zip(&self.buckets);
            let above: f64 = samples.map(|(n, bucket)| n * part(*bucket)).sum();
            above - (1.0 - self.q) * counts.iter().sum::<f64>()
        };
        self.stretches.iter().map(pull).collect()
    }
}

#[cfg(test)]
mod tests;

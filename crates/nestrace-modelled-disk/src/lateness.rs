//! How far a server of a modelled disk was from the model.

use serde::{Deserialize, Serialize};

/// Completions later than this count as late: the goal of every server, nanoseconds.
pub const GOAL_NS: u64 = 100_000;

const STEP_NS: u64 = 10_000;
const N_STEPS: usize = 1_000;

/// Counts how late completions were, in steps of 10 µs up to 10 ms. Memory is constant.
#[derive(Clone, Debug)]
pub struct Lateness {
    steps: Vec<u64>,
    beyond: u64,
    sum_ns: u128,
    max_ns: u64,
    late: u64,
}

/// What it counted; times are nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Report {
    /// Completions.
    pub n: u64,
    /// Those more than [`GOAL_NS`] after the model's.
    pub late: u64,
    /// How much later than the model's they were, on average.
    pub mean_ns: f64,
    /// Half of them; to 10 µs.
    pub p50_ns: u64,
    /// 99 of a hundred; to 10 µs.
    pub p99_ns: u64,
    /// The latest.
    pub max_ns: u64,
    /// Requests in flight now, those withheld too.
    pub in_flight: u64,
    /// What a small request's way to the disk and back takes; completions go out so much earlier.
    pub way_ns: u64,
    /// How long requests were in the program on average while the disk was not paced.
    pub unpaced_ns: f64,
}

impl Report {
    /// Whether the machine kept up: at most one completion in a hundred was late.
    #[must_use]
    pub fn kept_up(&self) -> bool {
        self.late * 100 <= self.n
    }
}

impl Default for Lateness {
    fn default() -> Self {
        Self {
            steps: vec![0; N_STEPS],
            beyond: 0,
            sum_ns: 0,
            max_ns: 0,
            late: 0,
        }
    }
}

impl Lateness {
    /// Counts a completion that was so much later than the model's.
    pub fn count(&mut self, late_ns: u64) {
        match usize::try_from(late_ns / STEP_NS) {
            Ok(step) if step < N_STEPS => self.steps[step] += 1,
            _ => self.beyond += 1,
        }
        self.sum_ns += u128::from(late_ns);
        self.max_ns = self.max_ns.max(late_ns);
        self.late += u64::from(late_ns > GOAL_NS);
    }

    /// What was counted.
    #[must_use]
    pub fn report(&self) -> Report {
        let n = self.steps.iter().sum::<u64>() + self.beyond;
        Report {
            n,
            late: self.late,
            mean_ns: self.sum_ns as f64 / n.max(1) as f64,
            p50_ns: self.quantile(n.div_ceil(2)),
            p99_ns: self.quantile((n * 99).div_ceil(100)),
            max_ns: self.max_ns,
            ..Report::default()
        }
    }

    /// The end of the step with the `rank`-th completion.
    fn quantile(&self, rank: u64) -> u64 {
        let mut seen = 0;
        for (step, n) in self.steps.iter().enumerate() {
            seen += n;
            if seen >= rank && rank > 0 {
                return ((step as u64 + 1) * STEP_NS).min(self.max_ns);
            }
        }
        self.max_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_true_to_a_step() {
        let mut lateness = Lateness::default();
        for ns in 0..1_000 {
            lateness.count(ns * 1_000);
        }
        lateness.count(50_000_000);
        let report = lateness.report();
        assert_eq!(
            (report.n, report.late, report.max_ns),
            (1_001, 900, 50_000_000)
        );
        assert_eq!((report.p50_ns, report.p99_ns), (510_000, 1_000_000));
        assert!(!report.kept_up());
        assert_eq!(Lateness::default().report().p50_ns, 0);
    }
}

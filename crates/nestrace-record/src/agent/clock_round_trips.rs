//! Round trips over the port: an estimate of the guest's clock that does not rest on I/O.

#![cfg_attr(not(test), deny(clippy::indexing_slicing))]

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use nestrace_trace::manifest::ClockSample;

/// Questions whose answer is waited for; older ones count as lost.
const MAX_OPEN: usize = 64;
/// Samples that are kept. When there are more, the time that one stands for doubles.
const MAX_SAMPLES: usize = 512;
/// Samples from before the time that a flight recorder keeps.
const OLDER_SAMPLES: usize = 10;
/// The fastest round trip of each such time is kept.
const FIRST_PERIOD_NS: u64 = 1_000_000_000;

/// Questions that were asked, and the fastest answers.
#[derive(Clone, Debug)]
pub struct RoundTrips {
    /// What makes a number a token that only who has heard it knows: SipHash with a key from the system's random
    /// numbers. An answer is believed where the guest's clock jumps.
    secret: RandomState,
    n_asked: u64,
    open: VecDeque<(u64, u64)>,
    samples: Vec<ClockSample>,
    period_ns: u64,
}

impl Default for RoundTrips {
    fn default() -> Self {
        Self {
            secret: RandomState::new(),
            n_asked: 0,
            open: VecDeque::new(),
            samples: Vec::new(),
            period_ns: FIRST_PERIOD_NS,
        }
    }
}

impl RoundTrips {
    /// A question is being sent; gives its token. Read the clock right before.
    pub fn ask(&mut self, host_ns: u64) -> u64 {
        let token = self.secret.hash_one(self.n_asked);
        self.n_asked += 1;
        if self.open.len() >= MAX_OPEN {
            self.open.pop_front();
        }
        self.open.push_back((token, host_ns));
        token
    }

    /// Whether a question of this token waits for its answer.
    #[must_use]
    pub fn is_open(&self, token: u64) -> bool {
        self.open.iter().any(|(open, _)| *open == token)
    }

    /// An answer has come; `false` if it was not asked for, or too long ago.
    pub fn answered(&mut self, token: u64, guest_ns: u64, host_received_ns: u64) -> bool {
        let Some(at) = self.open.iter().position(|(open, _)| *open == token) else {
            return false;
        };
        // Answers come in the order of their questions: those before it were lost.
        let Some((_, host_sent_ns)) = self.open.drain(..=at).next_back() else {
            return false;
        };
        self.keep(ClockSample {
            host_sent_ns,
            guest_ns,
            host_received_ns,
        });
        true
    }

    /// How many questions that were sent at this time of the host or later have no answer yet.
    #[must_use]
    pub fn n_open_since(&self, host_ns: u64) -> usize {
        let sent = self.open.iter().filter(|(_, sent_ns)| *sent_ns >= host_ns);
        sent.count()
    }

    /// The fastest round trip of each period, in the order of time.
    #[must_use]
    pub fn samples(&self) -> &[ClockSample] {
        &self.samples
    }

    /// Forgets the samples from before this time of the host, but for the last ones: the clock is to be known at the
    /// beginning of what is kept too.
    pub fn forget_before(&mut self, host_ns: u64) {
        let n = self
            .samples
            .partition_point(|sample| sample.host_sent_ns < host_ns);
        self.samples.drain(..n.saturating_sub(OLDER_SAMPLES));
    }

    /// Forgets the questions and starts a new list; gives the old one.
    pub fn take(&mut self) -> Vec<ClockSample> {
        self.open.clear();
        self.period_ns = FIRST_PERIOD_NS;
        std::mem::take(&mut self.samples)
    }

    fn keep(&mut self, sample: ClockSample) {
        let period = |s: &ClockSample| s.host_sent_ns / self.period_ns;
        match self.samples.last_mut() {
            Some(last) if period(last) == period(&sample) => *last = faster(*last, sample),
            _ => self.samples.push(sample),
        }
        if self.samples.len() > MAX_SAMPLES {
            self.period_ns = self.period_ns.saturating_mul(2);
            for sample in std::mem::take(&mut self.samples) {
                self.keep(sample);
            }
        }
    }
}

fn faster(a: ClockSample, b: ClockSample) -> ClockSample {
    let took = |s: &ClockSample| s.host_received_ns.saturating_sub(s.host_sent_ns);
    if took(&b) < took(&a) { b } else { a }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_of_each_second_is_kept() {
        let mut trips = RoundTrips::default();
        for (sent, took) in [(0, 90), (100, 30), (200, 50), (1_000_000_001, 70)] {
            let token = trips.ask(sent);
            assert!(trips.answered(token, sent + 5, sent + took));
            assert!(!trips.answered(token, 0, 0), "an answer counts once");
        }
        let kept: Vec<u64> = trips.samples().iter().map(|s| s.host_sent_ns).collect();
        assert_eq!(kept, [100, 1_000_000_001]);
    }

    #[test]
    fn answers_that_nobody_asked_for_do_not_count() {
        let mut trips = RoundTrips::default();
        assert!(!trips.answered(7, 1, 2));
        // A question does not reveal the next one, here or to another guest.
        let mut other = RoundTrips::default();
        let tokens: Vec<u64> = (0..8).flat_map(|n| [trips.ask(n), other.ask(n)]).collect();
        let near = |a: &u64, b: &u64| a.abs_diff(*b) < 1 << 32;
        for (n, token) in tokens.iter().enumerate() {
            let all_before = tokens.iter().take(n);
            assert!(*token > 1 << 32 && !all_before.into_iter().any(|t| near(t, token)));
        }
        let old = trips.ask(0);
        for n in 0..MAX_OPEN as u64 {
            trips.ask(n);
        }
        assert_eq!(trips.n_open_since(0), MAX_OPEN);
        assert_eq!(trips.n_open_since(MAX_OPEN as u64 - 3), 3);
        assert!(!trips.answered(old, 1, 2));
        assert!(trips.samples().is_empty());
    }

    #[test]
    fn a_day_stays_within_its_bound() {
        let mut trips = RoundTrips::default();
        for n in 0..86_400 * 4 {
            let sent = n * 250_000_000;
            let token = trips.ask(sent);
            assert!(trips.answered(token, sent, sent + 1000 + n % 7));
            assert!(trips.samples().len() <= MAX_SAMPLES + 1);
        }
        let samples = trips.samples();
        assert!(samples.len() > MAX_SAMPLES / 4);
        assert!(
            samples
                .iter()
                .all(|s| s.host_received_ns - s.host_sent_ns == 1000)
        );
        assert!(
            samples
                .windows(2)
                .all(|w| w[0].host_sent_ns < w[1].host_sent_ns)
        );
    }
}

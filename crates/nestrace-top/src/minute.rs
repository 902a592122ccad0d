//! What one disk did in each second of the last minute.

use std::collections::VecDeque;

use nestrace_sums::interval::latency;
use nestrace_sums::rows::{Layer, Row};
use nestrace_sums::snapshot::LayerSums;
use nestrace_sums::text::Statistic;

/// Seconds that are kept.
pub const SECONDS: u64 = 60;
const NS: u64 = 1_000_000_000;

/// A value for each second up to the last one, the newest last; those without an interval in them are missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Minute {
    seconds: VecDeque<Second>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Second {
    /// Of Unix time.
    at: u64,
    n_intervals: u32,
    /// The sum of the intervals' rates.
    requests: f64,
    /// Requests with a latency, and its sum.
    n: u64,
    sum_ns: u64,
    p99_ns: u64,
}

impl Minute {
    /// Takes an interval that ended at `at_unix_ns`. A clock that was set back begins a new minute.
    pub fn add(&mut self, at_unix_ns: u64, interval_ns: u64, row: &Row) {
        if interval_ns == 0 {
            return;
        }
        let end = at_unix_ns / NS;
        if self.seconds.back().is_some_and(|last| last.at > end) {
            self.seconds.clear();
        }
        let sums = outermost(row).and_then(|layer| layer_of(row, layer));
        let p99_ns = sums.and_then(|sums| latency(sums).p99).unwrap_or(0);
        let begin = at_unix_ns.saturating_sub(interval_ns) / NS + 1;
        for at in begin.clamp(end.saturating_sub(SECONDS - 1), end)..=end {
            if self.seconds.back().is_none_or(|last| last.at < at) {
                let second = Second {
                    at,
                    ..Second::default()
                };
                self.seconds.push_back(second);
            }
            // An interval may begin in a second that has one already.
            let second = self.seconds.iter_mut().rev().find(|second| second.at == at);
            let Some(second) = second else { continue };
            second.n_intervals += 1;
            second.requests += row.reads + row.writes + row.flushes;
            second.n += sums.map_or(0, |sums| sums.n);
            second.sum_ns += sums.map_or(0, |sums| sums.sum_ns);
            second.p99_ns = second.p99_ns.max(p99_ns);
        }
        let oldest = end.saturating_sub(SECONDS - 1);
        while self.seconds.front().is_some_and(|first| first.at < oldest) {
            self.seconds.pop_front();
        }
    }

    /// Requests a second.
    #[must_use]
    pub fn requests(&self) -> Vec<f64> {
        self.values(|second| second.requests / f64::from(second.n_intervals.max(1)))
    }

    /// Latencies of the outermost layer in nanoseconds; 0 where no request ended.
    #[must_use]
    pub fn latencies(&self, statistic: Statistic) -> Vec<f64> {
        // Nanoseconds of a century need no more than 53 bits.
        #[expect(clippy::cast_precision_loss)]
        self.values(|second| match statistic {
            Statistic::Mean => second.sum_ns as f64 / second.n.max(1) as f64,
            Statistic::P99 => second.p99_ns as f64,
        })
    }

    fn values(&self, of: impl Fn(&Second) -> f64) -> Vec<f64> {
        let Some(last) = self.seconds.back() else {
            return Vec::new();
        };
        let mut values = vec![0.0; usize::try_from(SECONDS).unwrap_or_default()];
        for second in &self.seconds {
            let place = (SECONDS - 1).checked_sub(last.at - second.at);
            let place = place.and_then(|place| usize::try_from(place).ok());
            if let Some(value) = place.and_then(|place| values.get_mut(place)) {
                *value = of(second);
            }
        }
        values
    }
}

/// The histograms of one disk over the last minute, a sum for each second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Histograms {
    seconds: VecDeque<(u64, [Option<LayerSums>; 5])>,
    covered_ns: u64,
}

impl Histograms {
    /// Takes an interval that ended at `at_unix_ns`.
    pub fn add(&mut self, at_unix_ns: u64, interval_ns: u64, row: &Row) {
        let at = at_unix_ns / NS;
        if self.seconds.back().is_some_and(|(last, _)| *last > at) {
            *self = Self::default();
        }
        match self.seconds.back_mut() {
            Some((last, sums)) if *last == at => {
                for (sum, new) in sums.iter_mut().zip(&row.layers) {
                    if let Some(new) = new {
                        sum.get_or_insert_default().add(new);
                    }
                }
            }
            _ => self.seconds.push_back((at, row.layers.clone())),
        }
        self.covered_ns = (self.covered_ns + interval_ns).min(SECONDS * NS);
        let oldest = at.saturating_sub(SECONDS - 1);
        while self
            .seconds
            .front()
            .is_some_and(|(first, _)| *first < oldest)
        {
            self.seconds.pop_front();
        }
    }

    /// The sum of all seconds; `None`: not recorded.
    #[must_use]
    pub fn sum(&self, layer: Layer) -> Option<LayerSums> {
        let mut sum: Option<LayerSums> = None;
        for (_, layers) in &self.seconds {
            if let Some(new) = layers.get(layer as usize).and_then(Option::as_ref) {
                sum.get_or_insert_default().add(new);
            }
        }
        sum
    }

    /// The time that they are of, in seconds.
    #[must_use]
    pub fn covered_s(&self) -> u64 {
        (self.covered_ns + NS / 2) / NS
    }
}

/// The outermost layer that is recorded.
#[must_use]
pub fn outermost(row: &Row) -> Option<Layer> {
    let mut all = Layer::ALL.into_iter();
    all.find(|layer| layer_of(row, *layer).is_some())
}

fn layer_of(row: &Row, layer: Layer) -> Option<&LayerSums> {
    row.layers.get(layer as usize)?.as_ref()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(reads: f64, n: u64, ns: u64) -> Row {
        let sums = LayerSums {
            n,
            sum_ns: n * ns,
            max_ns: Some(ns),
            buckets: vec![n],
        };
        Row {
            reads,
            layers: [None, Some(sums), None, None, None],
            ..Row::default()
        }
    }

    #[test]
    fn a_second_has_all_its_intervals() {
        let mut minute = Minute::default();
        minute.add(100 * NS, NS, &row(10.0, 10, 1000));
        for tenths in 1..=10 {
            minute.add(100 * NS + tenths * NS / 10, NS / 10, &row(30.0, 3, 2000));
        }
        let requests = minute.requests();
        assert_eq!(requests.len(), 60);
        // The last tenth ends as the next second begins.
        assert_eq!(requests[58..], [28.0, 30.0]);
        assert_eq!(minute.latencies(Statistic::Mean)[59], 2000.0);
        assert_eq!(minute.latencies(Statistic::Mean)[0], 0.0);
    }

    #[test]
    fn an_interval_of_many_seconds_is_in_each() {
        let mut minute = Minute::default();
        minute.add(1000 * NS, 3 * NS, &row(5.0, 15, 1000));
        assert_eq!(minute.requests()[56..], [0.0, 5.0, 5.0, 5.0]);
        minute.add(4600 * NS, 3600 * NS, &row(7.0, 15, 1000));
        assert_eq!(minute.requests(), vec![7.0; 60]);
        // Set back.
        minute.add(50 * NS, NS, &row(1.0, 1, 1000));
        assert_eq!(minute.requests()[58..], [0.0, 1.0]);
    }

    #[test]
    fn histograms_are_those_of_a_minute() {
        let mut histograms = Histograms::default();
        for at in 1..=100 {
            histograms.add(at * NS, NS, &row(1.0, 2, 1000));
            histograms.add(at * NS + NS / 2, NS / 2, &row(1.0, 1, 1000));
        }
        let sum = histograms.sum(Layer::Qemu).unwrap();
        assert_eq!((sum.n, &sum.buckets), (180, &vec![180]));
        assert_eq!(histograms.sum(Layer::Device), None);
        assert_eq!(histograms.covered_s(), 60);
    }
}

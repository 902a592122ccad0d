//! One value in both recordings, with what its spread allows to be said.

use crate::result::compared::{IoOperation, MetricLayer, Unit};
use crate::result::latencies::bucket_limits;
use crate::result::sums::Times;
use crate::result::units::of;

use super::bootstrap::{LEAST_BLOCKS, Quantile, Ratio, Spread, TooFew, spread};
use super::comparison::{Both, Interval, Metric, Verdict};

/// Samples without which a mean says nothing.
const LEAST_SAMPLES: u64 = 20;
/// Samples that must lie above a percentile.
const LEAST_ABOVE: f64 = 5.0;
/// Percentiles over time are known to this part of their value: a bucket's half.
const RESOLUTION: f64 = 1.0 / 32.0;

/// What a value is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Key {
    pub layer: MetricLayer,
    pub operation: Option<IoOperation>,
    pub name: &'static str,
    pub unit: Unit,
}

impl Key {
    /// A value without a spread, because of `why`.
    pub(super) fn unjudged(self, values: Both<Option<f64>>, n: Both<u64>, why: &str) -> Metric {
        let pair = values.a.zip(values.b);
        let why = match (values.a, values.b) {
            (None, None) => "neither recording has it",
            (None, Some(_)) => "A does not have it",
            (Some(_), None) => "B does not have it",
            _ => why,
        };
        Metric {
            layer: self.layer,
            operation: self.operation,
            name: self.name,
            unit: self.unit,
            a: values.a,
            b: values.b,
            difference: pair.map(|(a, b)| b - a),
            ratio: pair.filter(|(a, _)| *a != 0.0).map(|(a, b)| b / a),
            interval: None,
            n,
            verdict: Verdict::NotJudged,
            why: Some(why.to_owned()),
        }
    }

    /// A mean, a rate or a share. `least` samples must be there.
    fn judged(
        self,
        values: Both<Option<f64>>,
        n: Both<u64>,
        least: u64,
        spread: impl FnOnce(f64, f64) -> Result<Spread, TooFew>,
    ) -> Metric {
        let metric = self.unjudged(values, n, "");
        let Some((a, b)) = values.a.zip(values.b) else {
            return metric;
        };
        let few = n.a.min(n.b);
        if few < least {
            let verb = if few == 1 { "is" } else { "are" };
            let there = of(few, "sample", "samples");
            let why = format!("there {verb} {there}, and {least} are needed");
            return metric.without(why);
        }
        match spread(a, b) {
            Ok(spread) => metric.with(&spread),
            Err(TooFew::Blocks(n)) => metric.without(format!(
                "it varies slowly: there are {n} independent stretches of time, and {LEAST_BLOCKS} are needed"
            )),
            Err(TooFew::Filled(n)) => metric.without(format!(
                "it occurs in {n} stretches of time, and {LEAST_BLOCKS} are needed"
            )),
            Err(TooFew::Close) => metric.without(String::from(
                "it occurs only in stretches of time that are too close together",
            )),
        }
    }

    /// The mean that `series` has, or a rate; `values` are those of the whole recordings.
    pub(super) fn ratio(
        self,
        values: Both<Option<f64>>,
        n: Both<u64>,
        series: &Both<Ratio>,
    ) -> Metric {
        self.judged(values, n, LEAST_SAMPLES, |_, _| {
            spread(&series.a, &series.b)
        })
    }

    /// A percentile.
    pub(super) fn quantile(
        self,
        q: f64,
        values: Both<Option<f64>>,
        n: Both<u64>,
        series: &Both<Vec<&Times>>,
    ) -> Metric {
        let least = (LEAST_ABOVE / (1.0 - q)).ceil() as u64;
        self.judged(values, n, least.max(LEAST_SAMPLES), |a, b| {
            let of = |times: &[&Times]| {
                let counts: Vec<&[u64]> = times.iter().map(|it| it.latencies.counts()).collect();
                Quantile::new(q, &counts, bucket_limits)
            };
            let (coarse_a, coarse_b) = (of(&series.a), of(&series.b));
            let spread = spread(&coarse_a, &coarse_b)?;
            let coarse = coarse_a.whole().zip(coarse_b.whole());
            Ok(coarse.map_or(spread, |coarse| around(&spread, (a, b), coarse)))
        })
    }
}

/// The spread of coarse percentiles, moved to where the exact ones are and wider by what is not known.
fn around(spread: &Spread, (a, b): (f64, f64), (coarse_a, coarse_b): (f64, f64)) -> Spread {
    let by = (b - a) - (coarse_b - coarse_a);
    let slack = a.max(b) * RESOLUTION;
    let (low, high) = spread.difference;
    let factor = (b / a) / (coarse_b / coarse_a);
    let ratio = spread.ratio.filter(|_| factor.is_finite());
    Spread {
        difference: (low + by - slack, high + by + slack),
        ratio: ratio.map(|(low, high)| {
            let (down, up) = (1.0 - RESOLUTION, 1.0 + RESOLUTION);
            (low * factor * down, high * factor * up)
        }),
    }
}

impl Metric {
    fn without(mut self, why: String) -> Self {
        self.verdict = Verdict::NotEnough;
        self.why = Some(why);
        self
    }

    fn with(mut self, spread: &Spread) -> Self {
        let (low, high) = spread.difference;
        self.interval = Some(Interval {
            difference: [low, high],
            ratio: spread.ratio.map(|(low, high)| [low, high]),
        });
        self.why = None;
        self.verdict = match self.difference {
            Some(difference) if difference > 0.0 && low > 0.0 => Verdict::Higher,
            Some(difference) if difference < 0.0 && high < 0.0 => Verdict::Lower,
            _ => Verdict::NoDifference,
        };
        self
    }
}

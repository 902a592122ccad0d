//! A distribution as a curve of few points.

/// How many samples are at or below a value, for values in ascending order. The last point holds all.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cdf {
    /// Samples.
    pub n: u64,
    /// Value, and samples at or below it.
    pub points: Vec<(u64, u64)>,
}

impl Cdf {
    /// Share of samples at or below each value.
    pub fn shares(&self) -> impl Iterator<Item = (u64, f64)> + '_ {
        let n = self.n.max(1) as f64;
        let share = move |(value, below): &(u64, u64)| (*value, *below as f64 / n);
        self.points.iter().map(share)
    }

    /// The curve of both together: each keeps its steps, so that it is as exact as they are.
    #[must_use]
    pub fn merged(&self, other: &Self) -> Self {
        let mut values: Vec<u64> = [self, other]
            .iter()
            .flat_map(|cdf| cdf.points.iter().map(|(value, _)| *value))
            .collect();
        values.sort_unstable();
        values.dedup();
        let below = |cdf: &Self, value: u64| {
            let place = cdf.points.partition_point(|(known, _)| *known <= value);
            place.checked_sub(1).map_or(0, |place| cdf.points[place].1)
        };
        let point = |value: u64| (value, below(self, value) + below(other, value));
        Self {
            n: self.n + other.n,
            points: values.into_iter().map(point).collect(),
        }
    }
}

//! Several values of one thing: the one in the middle, and how far they lie apart.

use serde::{Deserialize, Serialize};

/// Median and limits of repetitions.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Spread {
    /// How many values.
    pub n: usize,
    /// The least.
    pub min: f64,
    /// The one in the middle, or the mean of the two there.
    pub median: f64,
    /// The greatest.
    pub max: f64,
}

/// With fewer repetitions nothing is known of the spread.
pub const FEWEST_REPETITIONS: usize = 2;

impl Spread {
    /// Of values in any order; `None` without any that is a number.
    #[must_use]
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut values: Vec<f64> = values
            .into_iter()
            .filter(|value| value.is_finite())
            .collect();
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let n = values.len();
        let median = (values.get(n / 2)? + values.get((n - 1) / 2)?) / 2.0;
        Some(Self {
            n,
            min,
            median,
            max,
        })
    }

    /// All values as parts of `whole`; `None` where that is no number to divide by.
    #[must_use]
    pub fn relative_to(&self, whole: f64) -> Option<Self> {
        (whole.is_finite() && whole > 0.0).then(|| Self {
            n: self.n,
            min: self.min / whole,
            median: self.median / whole,
            max: self.max / whole,
        })
    }

    /// Whether both were repeated and their values do not overlap. Only then is a difference
    /// reported.
    #[must_use]
    pub fn is_apart_from(&self, other: &Self) -> bool {
        let repeated = self.n >= FEWEST_REPETITIONS && other.n >= FEWEST_REPETITIONS;
        repeated && (self.max < other.min || other.max < self.min)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_and_the_limits() {
        let spread = Spread::of([3.0, 1.0, f64::NAN, 2.0]).unwrap();
        assert_eq!(
            (spread.n, spread.min, spread.median, spread.max),
            (3, 1.0, 2.0, 3.0)
        );
        assert_eq!(Spread::of([1.0, 4.0]).unwrap().median, 2.5);
        assert_eq!(Spread::of([]), None);
        assert_eq!(spread.relative_to(2.0).unwrap().max, 1.5);
        assert_eq!(spread.relative_to(0.0), None);
    }

    #[test]
    fn a_difference_needs_repetitions_that_do_not_mix() {
        let of = |values: &[f64]| Spread::of(values.iter().copied()).unwrap();
        assert!(of(&[1.0, 2.0]).is_apart_from(&of(&[3.0, 4.0])));
        assert!(of(&[3.0, 4.0]).is_apart_from(&of(&[1.0, 2.0])));
        assert!(!of(&[1.0, 3.0]).is_apart_from(&of(&[2.0, 4.0])));
        assert!(!of(&[1.0]).is_apart_from(&of(&[3.0, 4.0])));
    }
}

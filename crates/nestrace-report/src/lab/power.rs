//! What the report's test of differences ([`Spread::is_apart_from`](super::Spread::is_apart_from)) can show, before
//! anything is run.
//!
//! Values of a cell are taken as normal, with a standard deviation that is a share of their mean.

use nestrace_analyzer::compare::normal_below;

use super::chance;
use super::spread::FEWEST_REPETITIONS;

/// A difference that is shown so often counts as one that can be shown.
pub const POWER: f64 = 0.8;

/// How often two cells that differ in nothing are called different: all values of one are above all of the other.
#[must_use]
pub fn false_alarm(repetitions: u32) -> f64 {
    if (repetitions as usize) < FEWEST_REPETITIONS {
        return 0.0;
    }
    chance::apart(repetitions as usize, repetitions as usize)
}

/// The smallest difference of two means, as a share of the first, that is shown with [`POWER`]; `None` where no difference
/// is ever shown.
#[must_use]
pub fn smallest_difference(repetitions: u32, deviation: f64) -> Option<f64> {
    if (repetitions as usize) < FEWEST_REPETITIONS {
        return None;
    }
    let (mut low, mut high) = (0.0, 40.0);
    for _ in 0..40 {
        let middle = (low + high) / 2.0;
        if apart(repetitions, middle) < POWER {
            low = middle;
        } else {
            high = middle;
        }
    }
    Some(high * deviation)
}

/// How often all values of one cell are below all of another, with a mean that is so many standard deviations higher.
fn apart(repetitions: u32, deviations: f64) -> f64 {
    const STEP: f64 = 0.02;
    const LIMIT: f64 = 8.0;
    let n = repetitions as i32;
    let mut sum = 0.0;
    let mut x = -LIMIT;
    // The greatest value of the lower cell is x.
    while x < LIMIT {
        let density = (-x * x / 2.0).exp() / std::f64::consts::TAU.sqrt();
        let greatest = f64::from(n) * density * normal_below(x).powi(n - 1);
        sum += greatest * (1.0 - normal_below(x - deviations)).powi(n) * STEP;
        x += STEP;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::super::Spread;
    use super::*;

    /// splitmix64 (Steele, Lea and Flood 2014), as a share of 1.
    fn share(state: &mut u64) -> f64 {
        *state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = *state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Values of a cell: Box and Muller 1958.
    fn cell(state: &mut u64, n: u32, mean: f64, deviation: f64) -> Spread {
        let mut value = |_| {
            let (a, b) = (1.0 - share(state), share(state));
            mean + deviation * (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
        };
        Spread::of((0..n).map(&mut value).collect::<Vec<_>>()).unwrap()
    }

    /// How often the report's own test calls two cells different.
    fn called_different(n: u32, difference: f64) -> f64 {
        let mut state = 7;
        let trials = 20_000;
        let different = (0..trials).filter(|_| {
            let first = cell(&mut state, n, 1.0, 0.04);
            let second = cell(&mut state, n, 1.0 + difference, 0.04);
            first.is_apart_from(&second)
        });
        different.count() as f64 / f64::from(trials)
    }

    #[test]
    fn two_equal_cells_are_called_different_as_often_as_is_said() {
        for n in [2, 3, 4, 5] {
            let (said, found) = (false_alarm(n), called_different(n, 0.0));
            assert!((said - found).abs() < 0.01, "{n}: {said} {found}");
        }
        assert!(false_alarm(3) > 0.05 && false_alarm(4) < 0.05);
        assert_eq!(false_alarm(1), 0.0);
    }

    #[test]
    fn the_smallest_difference_is_shown_as_often_as_is_said() {
        for n in [2, 3, 4, 6] {
            let difference = smallest_difference(n, 0.04).unwrap();
            let found = called_different(n, difference);
            assert!((found - POWER).abs() < 0.02, "{n}: {difference} {found}");
        }
        assert_eq!(smallest_difference(1, 0.04), None);
    }
}

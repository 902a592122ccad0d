//! Student's t, as far as intervals need it.

/// The part that is cut off at each end of `blocks` blocks' draws, so that `outside` of the intervals miss
/// what is true (Hesterberg 2015, section 5.3: Φ(−√(n ÷ (n − 1)) t)).
pub(super) fn expanded_tail(outside: f64, blocks: usize) -> f64 {
    let n = blocks.max(2) as f64;
    normal_below(-(n / (n - 1.0)).sqrt() * t(1.0 - outside / 2.0, n - 1.0))
}

/// Quantile of t, by its expansion around the normal one (Abramowitz and Stegun 26.7.5): within 1 % from 4
/// degrees of freedom on.
fn t(p: f64, degrees: f64) -> f64 {
    let z = quantile(p);
    let z3 = z.powi(3);
    let (z5, z7) = (z.powi(5), z.powi(7));
    z + (z3 + z) / (4.0 * degrees)
        + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * degrees.powi(2))
        + (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * degrees.powi(3))
}

/// Part of the standard normal distribution below `z` (Abramowitz and Stegun 1964, 26.2.17), within 1e-7.
#[must_use]
pub fn normal_below(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let terms = [
        0.319_381_530,
        -0.356_563_782,
        1.781_477_937,
        -1.821_255_978,
        1.330_274_429,
    ];
    let sum = terms.iter().rev().fold(0.0, |sum, term| (sum + term) * t);
    let above = (-z * z / 2.0).exp() / std::f64::consts::TAU.sqrt() * sum;
    if z > 0.0 { 1.0 - above } else { above }
}

/// Where this part of the standard normal distribution lies below, by halving.
fn quantile(p: f64) -> f64 {
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..80 {
        let middle = (low + high) / 2.0;
        if normal_below(middle) < p {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_of_the_tables() {
        assert!((quantile(0.975) - 1.959_964).abs() < 1e-4);
        for (degrees, expected) in [(7.0, 2.3646), (15.0, 2.1314), (63.0, 1.9983)] {
            let value = t(0.975, degrees);
            assert!((value / expected - 1.0).abs() < 2e-3, "{degrees}: {value}");
        }
        assert!((expanded_tail(0.05, 1_000_000) - 0.025).abs() < 1e-5);
        // Eight blocks: Φ(−√(8/7) · 2.3646).
        assert!((expanded_tail(0.05, 8) - 0.005_74).abs() < 1e-4);
    }
}

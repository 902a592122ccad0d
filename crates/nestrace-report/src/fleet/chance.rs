//! How many of the differences between many disks chance alone makes.

use nestrace_analyzer::compare::normal_below;

/// Outliers are reported if chance makes at most this part of them.
pub const FALSE_DISCOVERIES: f64 = 0.05;
/// Differences below this factor are not worth a look, however certain they are.
pub const LEAST_RATIO: f64 = 1.5;
/// What a median distance is worth beside a standard deviation: its variance is that of 0.37 times as many values.
const EFFICIENCY: f64 = 0.37;

/// How likely a distance of `z` robust standard deviations or more is, where all `peers` are equal: the spread is an
/// estimate from these, so the tail is that of Student's t.
#[must_use]
pub fn tail(z: f64, peers: u64) -> f64 {
    if !z.is_finite() {
        return 1.0;
    }
    let degrees = (EFFICIENCY * (peers.max(2) - 1) as f64).max(1.0);
    // Wallace's approximation of t by the normal distribution (1959): with few degrees its tail is too large (by a tenth
    // with three), never too small.
    let scale = (8.0 * degrees + 1.0) / (8.0 * degrees + 3.0);
    let root = (degrees * (1.0 + z * z / degrees).ln()).sqrt();
    normal_below(-(scale * root).copysign(z))
}

/// Benjamini and Hochberg's q of each of these probabilities, which are the smallest of `compared` ones: the part of those
/// up to it that chance makes.
#[must_use]
pub fn false_discoveries(tails: &[f64], compared: u64) -> Vec<f64> {
    let mut order: Vec<usize> = (0..tails.len()).collect();
    order.sort_by(|a, b| tails[*a].total_cmp(&tails[*b]));
    let mut q = vec![1.0; tails.len()];
    let mut least: f64 = 1.0;
    for (rank, place) in order.into_iter().enumerate().rev() {
        least = least.min(tails[place] * compared as f64 / (rank + 1) as f64);
        q[place] = least;
    }
    q
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_are_those_of_the_tables() {
        // Of Student's t: 10 degrees of freedom have 2.228 at 2.5 %, 3 have 5.841 at 0.5 %.
        let peers = |degrees: f64| (degrees / EFFICIENCY).round() as u64 + 1;
        for (degrees, z, expected) in [
            (10.0, 2.228, 0.025),
            (3.0, 5.841, 0.005),
            (1e6, 1.96, 0.025),
        ] {
            let p = tail(z, peers(degrees));
            assert!((p / expected - 1.0).abs() < 0.15, "{degrees}: {p}");
        }
        assert!((tail(0.0, 100) - 0.5).abs() < 1e-6);
        assert!(tail(-3.0, 100) > 0.99);
        assert!((tail(f64::NAN, 100) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn the_published_example_is_met() {
        // Benjamini and Hochberg 1995, section 3.2: of 15 hypotheses, four are rejected at 0.05.
        let p = [
            0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
            0.5719, 0.6528, 0.7590, 1.0,
        ];
        let q = false_discoveries(&p, 15);
        assert_eq!(q.iter().filter(|q| **q <= 0.05).count(), 4);
        // The smallest ones alone have the same.
        let few = false_discoveries(&p[..6], 15);
        assert!(
            few.iter()
                .zip(&q)
                .take(4)
                .all(|(a, b)| (a - b).abs() < 1e-12)
        );
    }

    /// Many equal disks: in most fleets nothing is reported.
    #[test]
    fn equal_disks_are_no_outliers() {
        let mut state = 7_u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let mut normal = move || {
            let (a, b): (f64, f64) = (uniform().max(1e-12), uniform());
            (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
        };
        let middle = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            let n = values.len();
            (values[(n - 1) / 2] + values[n / 2]) / 2.0
        };
        for (peers, planted) in [(8, 0), (40, 0), (1_000, 0), (40, 2), (1_000, 20)] {
            let mut wrong = 0;
            let mut found = 0;
            for _ in 0..100 {
                let values: Vec<f64> = (0..peers)
                    .map(|place| normal() + if place < planted { 12.0 } else { 0.0 })
                    .collect();
                let median = middle(values.clone());
                let sigma = 1.4826 * middle(values.iter().map(|v| (v - median).abs()).collect());
                let tails: Vec<f64> = values
                    .iter()
                    .map(|v| tail((v - median) / sigma, peers as u64))
                    .collect();
                let q = false_discoveries(&tails, peers as u64);
                let reported = |from: usize, to: usize| {
                    q[from..to]
                        .iter()
                        .filter(|q| **q <= FALSE_DISCOVERIES)
                        .count()
                };
                found += reported(0, planted);
                wrong += reported(planted, peers);
            }
            let all = (found + wrong).max(1) as f64;
            match planted {
                0 => assert!(wrong <= 12, "{peers} equal ones: {wrong} in 100 fleets"),
                _ => {
                    assert!(found >= 95 * planted, "{found} of {} found", 100 * planted);
                    assert!(wrong as f64 / all <= 0.08, "{wrong} of {all} are chance");
                }
            }
        }
    }
}

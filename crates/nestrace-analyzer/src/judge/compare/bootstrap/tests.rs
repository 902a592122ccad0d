//! On series whose difference is known: how often the interval holds it, and how often there seems to be
//! one where there is none.

use super::*;

/// Of the standard normal distribution (Box and Muller).
fn normal(random: &mut Random) -> f64 {
    let radius = (-2.0 * (1.0 - random.part()).ln()).sqrt();
    radius * (std::f64::consts::TAU * random.part()).cos()
}

/// Latencies of `n` stretches around `mean`, each stretch with some of the one before.
fn latencies(random: &mut Random, n: usize, mean: f64, alike: f64) -> Ratio {
    let mut level = normal(random);
    let mut stretch = |_| {
        level = alike * level + (1.0 - alike * alike).sqrt() * normal(random);
        let ios = (20.0 + 60.0 * random.part()).floor();
        let noise = normal(random) * mean / ios.sqrt();
        (ios * (mean * (1.0 + 0.2 * level) + noise), ios)
    };
    Ratio {
        stretches: (0..n).map(&mut stretch).collect(),
    }
}

/// Part of the runs whose interval holds `truth`, and part that could not say anything.
fn held(runs: u64, truth: f64, make: impl Fn(&mut Random) -> (Ratio, Ratio)) -> (f64, f64) {
    let (mut holds, mut silent) = (0, 0);
    for run in 0..runs {
        let (a, b) = make(&mut Random(run * 7_919));
        match spread(&a, &b) {
            Ok(spread) => {
                let (low, high) = spread.difference;
                holds += u64::from(low <= truth && truth <= high);
            }
            Err(_) => silent += 1,
        }
    }
    let said = (runs - silent) as f64;
    (holds as f64 / said, silent as f64 / runs as f64)
}

#[test]
fn a_known_difference_is_held_as_often_as_is_said() {
    for (n_a, n_b, alike, least, most_silent) in [
        (64, 64, 0.0, 0.92, 0.1),
        (40, 64, 0.0, 0.92, 0.2),
        (32, 32, 0.0, 0.92, 0.25),
        (64, 64, 0.4, 0.90, 0.3),
    ] {
        let (held, silent) = held(200, 30.0, |random| {
            let a = latencies(random, n_a, 100.0, alike);
            (a, latencies(random, n_b, 130.0, alike))
        });
        assert!(
            (least..=0.995).contains(&held) && silent <= most_silent,
            "{n_a} and {n_b} stretches, alike {alike}: held {held}, silent {silent}"
        );
    }
}

#[test]
fn equal_recordings_seldom_seem_to_differ() {
    for (alike, most) in [(0.0, 0.08), (0.3, 0.09), (0.6, 0.1), (0.9, 0.2)] {
        let (held, silent) = held(200, 0.0, |random| {
            let a = latencies(random, 64, 100.0, alike);
            (a, latencies(random, 64, 100.0, alike))
        });
        let seems = (1.0 - held) * (1.0 - silent);
        assert!(seems <= most, "alike {alike}: {seems}");
    }
}

#[test]
fn a_drift_is_not_judged() {
    let drift = |random: &mut Random| {
        let mut recording = latencies(random, 64, 100.0, 0.0);
        for (i, (sum, n)) in recording.stretches.iter_mut().enumerate() {
            *sum += i as f64 * *n;
        }
        recording
    };
    let (_, silent) = held(100, 0.0, |random| (drift(random), drift(random)));
    assert!(silent > 0.8, "{silent}");
}

#[test]
fn few_stretches_are_not_enough() {
    let mut random = Random(1);
    let (few, many) = (
        latencies(&mut random, 12, 1.0, 0.0),
        latencies(&mut random, 64, 9.0, 0.0),
    );
    assert_eq!(spread(&few, &many), Err(TooFew::Blocks(4)));
    let mut rare = latencies(&mut random, 64, 9.0, 0.0);
    rare.stretches[5..].fill((0.0, 0.0));
    assert_eq!(spread(&many, &rare), Err(TooFew::Filled(5)));
    let mut close = latencies(&mut random, 64, 9.0, 0.0);
    close.stretches[LEAST_BLOCKS..].fill((0.0, 0.0));
    assert_eq!(spread(&many, &close), Err(TooFew::Close));
    assert_eq!(spread(&close, &many), Err(TooFew::Close));
}

#[test]
fn a_median_of_equal_recordings_seldom_seems_to_differ() {
    let limits = |bucket: usize| (bucket as f64, bucket as f64 + 1.0);
    let (mut seems, mut judged, runs) = (0, 0, 150u64);
    for run in 0..runs {
        let mut random = Random(run * 104_729);
        let mut recording = |shift: f64| {
            let mut stretch = |_| {
                let mut counts = vec![0u64; 200];
                for _ in 0..30 {
                    let value = 100.0 + shift + 15.0 * normal(&mut random);
                    counts[value.clamp(0.0, 199.0) as usize] += 1;
                }
                counts
            };
            (0..48).map(&mut stretch).collect::<Vec<_>>()
        };
        let (a, b, c) = (recording(0.0), recording(0.0), recording(5.0));
        let quantile = |of: &[Vec<u64>]| {
            let counts: Vec<&[u64]> = of.iter().map(Vec::as_slice).collect();
            Quantile::new(0.5, &counts, limits)
        };
        let difference = |of: &[Vec<u64>]| spread(&quantile(&a), &quantile(of)).ok();
        if let Some(Spread {
            difference: (low, high),
            ..
        }) = difference(&b)
        {
            judged += 1;
            seems += u64::from(low > 0.0 || high < 0.0);
        }
        // A third of the width.
        if let Some(Spread {
            difference: (low, _),
            ..
        }) = difference(&c)
        {
            assert!(low > 0.0, "{low}");
        }
    }
    assert!(judged * 10 > runs * 8, "{judged} of {runs}");
    assert!(seems * 10 <= judged, "{seems} of {judged}");
}

#[test]
fn the_same_is_drawn_every_time() {
    let mut random = Random(3);
    let a = latencies(&mut random, 50, 10.0, 0.2);
    let b = latencies(&mut random, 50, 11.0, 0.2);
    assert_eq!(spread(&a, &b), spread(&a, &b));
    let swapped = spread(&b, &a).expect("enough").difference;
    let straight = spread(&a, &b).expect("enough").difference;
    assert!(
        (swapped.0 + straight.1).abs() < 0.5,
        "{swapped:?} {straight:?}"
    );
}

#[test]
fn a_quantile_lies_within_its_bucket() {
    let counts: [&[u64]; 2] = [&[0, 4, 0, 4], &[]];
    let limits = |bucket: usize| (bucket as f64 * 10.0, bucket as f64 * 10.0 + 10.0);
    let median = Quantile::new(0.5, &counts, limits);
    assert_eq!(median.whole(), Some(20.0));
    assert_eq!(median.filled(), 1);
    assert_eq!(Quantile::new(0.5, &[], limits).whole(), None);
    let counts: [&[u64]; 3] = [&[9, 5, 2], &[0, 7, 1], &[30, 1, 4]];
    for q in [0.5, 0.9, 0.99] {
        let pulls = Quantile::new(q, &counts, limits).pulls();
        assert!(pulls.iter().sum::<f64>().abs() < 1e-9, "{q}: {pulls:?}");
    }
}

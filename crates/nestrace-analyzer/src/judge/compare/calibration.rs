//! Simulated devices: how often their depth, their busy time and their merges seem to differ where nothing
//! does, and whether a difference is found where there is one.

use crate::measure::figures::FigureMeter;
use crate::result::analysis::DeviceFigures;

use super::bootstrap::{Random, Ratio, spread};

const MS: f64 = 1e6;

/// A device that gets a burst of bios about every millisecond; each is with it for about `service_ms`.
fn device(random: &mut Random, service_ms: f64) -> DeviceFigures {
    let exponential = |random: &mut Random| -(1.0 - random.part()).ln();
    let mut changes: Vec<(u64, i64)> = Vec::new();
    let mut figures = FigureMeter::default();
    let mut at_ns = 1e9;
    for _ in 0..600 {
        at_ns += exponential(random) * MS;
        let bios = 1 + random.below(8);
        for place in 0..bios {
            figures.queued(at_ns as u64);
            if place > 0 && random.part() < 0.3 {
                figures.merged(at_ns as u64);
                continue;
            }
            let done_ns = at_ns + (0.2 + exponential(random)) * service_ms * MS;
            changes.extend([(at_ns as u64, 1), (done_ns as u64, -1)]);
        }
    }
    changes.sort_unstable();
    for (ts_ns, by) in changes {
        match by {
            1 => figures.depth.changed(ts_ns, true),
            _ => figures.depth.changed(ts_ns, false),
        }
    }
    figures.finish(950_000_000, at_ns as u64 + 100_000_000)
}

/// What is compared: depth, busy time, merges.
fn ratios(device: &DeviceFigures) -> [Ratio; 3] {
    let depth = device.depth_series.stretches.iter();
    let sums = device.series.stretches.iter();
    [
        depth
            .clone()
            .map(|(period, sums)| (sums.request_ns as f64, period.ns as f64))
            .collect::<Vec<_>>(),
        depth
            .map(|(period, sums)| (sums.busy_ns as f64, period.ns as f64))
            .collect(),
        sums.map(|(_, sums)| (sums.merged as f64, sums.queued as f64))
            .collect(),
    ]
    .map(|stretches| Ratio { stretches })
}

#[test]
fn equal_devices_seldom_seem_to_differ_and_slower_ones_do() {
    let (runs, slower_runs) = (200, 40);
    let mut seems = [0; 3];
    let mut found = [0; 3];
    for run in 0..runs {
        let mut random = Random(run * 15_485_863);
        let a = ratios(&device(&mut random, 0.2));
        let mut apart = |service_ms: f64| {
            let b = ratios(&device(&mut random, service_ms));
            [0, 1, 2].map(|value| {
                let spread = spread(&a[value], &b[value]).ok();
                let apart = spread.is_some_and(|it| it.difference.0 > 0.0 || it.difference.1 < 0.0);
                u64::from(apart)
            })
        };
        let equal = apart(0.2);
        let slower = if run < slower_runs {
            apart(0.3)
        } else {
            [0; 3]
        };
        for value in 0..3 {
            seems[value] += equal[value];
            found[value] += slower[value];
        }
    }
    // 5 % are claimed; twice the standard error of 200 runs is 3 %.
    assert!(
        seems.iter().all(|n| *n <= runs * 8 / 100),
        "depth, busy, merged: {seems:?} of {runs}"
    );
    assert!(seems.iter().sum::<u64>() > 0, "nothing is that certain");
    let [depth, busy, merged] = found;
    assert!(
        depth > slower_runs * 8 / 10 && busy > slower_runs / 2 && merged <= slower_runs / 8,
        "{found:?} of {slower_runs}"
    );
}

/// What reaches a device of bytes that are written back now and then: `factor` times as many, later.
fn written_back(random: &mut Random, factor: f64) -> Ratio {
    let mut waiting = 0.0;
    let mut stretches: Vec<(f64, f64)> = Vec::new();
    for _ in 0..64 {
        let asked = (1 + random.below(40)) as f64;
        waiting += asked * factor * (0.5 + random.part());
        let is_written = random.part() < 0.4;
        let written = if is_written { waiting } else { 0.0 };
        waiting -= written;
        stretches.push((written, asked));
    }
    stretches[63].0 += waiting;
    Ratio { stretches }
}

#[test]
fn equal_amplifications_seldom_seem_to_differ_and_others_do() {
    let runs = 200;
    let (mut seems, mut found) = (0, 0);
    for run in 0..runs {
        let mut random = Random(run * 32_452_843);
        let a = written_back(&mut random, 1.5);
        let mut apart = |factor: f64| {
            let spread = spread(&a, &written_back(&mut random, factor)).ok();
            spread.is_some_and(|it| it.difference.0 > 0.0 || it.difference.1 < 0.0)
        };
        seems += u64::from(apart(1.5));
        found += u64::from(apart(3.0));
    }
    assert!(seems <= runs * 8 / 100, "{seems} of {runs}");
    assert!(found > runs * 8 / 10, "{found} of {runs}");
}

//! A recording of one device as text, and the identities that it must fulfil.

use nestrace_analyzer::analysis::{Check, Device};
use nestrace_analyzer::{Analysis, Analyzer, Dist, Options};
use nestrace_trace::Manifest;

use crate::notation;

pub fn analyze(text: &str) -> Analysis {
    Analyzer::analyze(
        &Manifest::default(),
        Options::default(),
        notation::events(text),
    )
}

/// The only device.
pub fn device(text: &str) -> Device {
    let analysis = analyze(text);
    assert_eq!(analysis.devices.len(), 1, "one device expected");
    analysis.devices.into_iter().next().expect("a device")
}

/// The identities that hold when nothing was lost and nothing is in flight at the ends.
pub fn conserved(device: &Device) -> Check {
    let check = device.check.expect("a full recording");
    assert_eq!(
        check.queued + check.splits,
        check.get_requests + check.back_merges + check.front_merges + check.untraced_merges,
        "Q + X = G + M + F: {check:?}"
    );
    assert_eq!(
        check.walked_at_issue,
        check.queued + check.splits - check.empty_flushes,
        "{check:?}"
    );
    assert_eq!(
        check.ended,
        check.queued - check.empty_flushes,
        "every data bio ends once: {check:?}"
    );
    assert_eq!(
        check.counted_completions,
        device.counts.completed + check.empty_flushes,
        "{check:?}"
    );
    assert_eq!(check.empty_flushes_ended, check.empty_flushes, "{check:?}");
    assert_eq!(
        (
            check.ended_twice,
            check.reused_while_live,
            check.reissued_while_live,
            check.open_at_end
        ),
        (0, 0, 0, 0)
    );
    assert!(device.unlinked.is_empty(), "{:?}", device.unlinked);
    check
}

pub fn sum(dist: Option<Dist>) -> u64 {
    dist.map_or(0, |dist| dist.sum)
}

pub fn n_mean(dist: Option<Dist>) -> (u64, Option<u64>) {
    dist.map(|dist| (dist.n, dist.mean)).expect("recorded")
}

/// The parts sum to q2c.
pub fn parts_sum(device: &Device) {
    let all = device.latency_ns.all;
    let parts = [
        all.q2g, all.g2i, all.g2d, all.i2d, all.q2m, all.m2d, all.d2c,
    ];
    assert_eq!(parts.into_iter().map(sum).sum::<u64>(), sum(all.q2c));
}

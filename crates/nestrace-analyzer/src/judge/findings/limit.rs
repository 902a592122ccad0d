//! The rule about limits: QEMU's throttling, and a cgroup's `io.max`.

use super::subject::Subject;
use super::{Case, Judgement, threshold};
use crate::measure::clues::{DiskClues, HeldBackTimes, Pace, Rate};
use crate::result::dist::Dist;
use crate::result::units::{of, percent, share, size, time};

/// Where requests are held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Before their file I/O.
    Qemu,
    /// Between the file I/O and its bios.
    Kernel,
}

/// A limit, as it shows.
struct Limit {
    place: Place,
    waits: Dist,
    /// Of the latency of QEMU's requests.
    share: f64,
    /// Of the time with requests.
    nothing_under_way: f64,
    pace: Pace,
}

/// Requests wait long, nothing is under way meanwhile, and the pace is even: all three, or it is no limit.
fn limit(clues: &DiskClues) -> Option<Limit> {
    let held = clues.from_host.held_back;
    let pace = even_pace(&held)?;
    let limits = [
        (Place::Qemu, held.in_qemu, clues.qemu_ns, clues.file_ns),
        (Place::Kernel, held.in_host, clues.file_ns, clues.bio_ns),
    ];
    let limits = limits.map(|(place, waits, with_ns, without_ns)| Limit {
        place,
        waits,
        share: share(waits.sum, held.latency_ns).min(1.0),
        nothing_under_way: share(with_ns.saturating_sub(without_ns), clues.qemu_ns).min(1.0),
        pace,
    });
    let holds = |limit: &Limit| {
        let long = limit
            .waits
            .p50
            .is_some_and(|p50| p50 >= threshold::HELD_BACK_NS);
        limit.waits.n >= threshold::BIOS
            && long
            && limit.share >= threshold::HELD_BACK
            && limit.nothing_under_way >= threshold::NOTHING_UNDER_WAY
    };
    limits.into_iter().find(holds)
}

/// The pace, if requests or bytes came through at the same all the time.
fn even_pace(held: &HeldBackTimes) -> Option<Pace> {
    let even = |rate: Rate| rate.deviation <= threshold::PACE;
    let is_even = |pace: &Pace| {
        pace.slots >= threshold::PACED_SLOTS
            && pace.requests_in_slot >= threshold::PACED_REQUESTS
            && (even(pace.requests) || even(pace.bytes))
    };
    held.paces.into_iter().find(is_even)
}

/// Requests wait for a limit, QEMU's or a cgroup's, not for the device.
pub(super) fn is_limited(subject: &Subject<'_>) -> bool {
    subject.clues.and_then(limit).is_some()
}

/// A limit of QEMU's own lets requests wait where they would wait for a worker thread too.
pub(super) fn is_limited_by_qemu(subject: &Subject<'_>) -> bool {
    let limit = subject.clues.and_then(limit);
    limit.is_some_and(|limit| limit.place == Place::Qemu)
}

pub(super) fn host_throttled(subject: &Subject<'_>) -> Judgement {
    let clues = subject.gathered_to_the_device()?;
    let Some(limit) = limit(clues) else {
        return Ok(None);
    };
    let pace = limit.pace;
    let (who, what, advice) = match limit.place {
        Place::Qemu => (
            "QEMU",
            "in QEMU before file I/O starts",
            "Raise the disk's limit in QEMU. Find it with `virsh blkdeviotune DOMAIN DISK`, or as `throttling.*` or \
             `throttle-group` on QEMU's command line. Risk: the guest can then slow down others that the limit protects.",
        ),
        Place::Kernel => (
            "the kernel",
            "between QEMU's file I/O and the host's block layer",
            "Raise `io.max` of QEMU's cgroup or of one above it. Find it in `/proc/PID/cgroup`, with `virsh blkiotune`, \
             as `IOReadBandwidthMax=` or similar in systemd, or as `blkio.throttle.*` of cgroup v1. Risk: the guest can \
             then slow down others that the limit protects.",
        ),
    };
    Case {
        title: format!(
            "a limit in {who} holds requests back for {} of their time",
            percent(limit.share)
        ),
        explanation: format!(
            "Half of the requests wait {} or longer {what}. For {} of the time no request makes progress. Requests come \
             through at an even pace, {} or {} per second. That is what a limit looks like.",
            time(limit.waits.p50.unwrap_or(0)),
            percent(limit.nothing_under_way),
            of(pace.requests.per_second.round() as u64, "request", "requests"),
            size(pace.bytes.per_second.round() as u64)
        ),
        advice: vec![String::from(advice)],
        evidence: [
            ("held_by", who.into()),
            ("held_p50_ns", limit.waits.p50.unwrap_or(0).into()),
            ("held_share", limit.share.into()),
            ("nothing_under_way_share", limit.nothing_under_way.into()),
            ("requests_per_second", pace.requests.per_second.into()),
            ("requests_deviation", pace.requests.deviation.into()),
            ("bytes_per_second", pace.bytes.per_second.into()),
            ("bytes_deviation", pace.bytes.deviation.into()),
        ]
        .into(),
        share: limit.share,
        information: false,
    }
    .fires()
}

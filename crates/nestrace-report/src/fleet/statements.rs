//! What a fleet's report says first, in sentences.

use super::chance::{FALSE_DISCOVERIES, LEAST_RATIO};
use super::report::{FleetFinding, FleetReport, FleetSegment, Outlier, Slower};
use crate::text::answer::place_of;
use crate::units::{count, of, percent, time};

/// The answer: what is worst, what would help, what stands out, what changed.
pub(crate) fn answer(report: &FleetReport) -> Vec<String> {
    let mut lines = Vec::new();
    let advised = report.findings.iter().find(|finding| helps(finding));
    if let Some(finding) = advised.or_else(|| report.findings.first()) {
        lines.push(advice_for_most(finding));
    }
    if let Some(disk) = report.worst_disks.first() {
        lines.push(format!(
            "The worst disk is {} in {} on {}: one {} of a hundred takes {} or more.",
            disk.device,
            disk.guest,
            disk.host,
            disk.op,
            time(disk.p99_ns)
        ));
    }
    if let Some(segment) = report.segments.first() {
        let place =
            place_of(&segment.segment).map_or_else(String::new, |words| format!(" {words}"));
        lines.push(format!(
            "{} of the time that guests wait for their data passes{place} (`{}`).",
            percent(segment.share),
            segment.segment
        ));
    }
    lines.push(outliers(report));
    lines.push(changes(report));
    lines
}

/// Whether a finding says what to do, and that is worth it.
pub(crate) fn helps(finding: &FleetFinding) -> bool {
    finding.severity != "info" && !finding.advice.is_empty()
}

fn advice_for_most(finding: &FleetFinding) -> String {
    let waited = finding.waited_ns.map_or_else(String::new, |ns| {
        format!("; it explains {} of waiting", time(ns.max(0.0) as u64))
    });
    let advice = finding
        .advice
        .first()
        .map_or_else(String::new, |advice| format!(" Advice: {advice}"));
    format!(
        "The finding that most disks have is `{}`: {} ({}){waited}.{advice}",
        finding.id,
        of(finding.disks, "disk", "disks"),
        percent(finding.share)
    )
}

/// `stack_submit, in the host's stacked devices`.
pub(crate) fn segment(segment: &FleetSegment) -> String {
    match place_of(&segment.segment) {
        Some(words) => format!("{}, {words}", segment.segment),
        None => segment.segment.clone(),
    }
}

fn outliers(report: &FleetReport) -> String {
    let compared = of(
        report.compared,
        "disk and operation was",
        "disks and operations were",
    );
    match report.outliers.len() {
        _ if report.compared == 0 => String::from(
            "No disk was compared with its peers: no kind has eight disks with 100 requests each.",
        ),
        0 => format!("{compared} compared with peers of the same kind; none stands out."),
        n => format!(
            "{compared} compared with peers of the same kind; {} slower than their peers by more than chance explains.",
            match n {
                1 => String::from("1 is"),
                n => format!("{} are", count(n as u64)),
            }
        ),
    }
}

fn changes(report: &FleetReport) -> String {
    let changes = &report.changes;
    let Some(ratio) = changes.median_ratio.filter(|_| changes.compared > 0) else {
        return String::from(
            "Nothing is known of changes: no disk has 100 requests in each of the last two weeks.",
        );
    };
    format!(
        "Since the week before, the median latency of {} changed by a factor of {ratio:.2}; {} became slower by more than chance explains.",
        of(
            changes.compared,
            "disk and operation",
            "disks and operations"
        ),
        count(changes.slower.len() as u64)
    )
}

/// What the data set holds.
pub(crate) fn facts(report: &FleetReport) -> String {
    let mut facts = vec![
        of(report.recordings, "recording", "recordings"),
        of(report.hosts, "host", "hosts"),
        of(report.disks, "disk of guests", "disks of guests"),
        format!("{} recorded", time(report.duration_ns)),
    ];
    if let (Some(first), Some(last)) = (report.first_unix_ns, report.last_unix_ns) {
        facts.push(format!("{} to {} (UTC)", day(first), day(last)));
    }
    facts.join(" · ")
}

/// What is missing.
pub(crate) fn missing(report: &FleetReport) -> Vec<String> {
    let mut lines = Vec::new();
    if report.recordings_with_losses > 0 {
        lines.push(format!(
            "{} lost {}: their counts are too small",
            of(report.recordings_with_losses, "recording", "recordings"),
            of(report.lost, "event", "events")
        ));
    }
    if report.n_left_out > 0 {
        lines.push(format!(
            "{} could not be read and left out; export these recordings again",
            of(report.n_left_out, "file", "files")
        ));
    }
    let files = report
        .left_out
        .iter()
        .map(|one| format!("{}: {}", one.file, one.reason));
    lines.extend(files);
    lines
}

/// How a list of outliers is to be read.
pub(crate) fn of_outliers() -> String {
    format!(
        "Peers have the same host kernel, QEMU, host file system, cache mode and bus. Listed is what is at least {LEAST_RATIO} times as slow as the peers' median, with the robust distance `z` (median and MAD of the logarithms); at most {} of the list is chance (`q`, Benjamini and Hochberg, over all that were compared).",
        percent(FALSE_DISCOVERIES)
    )
}

/// How a list of changes is to be read.
pub(crate) const OF_CHANGES: &str = "The last seven days before the newest minute, against the seven days before. z and q as for outliers, against the change of all disks: what became slower everywhere is in the median above.";

/// How a list of worst disks is to be read.
pub(crate) const OF_WORST: &str = "The longest 99th percentiles of what guests waited for a request; disks with 100 requests or more. Percentiles are bounds of buckets: the value lies at most 6.3 % below.";

/// How a list of findings is to be read.
pub(crate) const OF_FINDINGS: &str = "`explains` is the part of a disk's waiting that the finding explains, the mean of the disks; `waited` is that part in time, of all disks that were followed to the host. Advice is that of one of the recordings: `nestrace analyze` says what holds for each.";

/// How a list of kinds is to be read.
pub(crate) const OF_KINDS: &str = "Mean latency of what guests asked for, the slowest first; kinds with 100 requests or more. `-` is unknown.";

/// How a list of hosts is to be read.
pub(crate) const OF_HOSTS: &str = "`waited` is how long guests waited for their data; `on the host`, how much of it in the host's file system, queue, stacked devices and device. `amplification` is the bytes that the devices under the images moved, divided by the bytes that the guests asked for; I/O of the host's other programs counts too.";

/// `vda in vm1 on host`, and why it stands out.
pub(crate) fn outlier(outlier: &Outlier) -> String {
    let kind = &outlier.kind;
    format!(
        "{} in {} on {}, {}: {}, {:.1} times the {} of {} on {}, {}, {}, QEMU {}, Linux {} (z {:.1}, q {})",
        outlier.device,
        outlier.guest,
        outlier.host,
        outlier.op,
        time(outlier.mean_ns as u64),
        outlier.mean_ns / outlier.peers_ns.max(1.0),
        time(outlier.peers_ns as u64),
        of(outlier.peers, "disk", "disks"),
        kind.host_fs,
        kind.cache,
        kind.bus,
        kind.qemu_version,
        kind.host_kernel,
        outlier.z,
        small(outlier.q)
    )
}

/// The same of a disk that became slower.
pub(crate) fn slower(slower: &Slower) -> String {
    format!(
        "{} in {} on {}, {}: from {} to {} ({:.2} times, z {:.1}, q {})",
        slower.device,
        slower.guest,
        slower.host,
        slower.op,
        time(slower.mean_before_ns as u64),
        time(slower.mean_last_ns as u64),
        slower.ratio,
        slower.z,
        small(slower.q)
    )
}

fn small(q: f64) -> String {
    match q {
        q if q < 0.0001 => String::from("< 0.0001"),
        q => format!("{q:.4}"),
    }
}

/// `2026-11-20`, by Howard Hinnant's `civil_from_days`.
fn day(unix_ns: i64) -> String {
    let days = unix_ns.div_euclid(86_400_000_000_000);
    nestrace_trace::calendar::iso(u64::try_from(days).unwrap_or(0))
}

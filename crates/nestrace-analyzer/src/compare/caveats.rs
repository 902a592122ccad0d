//! What is to be known before the numbers are believed.

use crate::analysis::Analysis;
use crate::units::{count, of, percent, size};

use super::comparison::{Both, DiskName, DiskPair, Metric, Recording};
use super::loss;

/// Means of I/O sizes, and shares of operations, that are no longer the same load.
const OTHER_LOAD: f64 = 0.1;

/// A recording, and whether its numbers can be judged.
pub(super) fn recording(analysis: &Analysis) -> Recording {
    let trace = &analysis.trace;
    Recording {
        path: trace.path.clone(),
        duration_ns: trace.duration_ns,
        events: trace.events,
        lost: trace.lost,
        truncated: trace.truncated,
        detail: trace.detail.clone(),
        distrusted: loss::of_host(trace),
        distrusted_guests: loss::of_guests(trace),
    }
}

/// Of the recordings as they are.
pub(super) fn of_recordings(
    analyses: Both<&Analysis>,
    a: &Recording,
    b: &Recording,
) -> Vec<String> {
    let mut caveats = Vec::new();
    for (name, recording, analysis) in [("A", a, analyses.a), ("B", b, analyses.b)] {
        match &recording.distrusted {
            Some(why) => caveats.push(format!(
                "{name}: {why}; its values are shown but not judged"
            )),
            None if recording.lost > 0 => caveats.push(format!(
                "{name} lost {}",
                of(recording.lost, "event", "events")
            )),
            None => {}
        }
        caveats.extend(recording.distrusted_guests.iter().map(|it| {
            format!(
                "{name}: {}; what was counted inside it is shown but not judged",
                it.why
            )
        }));
        if recording.truncated {
            caveats.push(match analysis.trace.closed {
                None => format!("{name} has no manifest: whether it was closed is not known"),
                Some(false) => format!("{name} was not closed: its end may be missing"),
                Some(true) => {
                    format!("a file of {name} is cut or damaged: what it held is missing")
                }
            });
        }
        caveats.extend(unlinked(name, analysis));
    }
    if let (Some(of_a), Some(of_b)) = (&a.detail, &b.detail)
        && of_a != of_b
    {
        caveats.push(format!(
            "A is a {of_a} recording, B a {of_b} one: what only one of them has cannot be compared"
        ));
    }
    caveats
}

/// Bios that could not be followed.
fn unlinked(name: &str, analysis: &Analysis) -> Vec<String> {
    let chains = analysis.chains.iter().filter(|it| it.guest_bios > 0);
    let poorly = chains.filter(|it| it.fraction.is_some_and(|fraction| fraction < 0.99));
    let text = poorly.map(|it| {
        format!(
            "{name}: {} of {} bios of {}/{} were followed to the host",
            count(it.linked),
            count(it.guest_bios),
            it.guest,
            it.guest_device
        )
    });
    text.collect()
}

/// Whether the guest did the same in both.
pub(super) fn of_load(pair: &DiskPair) -> Vec<String> {
    let layer = |name: &str| pair.metrics.iter().any(|metric| metric.layer == name);
    let layer = if layer("guest") { "guest" } else { "qemu" };
    let find = |operation: &str, name: &str| {
        let is =
            |it: &&Metric| it.layer == layer && it.operation == Some(operation) && it.name == name;
        pair.metrics.iter().find(is)
    };
    let rate = |operation, name| {
        find(operation, name).map_or(Both { a: 0.0, b: 0.0 }, |metric| Both {
            a: metric.a.unwrap_or(0.0),
            b: metric.b.unwrap_or(0.0),
        })
    };
    let name = disk(&pair.names.a);
    let mut caveats = Vec::new();
    for operation in ["read", "write"] {
        let (ios, bytes) = (
            rate(operation, "per_second"),
            rate(operation, "bytes_per_second"),
        );
        let (a, b) = (bytes.a / ios.a, bytes.b / ios.b);
        if (b / a - 1.0).abs() > OTHER_LOAD {
            caveats.push(format!(
                "{name}: not the same load: {operation}s of {} on average in A and {} in B",
                size(a.round() as u64),
                size(b.round() as u64)
            ));
        }
    }
    let (reads, writes) = (rate("read", "per_second"), rate("write", "per_second"));
    let share = Both {
        a: reads.a / (reads.a + writes.a),
        b: reads.b / (reads.b + writes.b),
    };
    if (share.a - share.b).abs() > OTHER_LOAD {
        caveats.push(format!(
            "{name}: not the same load: {} of the I/Os are reads in A and {} in B",
            percent(share.a),
            percent(share.b)
        ));
    }
    caveats
}

/// `vm1/disk0`.
fn disk(name: &DiskName) -> String {
    format!("{}/{}", name.guest, name.disk)
}

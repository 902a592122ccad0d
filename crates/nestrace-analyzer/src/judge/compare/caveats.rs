//! What is to be known before the numbers are believed.

use crate::judge::incomplete;
use crate::result::analysis::Analysis;
use crate::result::compared::{IoOperation, MetricLayer};
use crate::result::units::{count, of, percent, size};

use super::comparison::{
    Both, Comparison, DevicePair, DiskName, DiskPair, Matched, Metric, Recording,
};
use super::loss;

/// Means of I/O sizes, and shares of operations, that are no longer the same load.
const OTHER_LOAD: f64 = 0.1;
/// Names in a caveat, and devices whose load is named; there may be very many.
const MOST: usize = 4;

/// A recording, and whether its numbers can be judged.
pub(super) fn recording(analysis: &Analysis) -> Recording {
    let trace = &analysis.trace;
    Recording {
        path: trace.path.clone(),
        duration_ns: trace.duration_ns,
        events: trace.events,
        lost: trace.lost,
        truncated: trace.truncated,
        missing: incomplete::missing(trace),
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
            "A was recorded with --detail {of_a}, B with {of_b}: what only one of them has cannot be compared"
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
            "{name}: {} of {} bios of {}/{} were linked down to the host",
            count(it.linked),
            count(it.guest_bios),
            it.guest,
            it.guest_device
        )
    });
    text.collect()
}

/// Disks and devices with different names in A and B, which may be different ones.
pub(super) fn of_pairing(comparison: &Comparison) -> Vec<String> {
    let disks = comparison.disks.iter().map(|it| (it.matched, disks(it)));
    let devices = comparison.devices.iter();
    let all: Vec<_> = disks
        .chain(devices.map(|it| (it.matched, devices_of(it))))
        .collect();
    let why = [
        (Matched::Order, "only by their order"),
        (Matched::OnlyOne, "because each recording has no other left"),
    ];
    let caveat = |(matched, why): (Matched, &str)| {
        let names: Vec<&str> = all
            .iter()
            .filter(|(how, _)| *how == matched)
            .map(|(_, names)| names.as_str())
            .collect();
        let more = names.len().saturating_sub(MOST);
        let shown = names.iter().take(MOST).copied().collect::<Vec<_>>();
        let more = if more > 0 {
            format!(" and {more} more")
        } else {
            String::new()
        };
        (!names.is_empty())
            .then(|| format!("compared {why}, not by name: {}{more}", shown.join(", ")))
    };
    why.into_iter().filter_map(caveat).collect()
}

/// Disks of guests that were started again: of their own values those of one session are compared.
pub(super) fn of_sessions(analyses: Both<&Analysis>, pairs: &[DiskPair]) -> Vec<String> {
    let mut caveats = Vec::new();
    for pair in pairs.iter().filter(|pair| pair.guest_places.is_some()) {
        for (which, analysis, name) in [
            ("A", analyses.a, &pair.names.a),
            ("B", analyses.b, &pair.names.b),
        ] {
            let sessions = analysis.devices.iter().filter(|device| {
                device.guest.as_deref() == Some(&*name.guest)
                    && Some(&device.name) == name.guest_device.as_ref()
            });
            let n = sessions.count();
            if n > 1 {
                caveats.push(format!(
                    "{which}: {} was recorded in {n} sessions (the guest or its agent was started again): what was counted \
                     inside is of the one with most bytes, segments and QEMU's values are of all",
                    disk(name)
                ));
            }
        }
    }
    caveats
}

/// Whether the same was done in both: on disks, where there are any.
pub(super) fn of_loads(comparison: &Comparison) -> Vec<String> {
    if comparison.disks.is_empty() {
        let devices = comparison.devices.iter().take(MOST);
        return devices
            .flat_map(|it| of_load(&devices_of(it), &it.metrics))
            .collect();
    }
    let pairs = comparison.disks.iter();
    pairs
        .flat_map(|it| of_load(&disks(it), &it.metrics))
        .collect()
}

fn of_load(name: &str, metrics: &[Metric]) -> Vec<String> {
    // Light recordings have no bios to count.
    let counts = |layer: &MetricLayer| {
        metrics.iter().any(|it| {
            it.layer == *layer
                && it.name == "per_second"
                && it.operation.is_some()
                && it.a.is_some()
                && it.b.is_some()
        })
    };
    let Some(layer) = [MetricLayer::Guest, MetricLayer::Qemu, MetricLayer::Device]
        .into_iter()
        .find(|layer| counts(layer))
    else {
        return Vec::new();
    };
    let find = |operation: IoOperation, name: &str| {
        let is =
            |it: &&Metric| it.layer == layer && it.operation == Some(operation) && it.name == name;
        metrics.iter().find(is)
    };
    let rate = |operation, name| {
        find(operation, name).map_or(Both { a: 0.0, b: 0.0 }, |metric| Both {
            a: metric.a.unwrap_or(0.0),
            b: metric.b.unwrap_or(0.0),
        })
    };
    let mut caveats = Vec::new();
    for operation in [IoOperation::Read, IoOperation::Write] {
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
    let (reads, writes) = (
        rate(IoOperation::Read, "per_second"),
        rate(IoOperation::Write, "per_second"),
    );
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

/// `loop0`, or `vm1:vda`.
pub(super) fn device(guest: Option<&str>, name: &str) -> String {
    match guest {
        Some(guest) => format!("{guest}:{name}"),
        None => name.to_owned(),
    }
}

/// One name, or that in A and that in B.
fn both(a: String, b: String) -> String {
    if a == b { a } else { format!("{a} and {b}") }
}

fn disks(pair: &DiskPair) -> String {
    both(disk(&pair.names.a), disk(&pair.names.b))
}

fn devices_of(pair: &DevicePair) -> String {
    let name = |of: &super::DeviceName| device(of.guest.as_deref(), &of.name);
    both(name(&pair.names.a), name(&pair.names.b))
}

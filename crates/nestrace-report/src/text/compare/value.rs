//! Values, ratios and intervals as a person reads them.

use nestrace_analyzer::compare::{IoOperation, Metric, MetricLayer, Unit, Verdict};

use crate::operation::many;
use crate::units::{count, percent, size, time};

/// Where values are shown: a terminal has room for the most important ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// In 80 columns.
    Text,
    /// In a page.
    Page,
}

/// Values of every operation that a terminal shows, of a guest's disk or QEMU's.
const OF_DISKS: [&str; 7] = [
    "q2c_mean",
    "q2c_p50",
    "q2c_p99",
    "latency_mean",
    "latency_p99",
    "per_second",
    "bytes_per_second",
];
/// Of devices, by operation.
const OF_DEVICES: [&str; 5] = ["q2c_mean", "q2c_p99", "q2d_mean", "d2c_mean", "per_second"];
/// Of both, of all operations together.
const OF_ALL: [&str; 6] = [
    "requests_per_second",
    "request_bytes",
    "bios_per_request",
    "sequential_share",
    "device_bytes_per_qemu_byte",
    "device_flushes_per_qemu_flush",
];

/// The values that are shown. A terminal shows what was recorded in both; where a guest was recorded from
/// inside, of QEMU's values the mean.
pub(crate) fn shown(metrics: &[Metric], place: Shown) -> Vec<&Metric> {
    let inside = metrics
        .iter()
        .any(|metric| metric.layer == MetricLayer::Guest);
    let wanted = |metric: &&Metric| match (metric.operation, metric.layer) {
        _ if place == Shown::Page => true,
        (None, _) => OF_ALL.contains(&metric.name),
        _ if metric.n.a == 0 || metric.n.b == 0 => metric.name.ends_with("c_mean"),
        (_, MetricLayer::Qemu) if inside => metric.name == "latency_mean",
        (_, MetricLayer::Device) => OF_DEVICES.contains(&metric.name),
        _ => OF_DISKS.contains(&metric.name),
    };
    metrics.iter().filter(wanted).collect()
}

/// `reads, mean`; QEMU's and the parts of a latency have their own names.
pub(crate) fn label(metric: &Metric) -> String {
    let what = match metric.name {
        "q2c_mean" | "latency_mean" => "mean",
        "q2c_p50" | "latency_p50" => "median",
        "q2c_p99" | "latency_p99" => "99 %",
        "q2d_mean" => "queue wait",
        "d2c_mean" => "at device",
        "d2c_p50" => "device median",
        "d2c_p99" => "device 99 %",
        "per_second" | "bytes_per_second" => "",
        "requests_per_second" => "requests/s",
        "request_bytes" => "request size",
        "bios_per_request" => "bios per request",
        "sequential_share" => "sequential",
        "merged_share" => "merged bios",
        "queue_depth_mean" => "queue depth",
        "busy_share" => "busy",
        "device_flushes" => "device flushes",
        "image_bytes_per_qemu_byte" => "image ÷ QEMU bytes",
        "host_bytes_per_qemu_byte" => "host ÷ QEMU bytes",
        "device_bytes_per_qemu_byte" => "device ÷ QEMU bytes",
        "device_writes_per_qemu_write" => "device ÷ QEMU writes",
        "device_reads_per_qemu_read" => "device ÷ QEMU reads",
        "device_flushes_per_qemu_flush" => "device ÷ QEMU flush",
        segment => return segment.to_owned(),
    };
    let layer = if metric.layer == MetricLayer::Qemu {
        "QEMU "
    } else {
        ""
    };
    match (metric.operation, metric.name) {
        (Some(operation), "per_second") => format!("{layer}{}/s", many(operation)),
        (Some(operation), "bytes_per_second") => format!("{layer}bytes {}", done(operation)),
        (Some(operation), _) => format!("{layer}{}, {what}", many(operation)),
        (None, _) => format!("{layer}{what}"),
    }
}

/// `mean`, `99 %`: a value of calls.
pub(crate) fn part_of_calls(metric: &Metric) -> &'static str {
    match metric.name {
        "latency_p99" => "99 %",
        _ => "mean",
    }
}

/// `read`, `written`.
const fn done(operation: IoOperation) -> &'static str {
    match operation {
        IoOperation::Write => "written",
        IoOperation::Discard => "discarded",
        other => other.name(),
    }
}

/// A value in its unit.
pub(crate) fn value(unit: Unit, value: Option<f64>) -> String {
    let Some(value) = value.filter(|value| value.is_finite()) else {
        return String::from("–");
    };
    let whole = value.abs().round() as u64;
    match unit {
        Unit::Ns => time(whole),
        Unit::Bytes => size(whole),
        Unit::BytesPerSecond => format!("{}/s", size(whole)),
        Unit::Share => percent(value.abs()),
        Unit::Count if value.fract() == 0.0 => count(whole),
        _ if value.abs() >= 1_000.0 => count(whole),
        _ => digits(value.abs()),
    }
}

/// B − A with its sign.
pub(crate) fn difference(metric: &Metric) -> String {
    match metric.difference {
        Some(difference) if difference < 0.0 => {
            format!("−{}", value(metric.unit, Some(difference)))
        }
        Some(difference) if difference > 0.0 => {
            format!("+{}", value(metric.unit, Some(difference)))
        }
        other => value(metric.unit, other),
    }
}

/// A part may be negative: it went the other way.
pub(crate) fn signed(share: f64) -> String {
    let sign = if share < 0.0 { "−" } else { "" };
    format!("{sign}{}", percent(share.abs()))
}

/// Three digits that count.
fn digits(value: f64) -> String {
    match value {
        v if v < 9.995 => format!("{v:.2}"),
        v if v < 99.95 => format!("{v:.1}"),
        v if v < 1e6 => format!("{v:.0}"),
        v => format!("{v:.0e}"),
    }
}

/// B ÷ A.
pub(crate) fn ratio(ratio: Option<f64>) -> String {
    let known = ratio.filter(|ratio| ratio.is_finite());
    known.map_or_else(|| String::from("–"), digits)
}

/// Between which ratios the true one lies; where A may be 0, between which differences.
pub(crate) fn range(metric: &Metric) -> String {
    let Some(interval) = metric.interval else {
        return String::from("–");
    };
    match interval.ratio {
        Some([low, high]) => format!("{}–{}", digits(low.max(0.0)), digits(high.max(0.0))),
        None => String::from("–"),
    }
}

/// What can be said, in a word or two.
pub(crate) const fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Lower => "lower",
        Verdict::Higher => "higher",
        Verdict::NoDifference => "no difference",
        Verdict::NotEnough => "not enough",
        _ => "not judged",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_their_units() {
        for (unit, number, expected) in [
            (Unit::Ns, Some(1_500.0), "1.50 µs"),
            (Unit::BytesPerSecond, Some(4096.0), "4.00 KiB/s"),
            (Unit::Share, Some(0.5), "50 %"),
            (Unit::PerSecond, Some(12_345.6), "12,346"),
            (Unit::PerSecond, Some(12.34), "12.3"),
            (Unit::Ratio, Some(1.0), "1.00"),
            (Unit::Count, Some(7.0), "7"),
            (Unit::Ns, None, "–"),
            (Unit::Ratio, Some(f64::NAN), "–"),
        ] {
            assert_eq!(value(unit, number), expected);
        }
    }
}

//! A snapshot as Prometheus reads it: OpenMetrics text.
//!
//! Names and labels: `docs/live.md`. A histogram has a bucket for each power of two from 1 µs (2¹⁰ ns) to 275 s (2³⁸ ns),
//! which the finer buckets of the probes add up to exactly: a bound is in none of two.

use std::fmt::Write;

use crate::series::{Labels, classic, count, each, printable};
use crate::snapshot::{LayerSums, Snapshot};

/// The type that a scrape's answer has.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The text of a snapshot.
#[must_use]
pub fn open_metrics(snapshot: &Snapshot) -> String {
    let mut text = String::new();
    let out = &mut text;
    family(
        out,
        "nestrace_io_seconds",
        "histogram",
        "Latency of I/O by layer.",
        Some("seconds"),
    );
    each(snapshot, |labels, values| {
        for (layer, sums) in values.layers {
            if let Some(sums) = sums {
                histogram(out, labels, layer, sums);
            }
        }
    });
    family(
        out,
        "nestrace_io_bytes",
        "counter",
        "Bytes of I/O that has ended.",
        Some("bytes"),
    );
    each(snapshot, |labels, values| {
        sample(out, "nestrace_io_bytes_total", labels, &values.bytes);
    });
    family(
        out,
        "nestrace_in_flight",
        "gauge",
        "I/O that has begun and not ended.",
        None,
    );
    each(snapshot, |labels, values| {
        if let Some(n) = values.in_flight {
            sample(out, "nestrace_in_flight", labels, &n);
        }
    });
    family(
        out,
        "nestrace_oldest_seconds",
        "gauge",
        "Age of the oldest I/O in flight; 0 where nothing is in flight.",
        Some("seconds"),
    );
    each(snapshot, |labels, values| {
        if values.in_flight.is_some() {
            let seconds = seconds(values.oldest_ns.unwrap_or(0));
            sample(out, "nestrace_oldest_seconds", labels, &seconds);
        }
    });
    family(
        out,
        "nestrace_events_lost",
        "counter",
        "I/O that could not be summed.",
        None,
    );
    for (source, n) in &snapshot.lost {
        let source = escaped(source);
        let _ = writeln!(out, "nestrace_events_lost_total{{source=\"{source}\"}} {n}");
    }
    text.push_str("# EOF\n");
    text
}

fn family(out: &mut String, name: &str, kind: &str, help: &str, unit: Option<&str>) {
    let _ = writeln!(out, "# TYPE {name} {kind}");
    if let Some(unit) = unit {
        let _ = writeln!(out, "# UNIT {name} {unit}");
    }
    let _ = writeln!(out, "# HELP {name} {help}");
}

fn write_labels(out: &mut String, labels: &Labels<'_>) {
    let mut separator = "";
    for (name, value) in labels.present() {
        let _ = write!(out, "{separator}{name}=\"{}\"", escaped(value));
        separator = ",";
    }
}

fn sample(out: &mut String, name: &str, labels: &Labels<'_>, value: &impl std::fmt::Display) {
    let _ = write!(out, "{name}{{");
    write_labels(out, labels);
    let _ = writeln!(out, "}} {value}");
}

fn histogram(out: &mut String, labels: &Labels<'_>, layer: &str, sums: &LayerSums) {
    let line = |out: &mut String, suffix: &str, bound: &str, value: &str| {
        let _ = write!(out, "nestrace_io_seconds_{suffix}{{");
        write_labels(out, labels);
        let _ = write!(out, ",layer=\"{layer}\"");
        if !bound.is_empty() {
            let _ = write!(out, ",le=\"{bound}\"");
        }
        let _ = writeln!(out, "}} {value}");
    };
    for (bound, below) in classic(sums) {
        line(out, "bucket", &seconds(bound), &below.to_string());
    }
    let n = count(sums);
    line(out, "bucket", "+Inf", &n.to_string());
    line(out, "count", "", &n.to_string());
    line(out, "sum", "", &seconds(sums.sum_ns));
}

/// Nanoseconds as exact seconds.
fn seconds(ns: u64) -> String {
    format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000)
}

/// A label's value: names come from guests.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for c in printable(value) {
        match c {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use nestrace_abi::histogram::{BUCKETS, bucket_of};

    use super::*;
    use crate::snapshot::{DeviceSums, Op};

    #[test]
    fn a_device_is_exported() {
        let mut buckets = vec![0; BUCKETS];
        for ns in [500, 1500, 1_000_000] {
            buckets[bucket_of(ns)] += 1;
        }
        let sums = LayerSums {
            n: 3,
            sum_ns: 1_002_000,
            max_ns: None,
            buckets,
        };
        let snapshot = Snapshot {
            at_unix_ns: 1,
            lost: [("block".to_owned(), 2)].into(),
            disks: Vec::new(),
            devices: vec![DeviceSums {
                device: "sd\"a\n".to_owned(),
                op: Op::Write,
                n: 3,
                bytes: 12288,
                host_queue: None,
                latency: Some(sums),
                in_flight: Some(1),
                oldest_ns: Some(1_500_000_000),
            }],
        };
        let text = open_metrics(&snapshot);
        let has = |line: &str| assert!(text.lines().any(|l| l == line), "{line}\n{text}");
        let of = "device=\"sd\\\"a\\n\",op=\"write\"";
        has(&format!(
            "nestrace_io_seconds_bucket{{{of},layer=\"device\",le=\"0.000001024\"}} 1"
        ));
        has(&format!(
            "nestrace_io_seconds_bucket{{{of},layer=\"device\",le=\"0.000002048\"}} 2"
        ));
        has(&format!(
            "nestrace_io_seconds_bucket{{{of},layer=\"device\",le=\"0.001048576\"}} 3"
        ));
        has(&format!(
            "nestrace_io_seconds_bucket{{{of},layer=\"device\",le=\"+Inf\"}} 3"
        ));
        has(&format!(
            "nestrace_io_seconds_sum{{{of},layer=\"device\"}} 0.001002000"
        ));
        has(&format!("nestrace_io_bytes_total{{{of}}} 12288"));
        has(&format!("nestrace_oldest_seconds{{{of}}} 1.500000000"));
        has("nestrace_events_lost_total{source=\"block\"} 2");
        assert!(text.ends_with("# EOF\n"));
        let bounds = text.lines().filter(|line| line.contains("le=")).count();
        assert_eq!(bounds, 30);
    }
}

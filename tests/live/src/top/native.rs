//! The native histograms that Prometheus scrapes: against the classic ones of the same server, `top` and fio.

use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::guest::Guest;
use serde_json::Value;
use xtask::case::Case;

use super::prometheus_server::Prometheus;
use super::serving::Serving;

/// What Prometheus with native histograms asks for.
const ACCEPT: &str = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited,\
                      application/openmetrics-text;version=1.0.0;q=0.8,*/*;q=0.1";
/// How far a quantile may be from the exact one (docs/live.md).
const MAX_ERROR: f64 = 0.11;
/// How far a percentile of `top` may be.
const MAX_ERROR_OF_TOP: f64 = 0.125;
/// The guest's clock and its own way through the kernel.
const SLACK: f64 = 1.2;

/// At rest: every histogram is there in both kinds, with the same count and sum.
pub fn counts(
    case: &mut Case,
    guest: &Guest,
    serving: &Serving,
    (classic, native): (&Prometheus, &Prometheus),
) -> anyhow::Result<()> {
    let of_guest = format!("guest=\"{}\"", guest.name());
    let sorted = |prometheus: &Prometheus, query: &str| {
        let mut found: Vec<String> = prometheus
            .query(query)?
            .iter()
            .map(|series| {
                let labels = &series["metric"];
                let name = |label: &str| labels[label].as_str().unwrap_or_default().to_owned();
                let value = series.pointer("/value/1").and_then(Value::as_str);
                let value = value.unwrap_or("none");
                format!("{} {} {}: {value}", name("disk"), name("op"), name("layer"))
            })
            .collect();
        found.sort();
        Ok::<_, anyhow::Error>(found)
    };
    for (function, suffix) in [("histogram_count", "_count"), ("histogram_sum", "_sum")] {
        let of_native = format!("{function}(nestrace_io_seconds{{{of_guest}}})");
        let of_classic = format!("nestrace_io_seconds{suffix}{{{of_guest}}}");
        let (of_native, of_classic) = (sorted(native, &of_native)?, sorted(classic, &of_classic)?);
        // Two disks, three operations, three layers.
        case.equal(&format!("{function}: series"), of_native.len(), 18);
        case.equal(function, of_native.join("; "), of_classic.join("; "));
    }
    let classic_of_native = native.query("nestrace_io_seconds_bucket")?;
    case.equal("classic buckets beside them", classic_of_native.len(), 0);
    let targets = native.api("targets?state=active")?;
    let error = &targets["activeTargets"][0]["lastError"];
    case.equal("the last scrape's error", error, &Value::from(""));
    // So that it is made anew.
    std::thread::sleep(Duration::from_millis(1100));
    let begin = Instant::now();
    let request = format!("GET /metrics HTTP/1.0\r\nHost: localhost\r\nAccept: {ACCEPT}\r\n\r\n");
    let answer = serving.address.send(request.as_bytes())?;
    case.figure(format!(
        "a scrape of protobuf: {:.1} ms",
        begin.elapsed().as_secs_f64() * 1e3
    ));
    let is_protobuf = answer.head.contains(
        "content-type: application/vnd.google.protobuf; proto=io.prometheus.client.metricfamily;",
    );
    case.holds("the answer is protobuf", is_protobuf, &answer.head);
    Ok(())
}

fn p50_of(native: &Prometheus, labels: &str) -> anyhow::Result<f64> {
    native.number(&format!(
        "histogram_quantile(0.5, increase(nestrace_io_seconds{{{labels}}}[8s]))"
    ))
}

/// The median of a layer against fio's.
pub fn median(
    case: &mut Case,
    native: &Prometheus,
    (labels, layer): (&str, &str),
    fio_p50: f64,
) -> anyhow::Result<()> {
    let p50 = p50_of(native, labels)?;
    case.figure(format!(
        "{layer}: p50 {:.1} ms of native buckets",
        p50 * 1e3
    ));
    case.holds(
        &format!("{layer}: the native median is fio's, to within the bound"),
        (p50 - fio_p50).abs() <= fio_p50 * MAX_ERROR * SLACK,
        &format!("{p50} against {fio_p50}"),
    );
    Ok(())
}

/// The median of QEMU's reads against that of `top`, of the interval with most requests.
pub fn as_in_top(
    case: &mut Case,
    native: &Prometheus,
    lines: &[Value],
    disk: &str,
) -> anyhow::Result<()> {
    let rows = lines.iter().filter_map(|line| line["disks"].as_array());
    let rows = rows
        .flatten()
        .filter(|row| row["disk"] == disk && row["op"] == "read");
    let fullest = rows
        .max_by_key(|row| row["n"].as_u64())
        .context("see a row")?;
    let of_top = fullest.pointer("/latency_ns/qemu/p50");
    let of_top = of_top.and_then(Value::as_f64).context("see a median")? / 1e9;
    let labels = format!("disk=\"{disk}\",op=\"read\",layer=\"qemu\"");
    let p50 = native.number(&format!(
        "histogram_quantile(0.5, increase(nestrace_io_seconds{{{labels}}}[15s]))"
    ))?;
    case.figure(format!(
        "top: p50 {:.1} ms, native {:.1} ms",
        of_top * 1e3,
        p50 * 1e3
    ));
    case.holds(
        "the native median is that of top, to within both bounds",
        p50 <= of_top * (1.0 + MAX_ERROR) * (1.0 + MAX_ERROR_OF_TOP)
            && of_top <= p50 * (1.0 + MAX_ERROR) * (1.0 + MAX_ERROR_OF_TOP),
        &format!("{p50} against {of_top}"),
    );
    Ok(())
}

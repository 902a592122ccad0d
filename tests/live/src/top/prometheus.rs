//! `nestrace serve` under a real Prometheus: what it scraped against QMP, the guest's and the host's `/sys/block/*/stat` and fio;
//! the alert rules and the dashboard's queries.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::guest::Guest;
use nestrace_rig::host_fs::HostFs;
use serde_json::Value;
use xtask::case::Case;

use super::native;
use super::prometheus_server::{Prometheus, RULES, encoded, programs};
use super::serving::{ANY_PORT, Serving};
use super::slow_disk::{self, MAX_MISSED};
use super::{LiveContext, PATIENCE, Top, nearly};
use crate::with_agents::counts::guest_stat;
use crate::with_agents::recording::device_in_guest;

const FAST: &str = "scraped";
const SLOW: &str = "slow-scraped";
/// What was done is at Prometheus: agents send once a second, a text is a second old at most, and so is a scrape.
const SETTLED: Duration = Duration::from_millis(4500);

const DASHBOARD: &str = include_str!("../../../../packaging/nestrace-grafana.json");

/// Boots the guest, serves its figures, and has Prometheus scrape them.
pub fn prometheus(ctx: &LiveContext, case: &mut Case, host: &HostFs) -> anyhow::Result<()> {
    let programs = programs(ctx)?;
    let mut guest = slow_disk::boot(ctx, host, "prometheus", (FAST, SLOW))?;
    let serving = Serving::start(ctx, ANY_PORT, &["--guest", guest.name()])?;
    let program = programs.join("prometheus");
    let prometheus = Prometheus::start(&program, &serving.address, &[])?;
    let native = Prometheus::start(&program, &serving.address, &["native-histograms"])?;
    let of_guest = "nestrace_io_seconds_count{layer=\"guest\",op=\"read\"}";
    let comes = prometheus.wait_for(of_guest, |found| found.len() == 2)?;
    case.holds("the guest's layer comes", comes, &serving.said());
    counts(case, &guest, &prometheus, host)?;
    quantile(ctx, case, &guest, (&prometheus, &native))?;
    native::counts(case, &guest, &serving, (&prometheus, &native))?;
    // The slow disk's latency is 80 ms: a classic bucket ends at 134 ms, a native one below the rule's 100 ms.
    for (prometheus, of_slow) in [(&prometheus, "pending"), (&native, "inactive")] {
        dashboard(case, &guest, prometheus)?;
        rules(case, prometheus, &programs, of_slow)?;
    }
    scrape_is_good(case, &prometheus, &programs, &serving)?;
    guest.kill();
    let of_guest = format!("{{__name__=~\"nestrace_.+\",guest=\"{}\"}}", guest.name());
    for prometheus in [&prometheus, &native] {
        let is_gone = prometheus.wait_for(&of_guest, <[Value]>::is_empty)?;
        case.holds("its series end with the guest", is_gone, "they stay");
        let up = prometheus.number("min_over_time(up[5m])")?;
        case.holds("every scrape was answered", up == 1.0, "one was not");
    }
    serving.stop(case)
}

/// What Prometheus has of a disk.
struct Scraped {
    qemu: u64,
    guest: u64,
    bytes: u64,
}

impl Scraped {
    fn take(prometheus: &Prometheus, guest: &Guest, op: &str) -> anyhow::Result<Self> {
        let labels = format!("guest=\"{}\",disk=\"{FAST}\",op=\"{op}\"", guest.name());
        let number = |query: String| Ok::<_, anyhow::Error>(prometheus.number(&query)? as u64);
        let count = |layer: &str| {
            number(format!(
                "nestrace_io_seconds_count{{{labels},layer=\"{layer}\"}}"
            ))
        };
        Ok(Self {
            qemu: count("qemu")?,
            guest: count("guest")?,
            bytes: number(format!("nestrace_io_bytes_total{{{labels}}}"))?,
        })
    }
}

const LOST: &str = "sum(nestrace_events_lost_total)";

fn counts(
    case: &mut Case,
    guest: &Guest,
    prometheus: &Prometheus,
    host: &HostFs,
) -> anyhow::Result<()> {
    let device = host.device();
    let of_device = |op: &str| {
        let labels = format!("device=\"{device}\",op=\"{op}\"");
        let n = format!("nestrace_io_seconds_count{{{labels},layer=\"device\"}}");
        let bytes = format!("nestrace_io_bytes_total{{{labels}}}");
        Ok::<_, anyhow::Error>((
            prometheus.number(&n)? as u64,
            prometheus.number(&bytes)? as u64,
        ))
    };
    host.sync()?;
    thread::sleep(SETTLED);
    let ops = ["read", "write"];
    let scraped = |op: &str| Scraped::take(prometheus, guest, op);
    let device_before = BlockStat::read(device)?;
    let name = device_in_guest(guest, FAST)?;
    let (in_guest, disk) = (guest_stat(guest, &name)?, guest.disk_stats(FAST)?);
    let before = [scraped(ops[0])?, scraped(ops[1])?];
    let (device_reads, device_bytes) = of_device("read")?;
    let lost = prometheus.number(LOST)?;
    guest.run_ok(&super::load(&guest.device_of(FAST)?), PATIENCE)?;
    let in_guest = guest_stat(guest, &name)?.since(&in_guest);
    let disk = guest.disk_stats(FAST)?.since(&disk);
    thread::sleep(SETTLED);
    let of_stat = BlockStat::read(device)?.since(&device_before);
    let lost = (prometheus.number(LOST)? - lost) as u64;
    let after = [scraped(ops[0])?, scraped(ops[1])?];
    // stat counts a flush without data as a write, too.
    let in_guest = [in_guest.reads, in_guest.writes - in_guest.flushes];
    let of_disk = [
        (disk.reads, disk.read_bytes),
        (disk.writes, disk.write_bytes),
    ];
    for (i, op) in ops.into_iter().enumerate() {
        let (n, bytes) = of_disk[i];
        let qemu = after[i].qemu - before[i].qemu;
        case.figure(format!("{n} {op}s, {bytes} bytes"));
        case.equal(&format!("{op}s of QEMU against QMP"), qemu, n);
        let scraped_bytes = after[i].bytes - before[i].bytes;
        case.equal(&format!("bytes of {op}s against QMP"), scraped_bytes, bytes);
        let seen = after[i].guest - before[i].guest;
        case.holds(
            &format!("{op}s of the guest against its stat"),
            seen <= in_guest[i] && in_guest[i] - seen <= MAX_MISSED,
            &format!("{seen}, expected {}", in_guest[i]),
        );
    }
    let (reads, bytes) = of_device("read")?;
    let reads = (reads - device_reads, of_stat.reads);
    let bytes = (bytes - device_bytes, of_stat.read_sectors * 512);
    nearly(case, "devices: reads against stat", reads, lost);
    nearly(case, "devices: bytes read against stat", bytes, lost);
    Ok(())
}

/// A disk with a limit of requests a second: the median of both kinds of buckets, and that of `top`, against fio's.
fn quantile(
    ctx: &LiveContext,
    case: &mut Case,
    guest: &Guest,
    (prometheus, native): (&Prometheus, &Prometheus),
) -> anyhow::Result<()> {
    let top = Top::start(ctx, "beside-prometheus", &["--guest", guest.name()])?;
    let device = guest.device_of(SLOW)?;
    let output = guest
        .run_ok(&slow_disk::reads(&device, 5), PATIENCE)?
        .stdout;
    thread::sleep(Duration::from_secs(2));
    let fio_p50 = slow_disk::median_ns(&output)? / 1e9;
    for layer in ["qemu", "guest"] {
        let labels = format!("disk=\"{SLOW}\",op=\"read\",layer=\"{layer}\"");
        let p50 = prometheus.number(&format!(
            "histogram_quantile(0.5, increase(nestrace_io_seconds_bucket{{{labels}}}[8s]))"
        ))?;
        case.figure(format!(
            "{layer}: p50 {:.1} ms, fio {:.1} ms",
            p50 * 1e3,
            fio_p50 * 1e3
        ));
        // A bucket is a power of two wide.
        case.holds(
            &format!("{layer}: the median is fio's, to within a bucket"),
            (fio_p50 / 2.0..=fio_p50 * 2.0).contains(&p50),
            &format!("{p50} against {fio_p50}"),
        );
        native::median(case, native, (&labels, layer), fio_p50)?;
    }
    let lines = top.stop(case)?;
    native::as_in_top(case, native, &lines, SLOW)
}

/// Every text under this key.
fn texts<'v>(value: &'v Value, key: &str, found: &mut Vec<&'v str>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| texts(item, key, found)),
        Value::Object(fields) => {
            for (name, field) in fields {
                match field {
                    Value::String(text) if name == key => found.push(text),
                    _ => texts(field, key, found),
                }
            }
        }
        _ => {}
    }
}

/// Every query of the dashboard has an answer: the guest is under load in the last minute.
fn dashboard(case: &mut Case, guest: &Guest, prometheus: &Prometheus) -> anyhow::Result<()> {
    let dashboard: Value = serde_json::from_str(DASHBOARD)?;
    let (mut queries, mut lists) = (Vec::new(), Vec::new());
    texts(&dashboard["panels"], "expr", &mut queries);
    texts(&dashboard["templating"], "query", &mut lists);
    let plain = |query: &str| {
        query
            .replace("$__rate_interval", "1m")
            .replace("$guest", ".+")
            .replace("$disk", ".+")
    };
    case.figure(format!("{} queries of the dashboard", queries.len()));
    case.holds("the dashboard has queries", queries.len() >= 8, "few");
    for query in queries {
        let found = prometheus.query(&plain(query));
        let said = format!("{found:?}");
        let is_good = found.is_ok_and(|found| !found.is_empty());
        case.holds(&format!("the dashboard: {query}"), is_good, &said);
    }
    let lists = lists
        .into_iter()
        .filter_map(|list| list.strip_prefix("label_values(")?.strip_suffix(')'));
    let mut n_lists = 0;
    for list in lists {
        let (metric, label) = list.rsplit_once(", ").context("read a list's query")?;
        let metric = encoded(&plain(metric));
        let values = prometheus.api(&format!("label/{label}/values?match%5B%5D={metric}"))?;
        let expected = match label {
            "guest" => vec![guest.name()],
            _ => vec![FAST, SLOW],
        };
        case.equal(
            &format!("the dashboard's {label}s"),
            values,
            serde_json::json!(expected),
        );
        n_lists += 1;
    }
    case.equal("the dashboard's lists", n_lists, 2);
    Ok(())
}

/// promtool and the running Prometheus take the alert rules, and they fire when they should.
fn rules(
    case: &mut Case,
    prometheus: &Prometheus,
    programs: &Path,
    of_slow: &str,
) -> anyhow::Result<()> {
    let promtool = programs.join("promtool");
    for arguments in [
        ["check", "rules", "rules.yml"],
        ["test", "rules", "rules_test.yml"],
    ] {
        let output = Command::new(&promtool)
            .args(arguments)
            .current_dir(prometheus.folder.path())
            .output()?;
        let said = [output.stdout, output.stderr].concat();
        let what = format!("promtool {}", arguments.join(" "));
        case.holds(
            &what,
            output.status.success(),
            &String::from_utf8_lossy(&said),
        );
    }
    let groups = prometheus.api("rules")?;
    let groups = groups["groups"].as_array().cloned().unwrap_or_default();
    let all: Vec<&Value> = groups
        .iter()
        .filter_map(|group| group["rules"].as_array())
        .flatten()
        .collect();
    case.equal("alert rules", all.len(), RULES.matches("- alert:").count());
    for rule in all {
        // The slow disk has been slow, and not for long.
        let of_slow = [of_slow];
        let states: &[&str] = match rule["name"].as_str() {
            Some("GuestDiskSlow") => &of_slow,
            // The kernel keeps an end from all programs now and then, and not for long.
            Some("NestraceLosesEvents") => &["inactive", "pending"],
            _ => &["inactive"],
        };
        let is_so = states.iter().any(|state| rule["state"] == *state);
        let is_good = rule["health"] == "ok" && is_so;
        let what = format!("{} evaluates, and is {}", rule["name"], states.join(" or "));
        case.holds(&what, is_good, &rule.to_string());
    }
    Ok(())
}

/// promtool takes a scrape, but for the help of counters: it reads the older format, whose counters have `_total` in the name of
/// the family.
fn scrape_is_good(
    case: &mut Case,
    prometheus: &Prometheus,
    programs: &Path,
    serving: &Serving,
) -> anyhow::Result<()> {
    let (text, took) = serving.scrape()?;
    case.figure(format!(
        "a scrape: {} KiB, {:.1} ms",
        text.len() >> 10,
        took.as_secs_f64() * 1e3
    ));
    let scrape = prometheus.folder.path().join("scrape");
    fs::write(&scrape, text)?;
    let output = Command::new(programs.join("promtool"))
        .args(["check", "metrics"])
        .stdin(fs::File::open(&scrape)?)
        .output()?;
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said);
    let of_format = |line: &str| line.ends_with("_total no help text");
    let is_good = said.lines().all(of_format);
    case.holds("promtool check metrics", is_good, &said);
    let targets = prometheus.api("targets?state=active")?;
    let error = &targets["activeTargets"][0]["lastError"];
    case.equal("the last scrape's error", error, &Value::from(""));
    Ok(())
}

//! `nestrace serve` under a real Prometheus: what it scraped against QMP, the guest's and the host's `/sys/block/*/stat` and fio;
//! the alert rules and the dashboard's queries.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nestrace_rig::block_stat::BlockStat;
use nestrace_rig::cache_dir;
use nestrace_rig::external_tool::Tool;
use nestrace_rig::guest::Guest;
use nestrace_rig::host_fs::HostFs;
use nestrace_rig::packages;
use nestrace_rig::recorder::Recorder;
use serde_json::Value;
use tempfile::TempDir;
use xtask::case::Case;

use super::serving::{ANY_PORT, Address, Serving};
use super::slow_disk::{self, MAX_MISSED};
use super::{LiveContext, PATIENCE, nearly};
use crate::with_agents::counts::guest_stat;
use crate::with_agents::recording::device_in_guest;

const FAST: &str = "scraped";
const SLOW: &str = "slow-scraped";
/// What was done is at Prometheus: agents send once a second, a text is a second old at most, and so is a scrape.
const SETTLED: Duration = Duration::from_millis(4500);

const RULES: &str = include_str!("../../../../packaging/nestrace-alerts.yml");
const RULES_TESTS: &str = include_str!("alerts_test.yml");
const DASHBOARD: &str = include_str!("../../../../packaging/nestrace-grafana.json");

/// The folder with Debian's `prometheus` and `promtool`: unpacked and not installed, since an installed one runs as a service.
fn programs(ctx: &LiveContext) -> anyhow::Result<PathBuf> {
    let folder = cache_dir::entry(&cache_dir::root()?, "prometheus", |folder| {
        ctx.progress.say("downloading prometheus");
        packages::update_lists()?;
        Tool::new("apt-get")
            .args(["download", "-q", "prometheus"])
            .current_dir(folder)
            .run()?;
        for archive in nestrace_rig::debian_archive::archives_in(folder) {
            Tool::new("dpkg-deb")
                .arg("-x")
                .arg(&archive)
                .arg(folder)
                .run()?;
            fs::remove_file(&archive)?;
        }
        anyhow::Ok(())
    })?;
    Ok(folder.join("usr/bin"))
}

/// A running Prometheus that scrapes one address each second. Dropping it ends it.
struct Prometheus {
    address: Address,
    _recorder: Recorder,
    /// Its data, configuration and rules.
    folder: TempDir,
}

impl Prometheus {
    fn start(program: &Path, target: &Address) -> anyhow::Result<Self> {
        let Address::Loopback(target) = target else {
            anyhow::bail!("scrape a loopback address");
        };
        let folder = tempfile::Builder::new()
            .prefix("nestrace-prometheus-")
            .tempdir()?;
        let configuration = folder.path().join("prometheus.yml");
        fs::write(folder.path().join("rules.yml"), RULES)?;
        fs::write(folder.path().join("rules_test.yml"), RULES_TESTS)?;
        fs::write(
            &configuration,
            format!(
                "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\n\
                 rule_files: [ rules.yml ]\n\
                 scrape_configs:\n  - job_name: nestrace\n    static_configs: [ {{ targets: [ \"{target}\" ] }} ]\n"
            ),
        )?;
        let option = |name: &str, path: &Path| format!("--{name}={}", path.display());
        let mut command = Command::new(program);
        command
            .arg(option("config.file", &configuration))
            .arg(option("storage.tsdb.path", &folder.path().join("data")))
            .arg("--web.listen-address=127.0.0.1:0");
        let mut recorder = Recorder::spawn(command, false)?;
        recorder.wait_for_line(&["Listening", "on"], PATIENCE)?;
        let said = recorder.stderr();
        let address = said
            .lines()
            .find(|line| line.contains("\"Listening on\""))
            .and_then(|line| {
                let (_, rest) = line.split_once("address=")?;
                rest.split(' ').next()?.parse().ok()
            });
        let address = Address::Loopback(address.context("see Prometheus' address")?);
        let deadline = Instant::now() + PATIENCE;
        while address.get("/-/ready")?.status != 200 {
            anyhow::ensure!(Instant::now() < deadline, "see Prometheus ready");
            thread::sleep(Duration::from_millis(100));
        }
        Ok(Self {
            address,
            _recorder: recorder,
            folder,
        })
    }

    /// `data` of an answer of its API.
    fn api(&self, path: &str) -> anyhow::Result<Value> {
        let answer = self.address.get(&format!("/api/v1/{path}"))?;
        let json: Value = serde_json::from_str(&answer.body)
            .with_context(|| format!("read Prometheus' answer: {}", answer.head))?;
        anyhow::ensure!(
            json["status"] == "success",
            "have Prometheus answer {path}: {json}"
        );
        Ok(json["data"].clone())
    }

    /// The answer to a query now.
    fn query(&self, query: &str) -> anyhow::Result<Vec<Value>> {
        let data = self.api(&format!("query?query={}", encoded(query)))?;
        Ok(data["result"].as_array().cloned().unwrap_or_default())
    }

    /// The only value of the answer to a query.
    fn number(&self, query: &str) -> anyhow::Result<f64> {
        let result = self.query(query)?;
        let [one] = &result[..] else {
            anyhow::bail!("get one value of {query}: {result:?}");
        };
        let value = one.pointer("/value/1").and_then(Value::as_str);
        let value = value.and_then(|text| text.parse().ok());
        value.with_context(|| format!("read the value of {query}"))
    }

    fn wait_for(&self, query: &str, is_so: impl Fn(&[Value]) -> bool) -> anyhow::Result<bool> {
        let deadline = Instant::now() + PATIENCE;
        while Instant::now() < deadline {
            if is_so(&self.query(query)?) {
                return Ok(true);
            }
            thread::sleep(Duration::from_millis(200));
        }
        Ok(false)
    }
}

/// For a place in a URL.
fn encoded(text: &str) -> String {
    let encode = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => {
            char::from(byte).to_string()
        }
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(encode).collect()
}

/// Boots the guest, serves its figures, and has Prometheus scrape them.
pub fn prometheus(ctx: &LiveContext, case: &mut Case, host: &HostFs) -> anyhow::Result<()> {
    let programs = programs(ctx)?;
    let mut guest = slow_disk::boot(ctx, host, "prometheus", (FAST, SLOW))?;
    let serving = Serving::start(ctx, ANY_PORT, &["--guest", guest.name()])?;
    let prometheus = Prometheus::start(&programs.join("prometheus"), &serving.address)?;
    let of_guest = "nestrace_io_seconds_count{layer=\"guest\",op=\"read\"}";
    let comes = prometheus.wait_for(of_guest, |found| found.len() == 2)?;
    case.holds("the guest's layer comes", comes, &serving.said());
    counts(case, &guest, &prometheus, host)?;
    quantile(case, &guest, &prometheus)?;
    dashboard(case, &guest, &prometheus)?;
    rules(case, &prometheus, &programs)?;
    scrape_is_good(case, &prometheus, &programs, &serving)?;
    guest.kill();
    let of_guest = format!("{{__name__=~\"nestrace_.+\",guest=\"{}\"}}", guest.name());
    let is_gone = prometheus.wait_for(&of_guest, <[Value]>::is_empty)?;
    case.holds("its series end with the guest", is_gone, "they stay");
    let up = prometheus.number("min_over_time(up[5m])")?;
    case.holds("every scrape was answered", up == 1.0, "one was not");
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

/// A disk with a limit of requests a second: the median of the buckets against fio's.
fn quantile(case: &mut Case, guest: &Guest, prometheus: &Prometheus) -> anyhow::Result<()> {
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
    }
    Ok(())
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
fn rules(case: &mut Case, prometheus: &Prometheus, programs: &Path) -> anyhow::Result<()> {
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
        let states: &[&str] = match rule["name"].as_str() {
            Some("GuestDiskSlow") => &["pending"],
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

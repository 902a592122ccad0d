//! The Parquet data set read back by DuckDB and by pyarrow: the sums that `analyze` says.

mod python;

pub use python::READERS;

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::Context;
use nestrace_rig::recorder;
use nestrace_trace::device_number;
use serde_json::Value;
use xtask::cargo_build::workspace;
use xtask::case::{Case, Report};

use super::Scenario;
use super::context::LiveContext;
use super::with_agents::recording::{of_a_mixed_load, of_programs};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "export",
    about: "the Parquet data set in DuckDB and pyarrow: the sums equal those of analyze",
    run,
    alone: false,
};

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    python::prepare(|line| ctx.progress.say(line))?;
    if ctx.wants("export/guest") {
        report.case("export/guest", |case| of_a_guest(ctx, case))?;
    }
    if ctx.wants("export/programs") {
        report.case("export/programs", |case| of_calls(ctx, case))?;
    }
    for capture in ["ext3-seqw-mq-ide", "ext4-mail-none-scsi"] {
        let name = format!("export/{capture}");
        if ctx.wants(&name) {
            report.case(&name, |case| of_a_capture(ctx, case, capture))?;
        }
    }
    Ok(())
}

fn of_a_guest(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    of_a_mixed_load(ctx, "export", |bundle, _| {
        let analysis = compare(ctx, case, bundle)?;
        let linked: u64 = rows(&analysis, "chains")
            .map(|chains| whole(&chains["linked"]))
            .sum();
        case.holds("chains", linked > 0, "no guest bio was followed");
        redacted(ctx, case, bundle)
    })
}

fn of_calls(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    of_programs(ctx, "export", |bundle, _| {
        let analysis = compare(ctx, case, bundle)?;
        let n: u64 = rows(&analysis, "calls").map(|row| whole(&row["n"])).sum();
        case.holds("calls", n > 500, &format!("{n} calls"));
        redacted(ctx, case, bundle)
    })
}

fn of_a_capture(ctx: &LiveContext, case: &mut Case, capture: &str) -> anyhow::Result<()> {
    let captures = workspace().join("fixtures/blktrace");
    compare(ctx, case, &captures.join(capture).join("gt"))?;
    Ok(())
}

/// Exports, reads back and compares; the analysis.
fn compare(ctx: &LiveContext, case: &mut Case, input: &Path) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir().context("make a folder for the data set")?;
    let set = folder.path().join("set");
    to_parquet(ctx, input, &set, &[])?;
    let analysis = recorder::analyze(&ctx.nestrace, input)?;
    let sums = python::read_back(&set)?;
    for engine in ["duckdb", "pyarrow"] {
        let sums = &sums[engine];
        events(case, engine, &analysis, sums);
        devices(case, engine, &analysis, sums);
        chains(case, engine, &analysis, sums);
        calls(case, engine, &analysis, sums);
    }
    let uneven = &sums["duckdb"]["uneven_calls"];
    let even = uneven.is_null() || uneven[0][0].as_u64() == Some(0);
    case.holds(
        "segments of each call sum to its latency",
        even,
        &uneven.to_string(),
    );
    ways(case, &analysis, &sums["duckdb"]["ways"]);
    for (name, of_pyarrow) in sums["pyarrow"].as_object().into_iter().flatten() {
        let of_duckdb = &sums["duckdb"][name];
        let figures = format!("{of_duckdb} in DuckDB, {of_pyarrow} in pyarrow");
        case.holds(
            &format!("both read the same {name}"),
            of_duckdb == of_pyarrow,
            &figures,
        );
    }
    let lost_parents = &sums["duckdb"]["parents"];
    let in_place = lost_parents.is_null() || whole(&lost_parents[0][0]) == 0;
    case.holds(
        "every interval has its parent",
        in_place,
        &lost_parents.to_string(),
    );
    Ok(analysis)
}

/// Adds a recording to a data set.
pub fn to_parquet(
    ctx: &LiveContext,
    input: &Path,
    set: &Path,
    more: &[&str],
) -> anyhow::Result<()> {
    let name = |path: &Path| path.to_str().map(str::to_owned).context("name the files");
    let (input, set) = (name(input)?, name(set)?);
    let mut args = vec!["export", "--format", "parquet", &input, "-o", &set];
    args.extend(more);
    let end = recorder::nestrace(&ctx.nestrace, &args).context("start nestrace export")?;
    anyhow::ensure!(end.code == Some(0), "export to Parquet: {}", end.stderr);
    Ok(())
}

/// Events by stream.
fn events(case: &mut Case, engine: &str, analysis: &Value, sums: &Value) {
    let read = table::<1>(&sums["streams"]);
    let mut expected: BTreeMap<[String; 1], Vec<u64>> = BTreeMap::new();
    for source in analysis["trace"]["sources"]
        .as_array()
        .into_iter()
        .flatten()
    {
        let events = expected.entry([guest(source)]).or_insert_with(|| vec![0]);
        events[0] += whole(&source["events"]);
    }
    case.holds(
        &format!("{engine}: events of each stream"),
        read == expected && !read.is_empty(),
        &format!("{read:?}, expected {expected:?}"),
    );
    let of_kinds: u64 = table::<2>(&sums["kinds"]).values().map(|n| n[0]).sum();
    case.equal(
        &format!("{engine}: events"),
        of_kinds,
        whole(&analysis["trace"]["events"]),
    );
    case.figure(format!("{of_kinds} events in {engine}"));
}

/// Bios queued and bytes done on each device.
fn devices(case: &mut Case, engine: &str, analysis: &Value, sums: &Value) {
    let queued = table::<2>(&sums["queued"]);
    let completed = table::<3>(&sums["completed"]);
    let bytes_of = |guest: &str, dev: &str, ops: &[u64]| -> u64 {
        let of_op = |op: &u64| completed.get(&[guest.to_owned(), dev.to_owned(), op.to_string()]);
        ops.iter().filter_map(of_op).map(|sums| sums[0]).sum()
    };
    for device in rows(analysis, "devices") {
        let what =
            |fact: &str| format!("{engine}: {fact} of {} {}", device["side"], device["name"]);
        let guest = guest(device);
        let Some(dev) = number(&device["dev"]) else {
            case.holds(&what("number"), false, &device["dev"].to_string());
            continue;
        };
        let key = [guest.clone(), dev.clone()];
        let bios = queued.get(&key).map_or(0, |sums| sums[0]);
        case.equal(
            &what("bios queued"),
            bios,
            whole(&device["counts"]["queued"]),
        );
        let bytes = &device["bytes"];
        // As the kernel counts: write-zeroes are writes.
        for (name, ops) in [("read", &[0][..]), ("write", &[1, 4]), ("discard", &[3, 5])] {
            let done = bytes_of(&guest, &dev, ops);
            case.equal(
                &what(&format!("bytes of {name}")),
                done,
                whole(&bytes[name]),
            );
        }
    }
}

/// Of a capture: what a query makes of its events alone, from bios and requests that name each other.
fn ways(case: &mut Case, analysis: &Value, sums: &Value) {
    for (key, read) in table::<2>(sums) {
        let device = rows(analysis, "devices")
            .find(|device| number(&device["dev"]).as_ref() == Some(&key[1]));
        let latency = device.map_or(&Value::Null, |device| &device["latency_ns"]);
        for (name, read) in [("d2c", read[1]), ("q2c", read[2])] {
            let what = format!("summed {name} of device {}", key[1]);
            case.equal(&what, read, whole(&latency[name]["sum"]));
        }
        case.equal("bios with both", read[0], whole(&latency["q2c"]["n"]));
    }
}

/// Bios, their summed latency, and the sum of each segment.
fn chains(case: &mut Case, engine: &str, analysis: &Value, sums: &Value) {
    let data = table::<2>(&sums["chains"]);
    let bios = table::<3>(&sums["bios"]);
    for chains in rows(analysis, "chains") {
        let what = |fact: &str| format!("{engine}: {fact} of {}", chains["guest_device"]);
        let key = [
            chains["guest"].to_string(),
            chains["guest_device"].to_string(),
        ];
        let linked = bios.get(&[key[0].clone(), key[1].clone(), "true".to_owned()]);
        let n = linked.map_or(0, |sums| sums[0]);
        case.equal(&what("linked bios"), n, whole(&chains["linked"]));
        let latency = &chains["latency_ns"]["data"];
        let names = &sums["segments"];
        let none = vec![0; 2 + names.as_array().map_or(0, Vec::len)];
        let read = data.get(&key).unwrap_or(&none);
        case.equal(&what("data bios"), read[0], whole(&latency["n"]));
        case.equal(&what("summed latency"), read[1], whole(&latency["sum"]));
        let parts: u64 = read[2..].iter().sum();
        case.equal(&what("sum of all segments"), parts, read[1]);
        let n = whole(&latency["n"]);
        segments(case, &what, (chains, n), (names, &read[2..]));
    }
}

/// The columns of segments, by name; one that the analysis leaves out was in no request.
fn segments(
    case: &mut Case,
    what: &dyn Fn(&str) -> String,
    (row, n): (&Value, u64),
    (names, read): (&Value, &[u64]),
) {
    let names: Vec<&str> = names
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    case.equal(&what("columns of segments"), read.len(), names.len());
    for (name, read_ns) in names.into_iter().zip(read) {
        let known = rows(row, "segments").find(|segment| segment["name"] == name);
        let mean = known.map_or(0.0, |segment| segment["mean_ns"].as_f64().unwrap_or(-1.0));
        let expected = mean * n as f64;
        let close = (*read_ns as f64 - expected).abs() <= 1.0 + expected * 1e-9;
        let figures = format!("{read_ns}, expected {expected}");
        case.holds(&what(&format!("{name:?} ns")), close, &figures);
    }
}

/// Calls of each program on each file: how many, their summed latency, and the sum of each segment.
fn calls(case: &mut Case, engine: &str, analysis: &Value, sums: &Value) {
    let read = table::<5>(&sums["calls"]);
    let known: Vec<&Value> = rows(analysis, "calls")
        .filter(|row| whole(&row["n"]) > 0)
        .collect();
    case.equal(&format!("{engine}: rows of calls"), read.len(), known.len());
    for row in known {
        let (process, op, file) = (&row["process"], &row["op"], &row["file"]);
        let what = |fact: &str| format!("{engine}: {fact} of {process} {op} {}", file["inode"]);
        let mount = file["mount"].as_str().filter(|mount| !mount.is_empty());
        let key = [
            row["guest"].to_string(),
            process.to_string(),
            op.to_string(),
            Value::from(mount).to_string(),
            file["inode"].to_string(),
        ];
        let names = &sums["call_segments"];
        let none = vec![0; 4 + names.as_array().map_or(0, Vec::len)];
        let read = read.get(&key).unwrap_or(&none);
        let latency = &row["latency_ns"];
        for (fact, read, expected) in [
            ("calls", read[0], &row["n"]),
            ("calls without I/O", read[1], &row["without_io"]),
            ("linked calls", read[2], &row["linked"]),
            ("summed latency", read[3], &latency["sum"]),
        ] {
            case.equal(&what(fact), read, whole(expected));
        }
        let linked = whole(&row["linked"]);
        segments(case, &what, (row, linked), (names, &read[4..]));
    }
}

/// A redacted data set has no name of the guest, its disk or its machine.
fn redacted(ctx: &LiveContext, case: &mut Case, bundle: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for the data set")?;
    let set = folder.path().join("set");
    to_parquet(ctx, bundle, &set, &["--redact"])?;
    let sums = python::read_back(&set)?;
    let guests = table::<1>(&sums["duckdb"]["streams"]);
    let guests: Vec<&str> = guests.keys().map(|[guest]| guest.as_str()).collect();
    let good = guests == ["\"-\"", "\"guest-1\""];
    case.holds("names of guests are gone", good, &format!("{guests:?}"));
    // Programs are called after their threads, mounts by numbers; files have no names.
    for row in rows(&sums["duckdb"], "programs") {
        let begins = |place: usize, with: &str| {
            let text = row[place].as_str();
            text.is_none_or(|text| text.starts_with(with))
        };
        let named = begins(0, "task") && begins(1, "mount-") && row[2].is_null();
        let unknown = row[0] == "unknown thread" && row[2].is_null();
        case.holds(
            "names of programs and files are gone",
            named || unknown,
            &row.to_string(),
        );
    }
    Ok(())
}

/// A table that was read: the first `N` columns of each row are its key, the rest numbers.
fn table<const N: usize>(rows: &Value) -> BTreeMap<[String; N], Vec<u64>> {
    let rows = rows
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_array);
    rows.filter(|row| row.len() > N)
        .map(|row| {
            let key = std::array::from_fn(|place| row[place].to_string());
            (key, row[N..].iter().map(whole).collect())
        })
        .collect()
}

/// The guest that something is of, as the data set has it.
fn guest(of: &Value) -> String {
    match &of["guest"] {
        Value::Null => "\"-\"".to_owned(),
        name => name.to_string(),
    }
}

fn rows<'a>(analysis: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    analysis[name].as_array().into_iter().flatten()
}

fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

/// `7:3` as the kernel's number.
fn number(dev: &Value) -> Option<String> {
    device_number::parse(dev.as_str()?).map(|number| number.to_string())
}

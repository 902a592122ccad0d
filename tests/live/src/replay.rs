//! Tables, fio's logs and Perfetto's traces read back by others: by Python's csv, by Perfetto's own protocol
//! definitions, and replayed by fio. The sums are those that `analyze` says.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use nestrace_rig::recorder;
use serde_json::Value;
use xtask::cargo_build::workspace;
use xtask::case::{Case, Report};

use super::Scenario;
use super::context::LiveContext;
use super::measure::under_an_image;
use super::python::Python;
use super::with_agents::recording::{DISK, FOLDER, of_a_mixed_load, of_programs};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "replay",
    about: "tables, fio's logs and Perfetto's traces read by other tools: the sums equal those of analyze",
    run,
    alone: false,
};

const READERS: Python = Python(&["perfetto==0.59.1", "protobuf==7.36.2"]);
const READ_BACK: &str = include_str!("replay/read_back.py");

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    READERS.prepare(|line| ctx.progress.say(line))?;
    if ctx.wants("replay/guest") {
        report.case("replay/guest", |case| of_a_guest(ctx, case))?;
    }
    if ctx.wants("replay/programs") {
        report.case("replay/programs", |case| of_calls(ctx, case))?;
    }
    for capture in ["ext3-seqw-mq-ide", "ext4-mail-none-scsi"] {
        let name = format!("replay/{capture}");
        if ctx.wants(&name) {
            report.case(&name, |case| of_a_capture(ctx, case, capture))?;
        }
    }
    Ok(())
}

fn of_a_guest(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    of_a_mixed_load(ctx, "replay", |bundle, guest| {
        let read = compare(ctx, case, bundle)?;
        let arrows = read["trace"]["arrows"].as_u64().unwrap_or(0);
        case.holds("arrows", arrows > 1000, &format!("{arrows} arrows"));
        replays(ctx, case, bundle, None)?;
        replays(ctx, case, bundle, Some(guest))?;
        let files = ["out.requests.csv", "out.chains.csv", "out.pftrace"];
        redacted(ctx, case, bundle, &files, &[guest, "fio"])
    })
}

fn of_calls(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    of_programs(ctx, "replay", |bundle, guest| {
        let read = compare(ctx, case, bundle)?;
        let arrows = whole(&read["trace"]["calls"]["arrows"]);
        case.holds("arrows of calls", arrows > 100, &format!("{arrows} arrows"));
        let files = ["out.calls.csv", "out.pftrace"];
        let private = [guest, "fio", FOLDER, "synced.0.0", "aio.0.0"];
        redacted(ctx, case, bundle, &files, &private)
    })
}

fn of_a_capture(ctx: &LiveContext, case: &mut Case, capture: &str) -> anyhow::Result<()> {
    let captures = workspace().join("fixtures/blktrace");
    let base = captures.join(capture).join("gt");
    let folder = tempfile::tempdir().context("make a folder for the bundle")?;
    let bundle = folder.path().join("gt.nest");
    nestrace(ctx, &["import", "blktrace"], &base, &bundle, &[])?;
    compare(ctx, case, &bundle)?;
    replays(ctx, case, &bundle, Some("guest"))
}

/// Runs nestrace with an input and an output; its messages.
fn nestrace(
    ctx: &LiveContext,
    what: &[&str],
    input: &Path,
    output: &Path,
    more: &[&str],
) -> anyhow::Result<String> {
    let name = |path: &Path| path.to_str().map(str::to_owned).context("name the files");
    let (input, output) = (name(input)?, name(output)?);
    let args = [what, &[&input, "-o", &output], more].concat();
    let end = recorder::nestrace(&ctx.nestrace, &args).context("start nestrace")?;
    anyhow::ensure!(end.code == Some(0), "nestrace {args:?}: {}", end.stderr);
    Ok(end.stderr)
}

/// Exports, reads back and compares; what was read.
fn compare(ctx: &LiveContext, case: &mut Case, bundle: &Path) -> anyhow::Result<Value> {
    let folder = tempfile::tempdir().context("make a folder for the exports")?;
    let base = folder.path().join("out");
    nestrace(ctx, &["export", "--format", "csv"], bundle, &base, &[])?;
    let trace = folder.path().join("out.pftrace");
    nestrace(
        ctx,
        &["export", "--format", "perfetto"],
        bundle,
        &trace,
        &[],
    )?;
    let read = READERS.read(READ_BACK, &base)?;
    let analysis = recorder::analyze(&ctx.nestrace, bundle)?;
    requests(case, &analysis, &read);
    chains(case, &analysis, &read);
    calls(case, &analysis, &read);
    let wrong = &read["trace"]["wrong"];
    let none_wrong = wrong.as_object().is_some_and(serde_json::Map::is_empty);
    case.holds("the trace's own rules", none_wrong, &wrong.to_string());
    Ok(read)
}

/// What is said of requests: ended, issued, bytes moved, summed D to C.
type Sums = [u64; 4];

/// By device.
fn requests(case: &mut Case, analysis: &Value, read: &Value) {
    let table = table_of::<4, 4>(&read["requests"]);
    let slices = table_of_slices(read);
    for device in rows(analysis, "devices") {
        let text = |key: &str| device[key].as_str().unwrap_or_default().to_owned();
        let what = |fact: &str| format!("{fact} of {} {}", text("side"), text("name"));
        let of_op = |op: &str| -> Sums {
            let key = [text("side"), text("guest"), text("name"), op.to_owned()];
            table.get(&key).copied().unwrap_or_default()
        };
        let data = ["read", "write", "discard"].map(of_op);
        let counts = &device["counts"];
        let ended: u64 = data.iter().map(|sums| sums[0]).sum();
        case.equal(&what("requests"), ended, whole(&counts["completed"]));
        let flushes = of_op("flush");
        case.equal(
            &what("flushes"),
            flushes[1],
            whole(&counts["device_flushes"]),
        );
        for (op, sums) in ["read", "write", "discard"].iter().zip(data) {
            let bytes = whole(&device["bytes"][op]);
            case.equal(&what(&format!("bytes of {op}")), sums[2], bytes);
        }
        if text("side") != "host" {
            continue;
        }
        let d2c: u64 = data.iter().chain([&flushes]).map(|sums| sums[3]).sum();
        let drawn = slices.get(&[format!("host {}", text("name")), "requests".to_owned()]);
        let drawn = drawn.copied().unwrap_or_default();
        case.equal(&what("drawn D to C"), drawn[1], d2c);
        // A request without a recorded C counts as in flight until its address is used again. The machine's own
        // disk is always busy, so its requests also cross the edges of the recording.
        let whole_record =
            under_an_image(device) && whole(&device["check"]["completions_missed"]) == 0;
        let mean = device["queue_depth"]["mean"].as_f64().unwrap_or(0.0);
        let expected = mean * whole(&analysis["trace"]["duration_ns"]) as f64;
        let close = (d2c as f64 - expected).abs() <= 1000.0 + expected * 1e-6;
        let figures = format!("{d2c}, expected {expected}");
        case.holds(
            &what("time at the device"),
            close || !whole_record,
            &figures,
        );
    }
}

/// By disk.
fn chains(case: &mut Case, analysis: &Value, read: &Value) {
    let table = table_of::<2, 4>(&read["chains"]["disks"]);
    let segments = table_of::<3, 1>(&read["chains"]["segments"]);
    let slices = table_of_slices(read);
    case.equal("uneven chains", whole(&read["chains"]["uneven"]), 0);
    for chains in rows(analysis, "chains") {
        let text = |key: &str| chains[key].as_str().unwrap_or_default().to_owned();
        let what = |fact: &str| format!("{fact} of {}", text("guest_device"));
        let key = [text("guest"), text("guest_device")];
        let [told, linked, data_ns, all_ns] = table.get(&key).copied().unwrap_or_default();
        let unfinished = whole(&chains["unlinked"]["after_end"]);
        let bios = whole(&chains["guest_bios"]);
        let in_range = (bios - unfinished.min(bios)..=bios).contains(&told);
        case.holds(&what("bios"), in_range, &format!("{told} of {bios}"));
        case.equal(&what("linked bios"), linked, whole(&chains["linked"]));
        let latency = &chains["latency_ns"]["data"];
        case.equal(&what("summed latency"), data_ns, whole(&latency["sum"]));
        for segment in rows(chains, "segments") {
            let name = segment["name"].as_str().unwrap_or_default();
            let key = [text("guest"), text("guest_device"), name.to_owned()];
            let ns = segments.get(&key).map_or(0, |sums| sums[0]);
            let mean = segment["mean_ns"].as_f64().unwrap_or(-1.0);
            let expected = mean * whole(&latency["n"]) as f64;
            let close = (ns as f64 - expected).abs() <= 1.0 + expected * 1e-9;
            let figures = format!("{ns}, expected {expected}");
            case.holds(&what(&format!("{name} ns")), close, &figures);
        }
        let group = format!("{} {}", text("guest"), text("guest_device"));
        let drawn: Vec<[u64; 2]> = slices
            .iter()
            .filter(|([of, name], _)| *of == group && name == "guest: bios")
            .map(|(_, sums)| *sums)
            .collect();
        let n: u64 = drawn.iter().map(|sums| sums[0]).sum();
        let ns: u64 = drawn.iter().map(|sums| sums[1]).sum();
        case.equal(&what("drawn bios"), n, told);
        case.equal(&what("drawn latency"), ns, all_ns);
    }
}

/// By program, file and operation; and by thread, as drawn.
fn calls(case: &mut Case, analysis: &Value, read: &Value) {
    let table = table_of::<5, 5>(&read["calls"]["rows"]);
    let segments = table_of::<6, 1>(&read["calls"]["segments"]);
    let known: Vec<&Value> = rows(analysis, "calls")
        .filter(|row| whole(&row["n"]) > 0)
        .collect();
    case.equal("rows of calls", table.len(), known.len());
    case.equal("uneven calls", whole(&read["calls"]["uneven"]), 0);
    for row in known {
        let file = &row["file"];
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let inode = file["inode"].as_u64();
        let key = [
            text(&row["guest"]),
            text(&row["process"]),
            text(&row["op"]),
            text(&file["mount"]),
            inode.map_or_else(String::new, |inode| inode.to_string()),
        ];
        let what = |fact: &str| format!("{fact} of {} {} {}", key[1], key[2], key[4]);
        let [n, without_io, linked, bios, latency_ns] =
            table.get(&key).copied().unwrap_or_default();
        case.equal(&what("calls"), n, whole(&row["n"]));
        case.equal(
            &what("calls without I/O"),
            without_io,
            whole(&row["without_io"]),
        );
        case.equal(&what("linked calls"), linked, whole(&row["linked"]));
        case.equal(
            &what("summed latency"),
            latency_ns,
            whole(&row["latency_ns"]["sum"]),
        );
        // In the row a bio counts for the first call that waited for it.
        let first = whole(&row["waited"]["bios"]);
        case.holds(
            &what("bios"),
            bios >= first,
            &format!("{bios}, at least {first}"),
        );
        for segment in rows(row, "segments") {
            let name = text(&segment["name"]);
            let [guest, process, op, mount, inode] = key.clone();
            let key = [guest, process, op, mount, inode, name.clone()];
            let ns = segments.get(&key).map_or(0, |sums| sums[0]);
            let mean = segment["mean_ns"].as_f64().unwrap_or(-1.0);
            let expected = mean * whole(&row["linked"]) as f64;
            let close = (ns as f64 - expected).abs() <= 1.0 + expected * 1e-9;
            let figures = format!("{ns}, expected {expected}");
            case.holds(&what(&format!("{name} ns")), close, &figures);
        }
    }
    drawn_calls(case, read);
}

/// Each thread's calls are on its track, each with an arrow to every bio that it waited for and its segments as notes.
fn drawn_calls(case: &mut Case, read: &Value) {
    let slices = table_of_slices(read);
    for ([guest, process, tid], sums) in table_of::<3, 2>(&read["calls"]["threads"]) {
        let track = [format!("{guest} programs"), format!("{process} {tid}")];
        let drawn = slices.get(&track).copied().unwrap_or_default();
        let what = |fact: &str| format!("{fact} of thread {tid}");
        case.equal(&what("drawn calls"), drawn[0], sums[0]);
        case.equal(&what("drawn latency"), drawn[1], sums[1]);
    }
    let trace = &read["trace"];
    let bios: u64 = table_of::<5, 5>(&read["calls"]["rows"])
        .values()
        .map(|sums| sums[3])
        .sum();
    case.equal("arrows to bios", whole(&trace["calls"]["arrows"]), bios);
    let mut noted: BTreeMap<String, u64> = BTreeMap::new();
    for ([.., name], [ns]) in table_of::<6, 1>(&read["calls"]["segments"]) {
        *noted.entry(name).or_default() += ns;
    }
    for (name, ns) in noted {
        let of_trace = whole(&trace["noted"][format!("{name}_ns")]);
        case.equal(&format!("noted {name}"), of_trace, ns);
    }
}

/// Replays each device's log into a file and compares what fio has counted.
fn replays(
    ctx: &LiveContext,
    case: &mut Case,
    bundle: &Path,
    guest: Option<&str>,
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for the logs")?;
    let base = folder.path().join("out");
    let of_guest = guest.map_or(vec![], |guest| vec!["--guest", guest]);
    nestrace(
        ctx,
        &["export", "--format", "fio"],
        bundle,
        &base,
        &of_guest,
    )?;
    let analysis = recorder::analyze(&ctx.nestrace, bundle)?;
    let side = if guest.is_some() { "guest" } else { "host" };
    for device in rows(&analysis, "devices").filter(|device| device["side"] == side) {
        let name = device["name"]
            .as_str()
            .unwrap_or_default()
            .replace(':', "-");
        let log = folder.path().join(format!("out.{name}.iolog"));
        replay(case, device, &log, folder.path().join("target"))
            .with_context(|| format!("replay {name}"))?;
    }
    Ok(())
}

fn replay(case: &mut Case, device: &Value, log: &Path, target: PathBuf) -> anyhow::Result<()> {
    let text = fs::read_to_string(log).with_context(|| format!("read {}", log.display()))?;
    let ends = text.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        Some(words.get(3)?.parse::<u64>().ok()? + words.get(4)?.parse::<u64>().ok()?)
    });
    // As large as the last byte that is read; holes read as zeroes.
    let size = ends.max().unwrap_or(0).max(4096);
    fs::File::create(&target)?.set_len(size)?;
    let fio = Command::new("fio")
        .args(["--name=replay", "--ioengine=psync", "--output-format=json"])
        .args(["--replay_no_stall=1", "--thread"])
        .arg(format!("--read_iolog={}", log.display()))
        .arg(format!("--replay_redirect={}", target.display()))
        .output()
        .context("start fio")?;
    let printed = String::from_utf8_lossy(&fio.stdout);
    let stderr = String::from_utf8_lossy(&fio.stderr);
    anyhow::ensure!(fio.status.success(), "fio: {stderr}");
    let json = printed.find('{').map_or("", |at| &printed[at..]);
    let report: Value = serde_json::from_str(json).context("read what fio printed")?;
    let job = &report["jobs"][0];
    let what = |fact: &str| format!("fio: {fact} of {} {}", device["side"], device["name"]);
    // Requests whose C was not recorded are in the log as well. The machine's own disk never rests: its requests cross
    // both edges of a recording, and only those that were issued in it are in the log.
    let at_rest = device["side"] != "host" || under_an_image(device);
    let missed = &device["check"]["missed"]["bytes"];
    for op in ["read", "write"] {
        let moved = whole(&job[op]["io_bytes"]);
        let (n, logged) = lines_of(&text, op);
        case.equal(&what(op), whole(&job[op]["total_ios"]), n);
        case.equal(&what(&format!("bytes of {op}")), moved, logged);
        if at_rest {
            let ended = whole(&device["bytes"][op]) + whole(&missed[op]);
            case.equal(&what(&format!("bytes of {op} in the log")), logged, ended);
        }
    }
    let syncs = text.matches(" sync ").count() as u64;
    case.equal(
        &what("flushes in the log"),
        syncs,
        whole(&device["counts"]["device_flushes"]),
    );
    case.equal(&what("flushes"), whole(&job["sync"]["total_ios"]), syncs);
    Ok(())
}

/// Lines of a log with this action, and their bytes.
fn lines_of(log: &str, action: &str) -> (u64, u64) {
    let lengths = log.lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let is_of_it = words.get(2) == Some(&action);
        is_of_it.then(|| words.get(4)?.parse::<u64>().ok())?
    });
    lengths.fold((0, 0), |(n, bytes), length| (n + 1, bytes + length))
}

/// No name of the guest and none of these is left in the tables and the trace.
fn redacted(
    ctx: &LiveContext,
    case: &mut Case,
    bundle: &Path,
    files: &[&str],
    private: &[&str],
) -> anyhow::Result<()> {
    let folder = tempfile::tempdir().context("make a folder for the exports")?;
    let base = folder.path().join("out");
    nestrace(
        ctx,
        &["export", "--format", "csv"],
        bundle,
        &base,
        &["--redact"],
    )?;
    let trace = folder.path().join("out.pftrace");
    nestrace(
        ctx,
        &["export", "--format", "perfetto"],
        bundle,
        &trace,
        &["--redact"],
    )?;
    for name in files {
        let bytes = fs::read(folder.path().join(name))?;
        let text = String::from_utf8_lossy(&bytes);
        let always = [DISK, "qemu-system", "disk.raw"];
        for private in private.iter().chain(&always) {
            let gone = !text.contains(private);
            case.holds(
                &format!("{private} is gone from {name}"),
                gone,
                "it is there",
            );
        }
        case.holds(name, text.contains("guest-1"), "no guest-1 in it");
    }
    Ok(())
}

/// Slices by group and track: how many and how long.
fn table_of_slices(read: &Value) -> BTreeMap<[String; 2], [u64; 2]> {
    table_of(&read["trace"]["slices"])
}

/// A table that was read: the first `N` columns of each row are its key, the rest numbers.
fn table_of<const N: usize, const M: usize>(rows: &Value) -> BTreeMap<[String; N], [u64; M]> {
    let rows = rows.as_array().into_iter().flatten();
    rows.map(|row| {
        let key = std::array::from_fn(|place| row[place].as_str().unwrap_or_default().to_owned());
        (key, std::array::from_fn(|place| whole(&row[N + place])))
    })
    .collect()
}

fn rows<'a>(of: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    of[name].as_array().into_iter().flatten()
}

fn whole(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

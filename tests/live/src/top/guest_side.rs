//! The guest's side of a disk in `nestrace top`: what the agent sums against `/sys/block/*/stat` of the guest and fio, while
//! agents end and start, and while something else has the agent's port.

use std::thread;
use std::time::Duration;

use anyhow::Context;
use nestrace_rig::guest::Guest;
use nestrace_rig::host_fs::HostFs;
use serde_json::Value;
use xtask::case::Case;

use super::slow_disk::{self, AGENT_LOADS, MAX_MISSED};
use super::{INTERVAL, LiveContext, PATIENCE, Top, sum};
use crate::with_agents::counts::guest_stat;
use crate::with_agents::recording::device_in_guest;

const FAST: &str = "fast";
const SLOW: &str = "slow-in-guest";

/// Boots the guest, and has its agent sum.
pub fn guest_side(ctx: &LiveContext, case: &mut Case, host: &HostFs) -> anyhow::Result<()> {
    let guest = slow_disk::boot(ctx, host, "top-agent", (FAST, SLOW))?;
    let top = Top::start(ctx, "guest-side", &["--guest", guest.name()])?;
    case.holds("its layer comes", top.wait_until(has_layer)?, &said(&top)?);
    counts(case, &guest, &top)?;
    latency(case, &guest, &top)?;
    stopped(case, &guest, &top)?;
    recorded(ctx, case, &guest, &top)?;
    restarted(case, &guest, &top)?;
    top.stop(case)?;
    Ok(())
}

fn rows(line: &Value) -> impl Iterator<Item = &Value> {
    let rows = line["disks"].as_array().into_iter().flatten();
    rows.filter(|row| row["disk"] == FAST || row["disk"] == SLOW)
}

fn has_layer(line: &Value) -> bool {
    rows(line).count() > 0 && rows(line).all(|row| !row["latency_ns"]["guest"].is_null())
}

/// Why all rows have none.
fn why_none(line: &Value) -> Option<&str> {
    let mut rows = rows(line);
    let first = rows.next()?["no_guest"].as_str()?;
    rows.all(|row| row["latency_ns"]["guest"].is_null())
        .then_some(first)
}

fn said(top: &Top) -> anyhow::Result<String> {
    let lines = top.lines()?;
    let said = lines.last().and_then(why_none).unwrap_or("nothing");
    Ok(said.to_owned())
}

/// Waits until all rows say so.
fn wait_for_none(case: &mut Case, top: &Top, what: &str, why: &str) -> anyhow::Result<()> {
    let is_so = |line: &Value| why_none(line).is_some_and(|said| said.contains(why));
    case.holds(what, top.wait_until(is_so)?, &said(top)?);
    Ok(())
}

/// Waits until what was done before is in the lines.
fn settle() {
    thread::sleep(Duration::from_millis(2500) + 2 * INTERVAL);
}

fn counts(case: &mut Case, guest: &Guest, top: &Top) -> anyhow::Result<()> {
    settle();
    let n_before = top.lines()?.len();
    let device = device_in_guest(guest, FAST)?;
    let before = guest_stat(guest, &device)?;
    guest.run_ok(&super::load(&guest.device_of(FAST)?), PATIENCE)?;
    let stat = guest_stat(guest, &device)?.since(&before);
    settle();
    let lines = top.lines()?;
    let lines = lines.get(n_before..).unwrap_or_default();
    case.figure(format!("{} + {}", stat.reads, stat.writes - stat.flushes));
    // stat counts a flush without data as a write, too.
    let writes = stat.writes - stat.flushes;
    for (op, expected) in [("read", stat.reads), ("write", writes)] {
        let row = [("disk", FAST), ("op", op)];
        let in_guest = sum(lines, "disks", &row, "/latency_ns/guest/n");
        if in_guest != expected {
            case.figure(format!("{op}: {in_guest} of {expected}"));
        }
        case.holds(
            &format!("{op} against the guest's stat"),
            in_guest <= expected && expected - in_guest <= MAX_MISSED,
            &format!("{in_guest}, expected {expected}"),
        );
    }
    let row = [("disk", FAST), ("op", "flush")];
    let flushes = sum(lines, "disks", &row, "/latency_ns/guest/n");
    case.equal("flushes against the guest's stat", flushes, stat.flushes);
    Ok(())
}

/// What the agent has used: ticks of a hundredth of a second, and KiB of memory now.
fn agent_use(guest: &Guest) -> anyhow::Result<(u64, u64)> {
    let script = "cd /proc/$(cat /run/agent.pid) && cut -d' ' -f14,15 stat && grep VmRSS status";
    let text = guest.run_ok(script, PATIENCE)?.stdout;
    let numbers: Vec<u64> = text
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    match numbers[..] {
        [user, system, kib] => Ok((user + system, kib)),
        _ => anyhow::bail!("see what the agent has used: {text}"),
    }
}

/// A disk with a limit of requests a second: fio and the agent see the same wait.
fn latency(case: &mut Case, guest: &Guest, top: &Top) -> anyhow::Result<()> {
    let n_before = top.lines()?.len();
    let device = guest.device_of(SLOW)?;
    let (ticks_before, _) = agent_use(guest)?;
    let output = guest
        .run_ok(&slow_disk::reads(&device, 5), PATIENCE)?
        .stdout;
    let (ticks, kib) = agent_use(guest)?;
    case.figure(format!(
        "agent: {} ms of processor in some 6 s, {} MiB",
        (ticks - ticks_before) * 10,
        kib >> 10
    ));
    settle();
    let fio_p50 = slow_disk::median_ns(&output)?;
    let lines = top.lines()?;
    let of_load = lines.iter().skip(n_before).flat_map(rows);
    let of_load = of_load.filter(|row| row["disk"] == SLOW && row["op"] == "read");
    let fullest = of_load
        .max_by_key(|row| row.pointer("/latency_ns/guest/n").and_then(Value::as_u64))
        .context("see a row")?;
    let layer = &fullest["latency_ns"]["guest"];
    let p50 = layer["p50"].as_f64().context("see a median")?;
    let qemu = fullest["latency_ns"]["qemu"]["p50"].as_f64().unwrap_or(0.0);
    case.figure(format!(
        "p50 {:.2} ms, fio {:.2} ms, QEMU {:.2} ms",
        p50 / 1e6,
        fio_p50 / 1e6,
        qemu / 1e6
    ));
    // A bucket is an eighth wide.
    case.holds(
        "the median is fio's, to within a bucket",
        (p50 - fio_p50).abs() <= fio_p50 / 8.0 * 1.2,
        &format!("{p50} against {fio_p50}"),
    );
    Ok(())
}

/// A guest that stands still holds up nothing.
fn stopped(case: &mut Case, guest: &Guest, top: &Top) -> anyhow::Result<()> {
    guest.qmp("stop", Value::Null)?;
    wait_for_none(case, top, "a paused guest has no layer", "silent")?;
    let n_lines = top.lines()?.len();
    thread::sleep(6 * INTERVAL);
    let n_more = top.lines()?.len() - n_lines;
    case.holds("lines go on", n_more >= 4, &n_more.to_string());
    guest.qmp("cont", Value::Null)?;
    case.holds("it comes back", top.wait_until(has_layer)?, &said(top)?);
    Ok(())
}

/// A recording gets the agent's port, and top has it again afterwards.
fn recorded(ctx: &LiveContext, case: &mut Case, guest: &Guest, top: &Top) -> anyhow::Result<()> {
    let bundle = ctx.bundle("beside-top");
    let output = std::process::Command::new(&ctx.nestrace)
        .args([
            "record",
            "--force",
            "--duration",
            "4",
            "--guest",
            guest.name(),
            "-o",
        ])
        .arg(&bundle)
        .output()?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    case.holds("a recording beside it", output.status.success(), &stderr);
    let is_live = stderr.contains("live (ebpf");
    case.holds("the recording has the agent", is_live, &stderr);
    ctx.discard(&bundle);
    case.holds("top has it again", top.wait_until(has_layer)?, &said(top)?);
    let lines = top.lines()?;
    let gave_way = lines.iter().filter_map(why_none);
    let gave_way = gave_way
        .filter(|why| why.contains("another program"))
        .count();
    case.holds("it said why", gave_way > 0, "it did not");
    Ok(())
}

fn restarted(case: &mut Case, guest: &Guest, top: &Top) -> anyhow::Result<()> {
    guest.kill_agent("KILL")?;
    wait_for_none(case, top, "no agent, no layer", "silent")?;
    guest.start_agent("")?;
    case.holds(
        "the next agent's layer comes",
        top.wait_until_within(has_layer, AGENT_LOADS)?,
        &said(top)?,
    );
    guest.kill_agent("TERM")?;
    guest.start_agent("--backend blktrace")?;
    wait_for_none(case, top, "blktrace does not sum", "--backend blktrace")?;
    Ok(())
}

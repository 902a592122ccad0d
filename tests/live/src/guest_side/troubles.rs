//! What happens to an agent and to its guest while they are recorded.

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nestrace_trace::manifest::Gap;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use xtask::case::Case;

use super::sides::{NOTICED, chains_hold, events_so_far, record, sides, wait_agent, wait_manifest};
use crate::stage::{CLOSED, DISK, Stage, has_notice, manifest};

const A_WHILE: Duration = Duration::from_millis(1500);

/// No agent serves the port: only the host is recorded, and a hint says why.
pub fn absent(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let mut recording = stage.record(&[])?;
    recording
        .recorder
        .wait_for_line(&["no", "agent", stage.guest.name()], NOTICED)?;
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    let manifest = manifest(&ended.bundle)?;
    case.equal("guest_sides", manifest.guest_sides.len(), 0);
    case.holds(
        "a notice says so",
        has_notice(&manifest, "agent_none"),
        &ended.end.stderr,
    );
    let none = |key: &str| analysis[key].as_array().is_some_and(Vec::is_empty);
    case.holds("no clocks", none("clocks"), &analysis["clocks"].to_string());
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// An agent that comes during a recording joins it.
pub fn late(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let mut recording = stage.record(&[])?;
    thread::sleep(A_WHILE);
    stage.guest.start_agent("--backend ebpf")?;
    wait_agent(stage, &mut recording)?;
    thread::sleep(A_WHILE);
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    let sides = sides(&ended.bundle)?;
    case.equal("guest_sides", sides.len(), 1);
    case.holds("guest events", sides.iter().all(|(_, n)| *n > 100), "few");
    chains_hold(case, stage, &analysis)?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// Before and after a recording, an idle agent has nothing attached to the guest's kernel.
pub fn idle(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    case.equal("attached before", attached(stage)?, 0);
    let recording = record(stage)?;
    let during = attached(stage)?;
    case.holds("attached meanwhile", during > 4, &during.to_string());
    let ended = recording.stop(Signal::SIGINT)?;
    stage.ended_well(case, &ended, "interrupted")?;
    case.figure(format!("{during} programs attached while it records"));
    case.equal("attached afterwards", attached(stage)?, 0);
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// Programs that the agent has attached: each is an open file.
fn attached(stage: &Stage<'_>) -> anyhow::Result<usize> {
    let files = "ls -l /proc/$(cat /run/agent.pid)/fd";
    let listed = stage.guest.run_ok(files, CLOSED)?.stdout;
    let is_link = |line: &&str| line.contains("anon_inode:bpf") && line.contains("link");
    let is_tracepoint = |line: &&str| line.contains("bpf-raw-tracepoint");
    anyhow::ensure!(
        listed.contains("bpf"),
        "see the agent's programs in {listed}"
    );
    Ok(listed
        .lines()
        .filter(|line| is_link(line) || is_tracepoint(line))
        .count())
}

/// An agent that hangs delays nothing; the gap is reported.
pub fn stuck(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = record(stage)?;
    thread::sleep(A_WHILE);
    let began = Instant::now();
    stage
        .guest
        .run_ok("kill -STOP $(cat /run/agent.pid)", CLOSED)?;
    wait_manifest(&recording.bundle, "the agent's silence", |manifest| {
        has_notice(manifest, "agent_silent")
    })?;
    let ended = recording.stop(Signal::SIGINT)?;
    stage
        .guest
        .run_ok("kill -CONT $(cat /run/agent.pid)", CLOSED)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    gap_is_told(case, stage, &ended.bundle, "was silent", began)?;
    chains_hold(case, stage, &analysis)?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// Of the time without the guest's events the manifest has a gap, no longer than the time since `began`, and the report a
/// line.
fn gap_is_told(
    case: &mut Case,
    stage: &Stage<'_>,
    bundle: &Path,
    words: &str,
    began: Instant,
) -> anyhow::Result<()> {
    let longest = began.elapsed() + A_WHILE;
    let gaps: Vec<Gap> = sides(bundle)?
        .into_iter()
        .flat_map(|(side, _)| side.gaps)
        .collect();
    let lasted = |gap: &Gap| Duration::from_nanos(gap.to_host_ns.saturating_sub(gap.from_host_ns));
    let is_true = |gap: &Gap| lasted(gap) > A_WHILE / 2 && lasted(gap) < longest;
    case.holds(
        "the gap is in the manifest",
        gaps.iter().any(is_true),
        &format!("{gaps:?}"),
    );
    let text = stage.text(bundle)?;
    case.holds("the report tells of it", text.contains(words), &text);
    Ok(())
}

/// An agent is killed and another one started: the recording goes on with both halves.
pub fn killed(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = record(stage)?;
    thread::sleep(A_WHILE);
    let began = Instant::now();
    stage.guest.kill_agent("KILL")?;
    thread::sleep(A_WHILE);
    let before = events_so_far(&recording.bundle)?;
    stage.guest.start_agent("--backend ebpf")?;
    let deadline = Instant::now() + 4 * NOTICED;
    while events_so_far(&recording.bundle)? < before + 200 {
        anyhow::ensure!(Instant::now() < deadline, "see events of the second agent");
        thread::sleep(Duration::from_millis(100));
    }
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    let after: usize = sides(&ended.bundle)?.iter().map(|(_, n)| n).sum();
    case.holds(
        "events before and after",
        before > 100 && after > before + 100,
        &format!("{before}, then {after}"),
    );
    gap_is_told(case, stage, &ended.bundle, "again", began)?;
    chains_hold(case, stage, &analysis)?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// A disk that grows while it is recorded stays tied to its image.
pub fn resized_disk(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    const GROWN: u64 = 64 << 20;
    stage.load()?;
    let recording = record(stage)?;
    thread::sleep(A_WHILE);
    let size = json!({ "device": DISK, "size": GROWN });
    stage.guest.qmp("block_resize", size)?;
    let device = stage.guest.device_of(DISK)?;
    let grown =
        format!("while [ $(blockdev --getsize64 {device}) != {GROWN} ]; do sleep 0.1; done");
    stage.guest.run_ok(&grown, CLOSED)?;
    // The agent tells what has changed.
    thread::sleep(2 * A_WHILE);
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    chains_hold(case, stage, &analysis)?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// The guest stands still for a while: its clock too, and nothing linked is impossible.
pub fn paused(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = record(stage)?;
    thread::sleep(A_WHILE);
    let began = Instant::now();
    stage.guest.qmp("stop", Value::Null)?;
    thread::sleep(2 * A_WHILE);
    stage.guest.qmp("cont", Value::Null)?;
    thread::sleep(2 * A_WHILE);
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    chains_hold(case, stage, &analysis)?;
    let clock = &analysis["clocks"][0];
    let pieces = clock["pieces"].as_u64().unwrap_or(0);
    case.figure(format!("{pieces} pieces of the clock"));
    case.holds(
        "the pause ends a piece of the clock",
        pieces >= 2,
        &clock.to_string(),
    );
    gap_is_told(case, stage, &ended.bundle, "was silent", began)?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// The guest is reset: its second life is another side, with a clock of its own.
pub fn reset(stage: &Stage<'_>, case: &mut Case) -> anyhow::Result<()> {
    stage.load()?;
    let recording = record(stage)?;
    thread::sleep(A_WHILE);
    let began = Instant::now();
    stage.guest.qmp("system_reset", Value::Null)?;
    stage.guest.wait_for_reboot()?;
    stage.guest.start_agent("--backend ebpf")?;
    // Beside a load its programs are verified for minutes.
    stage.guest.wait_for_agent(4 * NOTICED)?;
    stage.load()?;
    wait_manifest(&recording.bundle, "the second side", |manifest| {
        manifest
            .guest_sides
            .get(1)
            .is_some_and(|side| side.live_mono_ns > 0)
    })?;
    thread::sleep(2 * A_WHILE);
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    let sides = sides(&ended.bundle)?;
    case.equal("guest_sides", sides.len(), 2);
    for (side, n) in &sides {
        case.holds(
            &format!("events in {}", side.file),
            *n > 100,
            &n.to_string(),
        );
    }
    let clocks = analysis["clocks"].as_array().map_or(0, Vec::len);
    case.equal("clocks", clocks, 2);
    gap_is_told(case, stage, &ended.bundle, "rebooted", began)?;
    chains_hold(case, stage, &analysis)?;
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

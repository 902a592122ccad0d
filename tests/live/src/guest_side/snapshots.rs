//! A guest that is set to other times while it is recorded: a snapshot of it is loaded, then a later one.

use std::thread;
use std::time::Duration;

use nestrace_rig::guest::GuestSpec;
use nestrace_rig::stack::{DiskStack, ImageFormat};
use nix::sys::signal::Signal;
use serde_json::json;
use xtask::case::{Case, Report};

use super::sides::{NOTICED, chains_hold, record, sides, wait_manifest};
use crate::context::LiveContext;
use crate::stage::{CLOSED, Stage, has_notice, manifest};

const A_WHILE: Duration = Duration::from_millis(1500);
/// Between the snapshots. The guest has gone on for some of it when it goes ahead, and then 5 s and a quarter of the
/// time since pass for a step of its clock.
const JUMP: Duration = Duration::from_secs(30);

/// The only case.
pub fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    report.case("guest-side/snapshots", |case| back_and_ahead(ctx, case))?;
    Ok(())
}

/// After each jump the guest is recorded on, as a side of its own with a clock of its own, and the recording says why.
fn back_and_ahead(ctx: &LiveContext, case: &mut Case) -> anyhow::Result<()> {
    let stack = DiskStack {
        // It keeps the guest's memory too.
        format: ImageFormat::Qcow2,
        ..DiskStack::RAW
    };
    let agent = ctx.agent()?.to_owned();
    let stage = Stage::boot_on(ctx, "snapshots", stack, 3 << 30, |spec| GuestSpec {
        agent: Some(agent),
        memory_mib: 768,
        ..spec
    })?;
    // The time stamp counter of a translated guest goes on where a snapshot is loaded; the HPET is in the snapshot.
    let hpet = "cd /sys/devices/system/clocksource/clocksource0 && echo hpet > current_clocksource && grep hpet current_clocksource";
    stage.guest.run_ok(hpet, CLOSED)?;
    stage.guest.start_agent("--backend ebpf")?;
    stage.guest.wait_for_agent(4 * NOTICED)?;
    stage.load()?;
    let recording = record(&stage)?;
    thread::sleep(A_WHILE);
    monitor(&stage, "savevm early")?;
    thread::sleep(JUMP);
    monitor(&stage, "savevm late")?;
    thread::sleep(A_WHILE);
    for (snapshot, told, side) in [
        ("early", "guest_reverted", 1),
        ("late", "guest_clock_ahead", 2),
    ] {
        monitor(&stage, &format!("loadvm {snapshot}"))?;
        wait_manifest(&recording.bundle, told, |manifest| {
            let begun = manifest.guest_sides.get(side);
            has_notice(manifest, told) && begun.is_some_and(|side| side.live_mono_ns > 0)
        })?;
        thread::sleep(2 * A_WHILE);
    }
    let ended = recording.stop(Signal::SIGINT)?;
    let analysis = stage.ended_well(case, &ended, "interrupted")?;
    let sides = sides(&ended.bundle)?;
    case.equal("guest_sides", sides.len(), 3);
    for (side, n) in &sides {
        case.holds(
            &format!("events in {}", side.file),
            *n > 100,
            &n.to_string(),
        );
    }
    let clocks = analysis["clocks"].as_array().map_or(0, Vec::len);
    case.equal("clocks", clocks, 3);
    chains_hold(case, &stage, &analysis)?;
    let manifest = manifest(&ended.bundle)?;
    let ahead = manifest
        .notices
        .iter()
        .find(|notice| notice.what == "guest_clock_ahead");
    case.figure(ahead.map_or_else(String::new, |notice| notice.message.clone()));
    stage.ctx.discard(&ended.bundle);
    Ok(())
}

/// A command for people: QMP has none that is done when it answers.
fn monitor(stage: &Stage<'_>, line: &str) -> anyhow::Result<()> {
    let arguments = json!({ "command-line": line });
    let said = stage.guest.qmp("human-monitor-command", arguments)?;
    let said = said.as_str().unwrap_or_default().trim();
    anyhow::ensure!(said.is_empty(), "{line}: {said}");
    Ok(())
}

//! The guest's side in all its moods: agents that come late, die, fall silent, lie; guests that
//! pause, reset, and go back and ahead in time; two guests at once; both backends side by side; names of files; the clock against round trips.

pub(super) mod backends;
mod clock;
mod hostile;
mod io;
mod light;
mod modules;
mod names;
mod sides;
mod snapshots;
mod systemd;
mod troubles;
mod two_guests;
mod vsock;

use nestrace_rig::guest::GuestSpec;
use xtask::case::Report;
use xtask::guest_programs;

use super::Scenario;
use super::context::LiveContext;
use super::stage::{Body, Stage, run_cases};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "guest-side",
    about: "agents that come late, die, lie; paused, reset and reverted guests; backends, clocks, names of files, vsock",
    run,
    alone: false,
};

const HOSTILE: &str = "/opt/hostile-agent";

/// In this order: an agent is there from `agent/late` on, and the guest is reset in the last.
const CASES: &[(&str, Body)] = &[
    ("hostile/garbage", hostile::garbage),
    ("hostile/lengths", hostile::lengths),
    ("hostile/gigabytes", hostile::gigabytes),
    ("hostile/flood", hostile::flood),
    ("hostile/time-travel", hostile::time_travel),
    ("hostile/names", hostile::names),
    ("hostile/buffers", hostile::buffers),
    ("agent/absent", troubles::absent),
    ("agent/late", troubles::late),
    ("agent/idle", troubles::idle),
    ("agent/modules", modules::loaded_later),
    ("agent/stuck", troubles::stuck),
    ("agent/killed", troubles::killed),
    ("agent/light", light::same_requests),
    ("agent/io", io::without_calls),
    ("guest/resized-disk", troubles::resized_disk),
    ("guest/paused", troubles::paused),
    ("guest/reset", troubles::reset),
];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let wanted = |name: &str| ctx.wants(&format!("{}/{name}", SCENARIO.name));
    run_cases(ctx, report, (SCENARIO.name, CASES), |ctx| {
        let agent = ctx.agent()?.to_owned();
        let hostile = guest_programs::hostile_agent()?;
        let stage = Stage::boot_as(ctx, "guest-side", |spec| GuestSpec {
            agent: Some(agent),
            files: vec![(HOSTILE.to_owned(), hostile)],
            memory_mib: 768,
            ..spec
        })?;
        // The cases behind that one find its agent.
        if !wanted("agent/late") {
            stage.guest.start_agent("--backend ebpf")?;
        }
        Ok(stage)
    })?;
    for (name, body) in [
        (
            "clock",
            clock::run as fn(&LiveContext, &mut Report) -> anyhow::Result<()>,
        ),
        ("backends", backends::run),
        ("names", names::run),
        ("snapshots", snapshots::run),
        ("systemd", systemd::run),
        ("two-guests", two_guests::run),
        ("vsock", vsock::run),
    ] {
        if wanted(name) {
            body(ctx, report)?;
        }
    }
    Ok(())
}

//! A hostile host: processes that try to delay, confuse or take over the recorder beside an honest guest,
//! and a recorder that dies.

mod addresses;
mod builds;
mod commands;
mod endings;
mod looks;
mod privileges;
mod processes;
mod programs;
mod sockets;
mod strict;
mod trees;

use nestrace_rig::guest::GuestSpec;
use xtask::case::Report;

use super::Scenario;
use super::context::LiveContext;
use super::stage::{Body, Stage, run_cases};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "hostile-host",
    about: "processes of other users that look like QEMUs: memory, time, sockets, links, set-uid programs",
    run,
    alone: false,
};

/// An agent is there from `kills/with-agent` on.
const CASES: &[(&str, Body)] = &[
    ("looks/long-arguments", programs::long_arguments),
    ("looks/symbol-tables", programs::symbol_tables),
    ("looks/same-name", programs::same_name),
    ("looks/costly-arguments", looks::costly_arguments),
    ("looks/many-descriptors", looks::many_descriptors),
    ("looks/many-mounts", looks::many_mounts),
    ("looks/memory-of-fuse", looks::memory_of_fuse),
    ("looks/random-trees", trees::random),
    ("probes/set-uid", programs::set_uid),
    ("probes/file-capabilities", programs::file_capabilities),
    ("probes/symbols-of-data", programs::symbols_of_data),
    ("sockets/link", sockets::link),
    ("sockets/other-process", sockets::other_process),
    ("sockets/agent-link", sockets::agent_link),
    ("privileges/recorder-of-root", privileges::of_root),
    ("privileges/recorder-of-sudo", privileges::of_sudo),
    ("privileges/finder", privileges::finder),
    ("privileges/killed", privileges::killed),
    ("privileges/command-begins", commands::begins),
    ("privileges/command-ends", commands::ends),
    ("privileges/command-refused", commands::refused),
    ("privileges/newer-libc", builds::newer_libc),
    ("privileges/musl", builds::musl),
    ("privileges/without-landlock", builds::without_landlock),
    ("strict/killed", strict::killed),
    ("strict/closed", strict::closed),
    ("addresses/hidden", addresses::hidden),
    ("ending/32-guests", endings::of_32_guests),
    ("kills/with-agent", endings::killed_again_and_again),
];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    run_cases(ctx, report, (SCENARIO.name, CASES), |ctx| {
        let agent = ctx.agent()?.to_owned();
        Stage::boot_as(ctx, "hostile-host", |spec| GuestSpec {
            agent: Some(agent),
            memory_mib: 768,
            ..spec
        })
    })
}

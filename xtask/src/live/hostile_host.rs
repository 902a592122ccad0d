//! A host where nobody is trusted: processes that want to delay, confuse or take over the recorder beside an honest guest.

use super::Scenario;
use super::case::Report;
use super::rig::LiveContext;
use super::survival::stage::Stage;
use super::survival::{Body, run_cases};

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "hostile-host",
    about: "processes of other users that look like QEMUs: memory, time, sockets, links, set-uid programs",
    run,
    alone: false,
};

const CASES: &[(&str, Body)] = &[];

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    run_cases(ctx, report, (SCENARIO.name, CASES), Stage::boot)
}

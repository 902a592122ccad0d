//! The smoke run of the bench: every contestant records, and none misses an I/O.

use xtask::case::Report;

use super::Scenario;
use super::context::LiveContext;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "bench",
    about: "the bench of recording and its peers: every contestant runs, and none misses an I/O",
    run: |ctx: &LiveContext, report: &mut Report| nestrace_benches::smoke(&ctx.nestrace, report),
    alone: true,
};

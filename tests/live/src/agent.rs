//! Guests with an agent: every guest bio is followed to the host's device, for every guest file
//! system over every host file system, and the counts are those of the guest's kernel, of QEMU and
//! of the host's kernel.
//!
//! A guest carries four disks, which are at work at the same time in one recording. `--full` runs
//! every pair of file systems over every stack of the covering set and goes on where an earlier run
//! of the same commit stopped.

use super::Scenario;
use super::context::LiveContext;
use super::full_state::FullState;
use super::with_agents::pairs::{self, Pair, covering_pairs, every_pair};
use xtask::case::Report;

/// The scenario.
pub const SCENARIO: Scenario = Scenario {
    name: "agent",
    about: "guests with an agent: every pair of file systems, followed from guest bio to host device",
    run,
    alone: false,
};

fn run(ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    let wanted = |pair: &Pair| ctx.wants(&pair.case());
    if !ctx.full {
        let pairs: Vec<Pair> = covering_pairs().into_iter().filter(wanted).collect();
        return pairs::run(ctx, report, &pairs, &mut |_| Ok(()));
    }
    let mut state = FullState::read("full-pairs")?;
    let left: Vec<Pair> = every_pair()
        .into_iter()
        .filter(|pair| wanted(pair) && !state.has(&pair.case()))
        .collect();
    ctx.progress.say(&format!(
        "{} pairs passed before, {} are left",
        state.n_passed(),
        left.len()
    ));
    pairs::run(ctx, report, &left, &mut |pair| state.add(&pair.case()))
}

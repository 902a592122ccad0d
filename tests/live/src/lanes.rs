//! Scenarios side by side.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::thread;

use nestrace_rig::interrupt;
use xtask::case::Report;
use xtask::progress::timed;

use super::Scenario;
use super::context::LiveContext;

/// Runs scenarios in so many lanes; each lane takes the next one that has not begun. Those that measure run
/// when the lanes have ended.
///
/// A translated guest keeps one processor busy and the test that waits for it none, so that two lanes end in little
/// more than half of the time.
pub fn run(
    scenarios: Vec<Scenario>,
    lanes: Vec<LiveContext>,
    report: &mut Report,
) -> anyhow::Result<Vec<LiveContext>> {
    let (alone, beside): (Vec<_>, Vec<_>) = scenarios.into_iter().partition(|s| s.alone);
    let waiting = Mutex::new(VecDeque::from(beside));
    let ended: Vec<anyhow::Result<Report>> = thread::scope(|scope| {
        let started: Vec<_> = lanes
            .iter()
            .map(|ctx| scope.spawn(|| lane(&waiting, ctx)))
            .collect();
        let panicked = |_| Err(anyhow::anyhow!("see why a lane panicked: it says so above"));
        started
            .into_iter()
            .map(|lane| lane.join().unwrap_or_else(panicked))
            .collect()
    });
    for counted in ended {
        report.absorb(counted?);
    }
    for scenario in alone {
        one(&scenario, &lanes[0], report)?;
    }
    Ok(lanes)
}

fn lane(waiting: &Mutex<VecDeque<Scenario>>, ctx: &LiveContext) -> anyhow::Result<Report> {
    let mut report = Report::default();
    let next = || {
        let mut waiting = waiting.lock().unwrap_or_else(PoisonError::into_inner);
        waiting.pop_front()
    };
    while let Some(scenario) = next() {
        one(&scenario, ctx, &mut report)?;
    }
    Ok(report)
}

/// A scenario that breaks off counts as one failed case; the next one still runs.
fn one(scenario: &Scenario, ctx: &LiveContext, report: &mut Report) -> anyhow::Result<()> {
    timed(scenario.name, || {
        if let Err(error) = (scenario.run)(ctx, report) {
            interrupt::check()?;
            report.case(&format!("{} (whole)", scenario.name), |_| Err(error))?;
        }
        Ok(())
    })
}

//! The order of a run: each step that is not finished, once; what fails is written down and passed over.

use std::time::Instant;

use nestrace_report::lab::CellRun;
use nestrace_rig::interrupt;

use super::bench::{Bench, StepError};
use super::ledger::Ledger;
use super::pace::Pace;
use super::{LabError, Outcome, Progress, failure, unix_seconds};
use crate::plan::{Kind, Plan, Step};

/// Runs what is open.
///
/// # Errors
/// Results cannot be written, or Ctrl-C.
pub(super) fn run(
    plan: &Plan,
    steps: &[Step],
    ledger: &mut Ledger,
    bench: &mut dyn Bench,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Outcome, LabError> {
    let is_open: Vec<bool> = steps.iter().map(|step| ledger.is_open(step)).collect();
    let mut pace = Pace::default();
    for (number, step) in steps.iter().enumerate() {
        interrupt::check()?;
        if !is_open[number] || ledger.is_given_up(step) {
            continue;
        }
        let rest = steps.iter().zip(&is_open).skip(number);
        let rest = rest.filter(|(step, open)| **open && !ledger.is_given_up(step));
        let left: f64 = rest.map(|(step, _)| plan.step_seconds(step) as f64).sum();
        let mut now = Progress {
            n_done: number,
            n_all: steps.len(),
            seconds_left: (left * pace.factor()) as u64,
            what: name_of(step, &plan.cells[step.cell].id),
        };
        progress(&now);
        let begin = Instant::now();
        let started_unix_s = unix_seconds();
        let bundle = ledger.place_of_recording(step)?;
        let done = bench.run(step, bundle.as_deref());
        pace.note(
            plan.step_seconds(step) as f64,
            begin.elapsed().as_secs_f64(),
        );
        if let Some(accelerator) = bench.accelerator() {
            ledger.note_accelerator(accelerator)?;
        }
        match done {
            Ok(run) => ledger.note_run(
                step,
                CellRun {
                    started_unix_s,
                    ..run
                },
            )?,
            Err(StepError { error, reach }) => {
                interrupt::check()?;
                let (message, log) = failure::told(&error);
                ledger.note_failure(steps, step, reach, &message, &log)?;
                now.what = format!("{} failed: {}", now.what, failure::first_line(&error));
                progress(&now);
            }
        }
    }
    Ok(ledger.outcome())
}

fn name_of(step: &Step, id: &str) -> String {
    match step.kind {
        Kind::Timed(repetition) => format!("{id}, repetition {repetition}"),
        Kind::Recorded => format!("{id}, recorded"),
    }
}

#[cfg(test)]
mod tests;

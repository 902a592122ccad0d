//! What runs a step: a guest with the disks of its batch, booted when another one is there.

use std::path::Path;

use nestrace_report::lab::CellRun;
use nestrace_rig::guest::Accel;
use nestrace_rig::interrupt::Interrupted;

use super::LabError;
use super::stage::{Guests, Parts, Stage};
use crate::plan::{Plan, Schedule, Step};

/// What a failure affects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// The cell alone.
    Cell,
    /// All cells that need the same guest: it does not boot.
    Batch,
}

/// A step that failed.
#[derive(Debug)]
pub(super) struct StepError {
    pub(super) error: LabError,
    pub(super) reach: Reach,
}

/// Runs steps.
pub(super) trait Bench {
    /// One run; recorded into `bundle` if there is one.
    fn run(&mut self, step: &Step, bundle: Option<&Path>) -> Result<CellRun, StepError>;

    /// `kvm` or `tcg`, once a guest ran.
    fn accelerator(&self) -> Option<&'static str>;
}

/// Real guests.
#[derive(Debug)]
pub(super) struct RealBench<'p> {
    plan: &'p Plan,
    schedule: &'p Schedule,
    nestrace: &'p Path,
    parts: Parts,
    work: &'p Path,
    /// The guest that runs, and the last step that it had.
    stage: Option<(Step, Stage)>,
    accelerator: Option<&'static str>,
}

impl<'p> RealBench<'p> {
    pub(super) fn new(
        plan: &'p Plan,
        schedule: &'p Schedule,
        nestrace: &'p Path,
        parts: Parts,
        work: &'p Path,
    ) -> Self {
        Self {
            plan,
            schedule,
            nestrace,
            parts,
            work,
            stage: None,
            accelerator: None,
        }
    }

    /// The guest for a step, booted if it is not there.
    fn stage(&mut self, step: &Step) -> Result<&mut Stage, LabError> {
        let is_there = |(before, _): &(Step, Stage)| !step.needs_boot_after(before);
        if !self.stage.as_ref().is_some_and(is_there) {
            self.stage = None;
            let disks = &self.schedule.batches[step.batch];
            let stage = Stage::build(self.plan, disks, &self.parts, self.work)?;
            let accelerator = stage.accelerator();
            if let Guests::Booted(parts) = &mut self.parts.guests {
                // Repetitions are of one kind; and where KVM did not boot once, every boot would wait for it again.
                parts.accel = Accel::like(accelerator);
            }
            self.accelerator = Some(accelerator);
            self.stage = Some((*step, stage));
        }
        match &mut self.stage {
            Some((before, stage)) => {
                *before = *step;
                Ok(stage)
            }
            None => Err(Interrupted.into()),
        }
    }
}

impl Bench for RealBench<'_> {
    fn run(&mut self, step: &Step, bundle: Option<&Path>) -> Result<CellRun, StepError> {
        let planned = &self.plan.cells[step.cell];
        let (nestrace, seconds) = (self.nestrace, self.plan.record_seconds);
        let recording = bundle.map(|bundle| (nestrace, bundle, seconds));
        if let Guests::Booted(parts) = &self.parts.guests
            && let Some(error) = parts.data.objection(&planned.workload)
        {
            let reach = Reach::Cell;
            return Err(StepError { error, reach });
        }
        let stage = self.stage(step).map_err(|error| StepError {
            error,
            reach: Reach::Batch,
        })?;
        if let Some(error) = stage.objection(step.disk) {
            let reach = Reach::Cell;
            return Err(StepError { error, reach });
        }
        stage.run(planned, step.disk, recording).map_err(|error| {
            // What state the guest is in is not known.
            self.stage = None;
            StepError {
                error,
                reach: Reach::Cell,
            }
        })
    }

    fn accelerator(&self) -> Option<&'static str> {
        self.accelerator
    }
}

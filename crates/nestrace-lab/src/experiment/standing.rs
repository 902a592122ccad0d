//! What of a plan is finished in a folder of results, and what would still run there.

use std::path::Path;

use super::folder_error::FolderError;
use super::ledger::Ledger;
use super::results_folder::ResultsFolder;
use crate::plan::{Kind, Plan};

/// How far a plan is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// As in the plan.
    pub cells: Vec<CellStanding>,
    /// Runs that are finished.
    pub n_done: usize,
    /// Runs in all.
    pub n_all: usize,
    /// Seconds of those that are not, roughly, without boots.
    pub seconds_left: u64,
}

/// How far a cell is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CellStanding {
    /// Timed runs that are finished.
    pub n_timed: usize,
    /// Its recording is there.
    pub is_recorded: bool,
    /// Something of it failed, and would be tried again.
    pub has_failed: bool,
}

/// Looks at a folder, which need not be there, and changes nothing.
///
/// # Errors
/// It is not empty and no folder of results, another plan's, or a file of it is damaged.
pub fn standing(plan: &Plan, plan_text: &str, folder: &Path) -> Result<Standing, FolderError> {
    let steps = plan.schedule().steps;
    let mut standing = Standing {
        cells: vec![CellStanding::default(); plan.cells.len()],
        n_all: steps.len(),
        ..Standing::default()
    };
    let Some(folder) = ResultsFolder::look(folder, plan_text)? else {
        standing.seconds_left = steps.iter().map(|step| plan.step_seconds(step)).sum();
        return Ok(standing);
    };
    let ledger = Ledger::open(plan, folder)?;
    for step in &steps {
        if ledger.is_open(step) {
            standing.seconds_left += plan.step_seconds(step);
            continue;
        }
        standing.n_done += 1;
        let cell = &mut standing.cells[step.cell];
        match step.kind {
            Kind::Timed(_) => cell.n_timed += 1,
            Kind::Recorded => cell.is_recorded = true,
        }
    }
    for (number, cell) in standing.cells.iter_mut().enumerate() {
        cell.has_failed = ledger.has_failed(number);
    }
    Ok(standing)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nestrace_report::lab::CellRun;

    const PLAN: &str = "name = 'p'\nrepetitions = 2\n[[workload]]\nname = 'randread'\n";

    #[test]
    fn what_is_finished_is_counted_and_nothing_is_made() {
        let root = tempfile::tempdir().unwrap();
        let place = root.path().join("results");
        let plan = Plan::read(PLAN).unwrap();
        let before = standing(&plan, PLAN, &place).unwrap();
        assert_eq!((before.n_done, place.exists()), (0, false));
        let steps = plan.schedule().steps;
        assert_eq!(before.n_all, steps.len());

        let folder = ResultsFolder::open(&place, PLAN).unwrap();
        let mut ledger = Ledger::open(&plan, folder).unwrap();
        let timed = |step: &&crate::plan::Step| matches!(step.kind, Kind::Timed(_));
        let first = steps.iter().find(timed).unwrap();
        ledger.note_run(first, CellRun::default()).unwrap();
        let after = standing(&plan, PLAN, &place).unwrap();
        assert_eq!((after.n_done, after.cells[first.cell].n_timed), (1, 1));
        let took = plan.step_seconds(first);
        assert_eq!(after.seconds_left, before.seconds_left - took);
    }

    #[test]
    fn results_of_another_program_are_not_gone_on_with() {
        let text = "name = 'p'\n[[workload]]\nname = 'iozone-read'\n";
        let root = tempfile::tempdir().unwrap();
        let plan = Plan::read(text).unwrap();
        let folder = ResultsFolder::open(root.path(), text).unwrap();
        let mut ledger = Ledger::open(&plan, folder).unwrap();
        let steps = plan.schedule().steps;
        ledger.note_run(&steps[0], CellRun::default()).unwrap();
        standing(&plan, text, root.path()).unwrap();
        let error = standing(&plan.with_models(|_| true), text, root.path()).unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("those of fio, and this machine would take iozone"),
            "{error}"
        );
    }
}

//! Which runs of a plan are finished and what failed, as the folder of results has it.
//!
//! It needs no guest. A run is finished when its result is written; a recording without a result is what a
//! crash left, and is made again.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use nestrace_report::lab::{CELL_SCHEMA, Cell, CellRun, Failure, Machine, RunHeader};

use super::Outcome;
use super::base::disk_id;
use super::bench::Reach;
use super::folder_error::FolderError;
use super::machine;
use super::results_folder::{ResultsFolder, bundle_name};
use crate::plan::{Axis, Kind, Plan, PlannedCell, Step};

/// The results so far.
#[derive(Debug)]
pub(super) struct Ledger {
    folder: ResultsFolder,
    header: Option<RunHeader>,
    /// As in the plan.
    cells: Vec<Cell>,
    /// As in the plan.
    only: BTreeSet<usize>,
    /// Cells that failed since the start: they are not tried again before the next one.
    given_up: BTreeSet<usize>,
}

impl Ledger {
    /// What earlier starts left.
    ///
    /// # Errors
    /// A file of the folder cannot be read.
    pub(super) fn open(plan: &Plan, folder: ResultsFolder) -> Result<Self, FolderError> {
        Ok(Self {
            header: folder.header()?,
            cells: cells(plan, &folder)?,
            only: plan.only.clone(),
            given_up: BTreeSet::new(),
            folder,
        })
    }

    /// Reads what somebody else wrote since.
    ///
    /// # Errors
    /// A file of the folder cannot be read.
    pub(super) fn read_again(&mut self, plan: &Plan) -> Result<(), FolderError> {
        self.cells = cells(plan, &self.folder)?;
        Ok(())
    }

    /// Where the results are.
    pub(super) fn place(&self) -> &Path {
        self.folder.path()
    }

    pub(super) fn write_header(&mut self, header: RunHeader) -> Result<(), FolderError> {
        self.folder.write_header(&header)?;
        self.header = Some(header);
        Ok(())
    }

    /// Whether what is there was made on such a machine; `false` where nothing was made yet.
    ///
    /// # Errors
    /// It was made on another one: results of two kernels are not repetitions of one thing.
    pub(super) fn goes_on_with(&self, machine: &Machine) -> Result<bool, FolderError> {
        let before = self.header.as_ref().map(|header| &header.machine);
        let difference = before.and_then(|before| machine::difference(before, machine));
        match difference {
            Some((what, [before, now])) if self.is_begun() => Err(FolderError::OtherMachine {
                folder: self.folder.path().to_owned(),
                what,
                before,
                now,
            }),
            Some(_) => Ok(false),
            None => Ok(before.is_some()),
        }
    }

    /// What guests ran on whose results are here: `kvm` or `tcg`; empty where there are none.
    pub(super) fn accelerator(&self) -> &str {
        match &self.header {
            Some(header) if self.is_begun() => &header.machine.accelerator,
            _ => "",
        }
    }

    fn is_begun(&self) -> bool {
        self.cells.iter().any(|cell| !cell.runs.is_empty())
    }

    /// Writes down what guests run on, where that is news.
    pub(super) fn note_accelerator(&mut self, word: &str) -> Result<(), FolderError> {
        match &mut self.header {
            Some(header) if header.machine.accelerator != word => {
                word.clone_into(&mut header.machine.accelerator);
                self.folder.write_header(header)
            }
            _ => Ok(()),
        }
    }

    /// Cells whose recording is there.
    pub(super) fn n_recorded(&self) -> usize {
        let recorded = self.cells.iter().filter(|cell| self.is_recorded(cell));
        recorded.count()
    }

    fn is_recorded(&self, cell: &Cell) -> bool {
        cell.recorded.is_some() && self.folder.bundle(&cell.id).is_dir()
    }

    /// Whether a step has no result yet.
    pub(super) fn is_open(&self, step: &Step) -> bool {
        let cell = &self.cells[step.cell];
        match step.kind {
            Kind::Timed(repetition) => cell.runs.iter().all(|run| run.repetition != repetition),
            Kind::Recorded => !self.is_recorded(cell),
        }
    }

    /// Numbers of the cells with steps that have no result yet.
    pub(super) fn open_cells(&self, steps: &[Step]) -> BTreeSet<usize> {
        let open = steps.iter().filter(|step| self.is_open(step));
        open.map(|step| step.cell).collect()
    }

    /// Whether anything of a cell failed and was not finished since.
    pub(super) fn has_failed(&self, cell: usize) -> bool {
        self.cells
            .get(cell)
            .is_some_and(|cell| !cell.failures.is_empty())
    }

    /// Whether its cell failed since the start.
    pub(super) fn is_given_up(&self, step: &Step) -> bool {
        self.given_up.contains(&step.cell)
    }

    /// Where a step that is recorded puts its recording. What a crash left there is removed: only a whole
    /// bundle would give way to the recorder.
    pub(super) fn place_of_recording(&self, step: &Step) -> Result<Option<PathBuf>, FolderError> {
        if step.kind != Kind::Recorded {
            return Ok(None);
        }
        let id = &self.cells[step.cell].id;
        self.folder.remove_bundle(id)?;
        Ok(Some(self.folder.bundle(id)))
    }

    /// Writes a result down.
    pub(super) fn note_run(&mut self, step: &Step, run: CellRun) -> Result<(), FolderError> {
        let run = CellRun {
            repetition: repetition(step.kind),
            ..run
        };
        let cell = &mut self.cells[step.cell];
        cell.failures
            .retain(|failure| failure.repetition != run.repetition);
        match step.kind {
            Kind::Timed(_) => {
                cell.runs.push(run);
                cell.runs.sort_by_key(|run| run.repetition);
            }
            Kind::Recorded => {
                cell.disk = run.disk.clone().unwrap_or_else(|| disk_id(step.disk));
                cell.recording = Some(bundle_name(&cell.id));
                cell.recorded = Some(run);
            }
        }
        self.folder.write_cell(cell)
    }

    /// Writes a failure down. Where no guest comes up it is that of every cell which still has something to
    /// run in that guest, `steps` says which; those that are finished stay as they are.
    pub(super) fn note_failure(
        &mut self,
        steps: &[Step],
        step: &Step,
        reach: Reach,
        message: &str,
        log: &str,
    ) -> Result<(), FolderError> {
        let mut concerned = BTreeMap::from([(step.cell, step.kind)]);
        if reach == Reach::Batch {
            let same = steps.iter().filter(|other| other.batch == step.batch);
            for other in same.filter(|other| self.is_open(other)) {
                // The first that is open is what was not run.
                concerned.entry(other.cell).or_insert(other.kind);
            }
        }
        for (number, kind) in concerned {
            if !self.given_up.insert(number) {
                continue;
            }
            let cell = &mut self.cells[number];
            let repetition = repetition(kind);
            cell.failures
                .retain(|failure| failure.repetition != repetition);
            cell.failures.push(Failure {
                repetition,
                message: message.to_owned(),
                log: log.to_owned(),
            });
            self.folder.write_cell(cell)?;
        }
        if step.kind == Kind::Recorded {
            // What cannot be removed is in the way of the next start, which says so.
            let _ = self.folder.remove_bundle(&self.cells[step.cell].id);
        }
        Ok(())
    }

    pub(super) fn outcome(&self) -> Outcome {
        let is_run = |number: &usize| self.only.is_empty() || self.only.contains(number);
        let run = (0..self.cells.len()).filter(is_run);
        Outcome {
            n_failed: run.clone().filter(|cell| self.has_failed(*cell)).count(),
            n_cells: run.count(),
        }
    }
}

fn cells(plan: &Plan, folder: &ResultsFolder) -> Result<Vec<Cell>, FolderError> {
    let mut cells = Vec::new();
    for (number, planned) in plan.cells.iter().enumerate() {
        let known = folder.cell(&planned.id)?;
        let program = planned.workload.program();
        // An older result does not say.
        let differs = |cell: &&Cell| !cell.program.is_empty() && cell.program != program;
        if let Some(other) = known.as_ref().filter(differs) {
            return Err(FolderError::OtherProgram {
                cell: other.id.clone(),
                before: other.program.clone(),
                now: program,
            });
        }
        cells.push(known.unwrap_or_else(|| {
            Cell {
                device: plan
                    .device_of(number)
                    .map(|path| path.display().to_string()),
                ..empty_cell(plan, planned)
            }
        }));
    }
    Ok(cells)
}

fn empty_cell(plan: &Plan, planned: &PlannedCell) -> Cell {
    let words = Axis::ALL.iter().map(|axis| {
        let word = planned.combination.word(*axis).into_owned();
        (axis.word().to_owned(), word)
    });
    let baseline = planned.baseline.and_then(|number| plan.cells.get(number));
    Cell {
        schema: CELL_SCHEMA.to_owned(),
        id: planned.id.clone(),
        baseline: baseline.map(|cell| cell.id.clone()),
        axes: words.collect(),
        workload: planned.workload.name.clone(),
        workload_note: planned.workload.note.clone(),
        program: planned.workload.program().to_owned(),
        metric: planned.workload.metric,
        ..Cell::default()
    }
}

/// 0 stands for the run that is recorded.
fn repetition(kind: Kind) -> u32 {
    match kind {
        Kind::Timed(repetition) => repetition,
        Kind::Recorded => 0,
    }
}

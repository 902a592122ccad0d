//! Runs a plan: builds what each cell needs, measures it, records it, and writes down what came of it.
//!
//! Every run of a cell has a new file system in the guest, on a disk that is as it was at first, and finds
//! neither the guest's nor the host's page cache filled. Timed runs are not recorded, so that recording
//! costs no cell more than another; one more run of each cell is recorded to explain it. What fails is
//! written down with its cell, and the run goes on; what is finished stays, and a later run goes on there.

mod base;
mod counters;
mod fio_result;
mod leftovers;
mod machine;
mod recorder;
mod results_folder;
mod stage;
mod tree;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Instant, SystemTime};

use nestrace_report::lab::{CELL_SCHEMA, Cell, CellRun, Failure, RUN_SCHEMA, RunHeader};

pub use base::BaseError;
pub use recorder::RecorderError;
pub use results_folder::{FolderError, read_results};
pub use tree::TreeError;

use crate::external_tool::{find_program, last_lines};
use crate::guest::{Accel, GuestError};
use crate::initramfs::{self, InitramfsError};
use crate::interrupt::{self, Interrupted};
use crate::kernel_image::{self, KernelImageError};
use crate::plan::{Axis, Kind, Plan, PlannedCell, Schedule, Step};
use results_folder::ResultsFolder;
use stage::{Parts, Stage};

/// A run could not go on. What fails within a cell is no such error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// The folder of results.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// Not enough space.
    #[error(
        "put devices and images into {folder}: {needed_mib} MiB are needed, {available_mib} MiB are free"
    )]
    NoSpace {
        /// Where.
        folder: PathBuf,
        /// MiB.
        needed_mib: u64,
        /// MiB.
        available_mib: u64,
    },
    /// Not enough memory.
    #[error("boot guests: {needed_mib} MiB of memory are needed, {available_mib} MiB are free")]
    NoMemory {
        /// MiB.
        needed_mib: u64,
        /// MiB.
        available_mib: u64,
    },
    /// There is no agent to put into guests.
    #[error("find the agent for guests at {0}")]
    NoAgent(PathBuf),
    /// A device.
    #[error(transparent)]
    Base(#[from] BaseError),
    /// The tree of small files.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The kernel for guests.
    #[error(transparent)]
    Kernel(#[from] KernelImageError),
    /// The user space of guests.
    #[error(transparent)]
    Initramfs(#[from] InitramfsError),
    /// A guest.
    #[error(transparent)]
    Guest(#[from] GuestError),
    /// A recording.
    #[error(transparent)]
    Recorder(#[from] RecorderError),
    /// A workload that left no result.
    #[error("read the result of {workload}: {said}")]
    NoResult {
        /// Its name.
        workload: String,
        /// What there is instead.
        said: String,
    },
    /// Ctrl-C.
    #[error(transparent)]
    Interrupted(#[from] Interrupted),
}

/// Where results go and which programs are used.
#[derive(Clone, Debug)]
pub struct Options {
    /// Folder of results.
    pub folder: PathBuf,
    /// The recorder.
    pub nestrace: PathBuf,
    /// The agent that guests get, if the plan wants one.
    pub agent: PathBuf,
}

/// How far a run is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Runs that are finished, of earlier starts too.
    pub n_done: usize,
    /// Runs in all.
    pub n_all: usize,
    /// Seconds that are left, roughly.
    pub seconds_left: u64,
    /// What is done now, or what failed.
    pub what: String,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Cells in all.
    pub n_cells: usize,
    /// Cells with a failure.
    pub n_failed: usize,
}

/// Runs a plan, or goes on with it. Needs root.
///
/// # Errors
/// The folder is another plan's, disk or memory will not do, no guest can be made at all, or Ctrl-C.
pub fn run(
    plan: &Plan,
    plan_text: &str,
    options: &Options,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Outcome, LabError> {
    let has_agent = plan.guest.has_agent && plan.record_seconds > 0;
    if has_agent && !options.agent.is_file() {
        return Err(LabError::NoAgent(options.agent.clone()));
    }
    let folder = ResultsFolder::open(&options.folder, plan_text)?;
    leftovers::remove(&folder.path().join(results_folder::WORK));
    let work = folder.work()?;
    let done = Run::begin(plan, options, folder, work.clone(), has_agent)
        .and_then(|mut run| run.all(progress));
    // Everything in it was dropped before.
    leftovers::remove(&work);
    done
}

/// A run under way.
#[derive(Debug)]
struct Run<'p> {
    plan: &'p Plan,
    options: &'p Options,
    schedule: Schedule,
    cells: Vec<Cell>,
    header: RunHeader,
    parts: Parts,
    /// The batch that is booted.
    stage: Option<(usize, Stage)>,
    /// Cells that failed since the start: they are not tried again before the next one.
    given_up: BTreeSet<usize>,
    folder: ResultsFolder,
    work: PathBuf,
}

impl<'p> Run<'p> {
    fn begin(
        plan: &'p Plan,
        options: &'p Options,
        folder: ResultsFolder,
        work: PathBuf,
        has_agent: bool,
    ) -> Result<Self, LabError> {
        machine::check_room(plan, &work)?;
        let kernel = kernel_image::obtain(&plan.guest.kernel)?;
        let initramfs = initramfs::obtain(&kernel)?;
        let header = match folder.header()? {
            Some(header) => header,
            None => {
                let header = first_header(plan, &kernel, &work)?;
                folder.write_header(&header)?;
                header
            }
        };
        let mut cells = Vec::new();
        for planned in &plan.cells {
            let known = folder.cell(&planned.id)?;
            cells.push(known.unwrap_or_else(|| empty_cell(plan, planned)));
        }
        Ok(Self {
            plan,
            options,
            schedule: plan.schedule(),
            cells,
            header,
            parts: Parts {
                kernel,
                initramfs,
                agent: has_agent.then(|| options.agent.clone()),
                accel: Accel::KvmIfItBoots,
            },
            stage: None,
            given_up: BTreeSet::new(),
            folder,
            work,
        })
    }

    fn all(&mut self, progress: &mut dyn FnMut(&Progress)) -> Result<Outcome, LabError> {
        let start = Instant::now();
        let plan = self.plan;
        let steps = self.schedule.steps.clone();
        let cost = |step: &Step| plan.step_seconds(step) as f64;
        let is_open: Vec<bool> = steps.iter().map(|step| !self.is_done(step)).collect();
        let open = |from: usize| {
            let rest = steps.iter().zip(&is_open).skip(from);
            rest.filter(|(_, open)| **open)
                .map(|(step, _)| cost(step))
                .sum::<f64>()
        };
        let whole = open(0);
        for (number, step) in steps.iter().enumerate() {
            interrupt::check()?;
            if !is_open[number] || self.given_up.contains(&step.cell) {
                continue;
            }
            let left = open(number);
            // How long what is done really took corrects the estimate.
            let (spent, foreseen) = (start.elapsed().as_secs_f64(), whole - left);
            let pace = if foreseen > 20.0 {
                spent / foreseen
            } else {
                1.0
            };
            let mut now = Progress {
                n_done: number,
                n_all: steps.len(),
                seconds_left: (left * pace) as u64,
                what: name_of(step, &plan.cells[step.cell].id),
            };
            progress(&now);
            if let Err(error) = self.one(step) {
                interrupt::check()?;
                self.note_failure(step, &error)?;
                now.what = format!("{} failed: {}", now.what, first_line(&error));
                progress(&now);
            }
        }
        self.stage = None;
        let n_failed = self.cells.iter().filter(|cell| !cell.failures.is_empty());
        Ok(Outcome {
            n_cells: self.cells.len(),
            n_failed: n_failed.count(),
        })
    }

    fn is_done(&self, step: &Step) -> bool {
        let cell = &self.cells[step.cell];
        match step.kind {
            Kind::Timed(repetition) => cell.runs.iter().any(|run| run.repetition == repetition),
            Kind::Recorded => cell.recorded.is_some() && self.folder.bundle(&cell.id).is_dir(),
        }
    }

    /// Runs a step and writes its result down.
    fn one(&mut self, step: &Step) -> Result<(), LabError> {
        let planned = &self.plan.cells[step.cell];
        let bundle = self.folder.bundle(&planned.id);
        let recording = (step.kind == Kind::Recorded).then_some((
            self.options.nestrace.as_path(),
            bundle.as_path(),
            self.plan.record_seconds,
        ));
        let started_unix_s = unix_seconds();
        let stage = self.stage(step.batch)?;
        let run = CellRun {
            started_unix_s,
            repetition: repetition(step.kind),
            ..stage.run(planned, step.disk, recording)?
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
                cell.disk = base::disk_id(step.disk);
                cell.recording = Some(results_folder::bundle_name(&cell.id));
                cell.recorded = Some(run);
            }
        }
        Ok(self.folder.write_cell(cell)?)
    }

    /// The guest of a batch, booted if it is not there.
    fn stage(&mut self, batch: usize) -> Result<&mut Stage, LabError> {
        let is_there = matches!(&self.stage, Some((booted, _)) if *booted == batch);
        if !is_there {
            self.stage = None;
            let disks = &self.schedule.batches[batch];
            let stage = Stage::build(self.plan, disks, &self.parts, &self.work)?;
            let accelerator = stage.accelerator();
            if accelerator == "tcg" {
                // Where it did not boot once, every boot would wait for it again.
                self.parts.accel = Accel::Tcg;
            }
            if self.header.machine.accelerator != accelerator {
                accelerator.clone_into(&mut self.header.machine.accelerator);
                self.folder.write_header(&self.header)?;
            }
            self.stage = Some((batch, stage));
        }
        match &mut self.stage {
            Some((_, stage)) => Ok(stage),
            None => Err(Interrupted.into()),
        }
    }

    /// A failure is the cell's; where no guest comes up, that of all cells of its batch.
    fn note_failure(&mut self, step: &Step, error: &LabError) -> Result<(), LabError> {
        let no_guest = self.stage.is_none();
        // What state the guest is in is not known.
        self.stage = None;
        let shared: BTreeSet<usize> = if no_guest {
            let same = self
                .schedule
                .steps
                .iter()
                .filter(|other| other.batch == step.batch);
            same.map(|other| other.cell).collect()
        } else {
            BTreeSet::from([step.cell])
        };
        let (message, log) = told(error);
        for cell in shared {
            if !self.given_up.insert(cell) {
                continue;
            }
            let cell = &mut self.cells[cell];
            let repetition = repetition(step.kind);
            cell.failures
                .retain(|failure| failure.repetition != repetition);
            cell.failures.push(Failure {
                repetition,
                message: message.clone(),
                log: log.clone(),
            });
            self.folder.write_cell(cell)?;
        }
        if step.kind == Kind::Recorded {
            let _ = std::fs::remove_dir_all(self.folder.bundle(&self.cells[step.cell].id));
        }
        Ok(())
    }
}

fn first_header(
    plan: &Plan,
    kernel: &kernel_image::KernelImage,
    work: &std::path::Path,
) -> Result<RunHeader, LabError> {
    let names: BTreeSet<&str> = plan
        .cells
        .iter()
        .map(|cell| cell.combination.host.word())
        .collect();
    let mut bases = Vec::new();
    for name in names {
        bases.push(base::probe(name, work)?);
    }
    Ok(RunHeader {
        schema: RUN_SCHEMA.to_owned(),
        plan: plan.name.clone(),
        about: plan.about.clone(),
        experiment: plan.experiment.clone(),
        seed: plan.seed,
        repetitions: plan.repetitions,
        started_unix_s: unix_seconds(),
        machine: machine::describe(kernel),
        bases,
        cells: plan.cells.iter().map(|cell| cell.id.clone()).collect(),
        excluded: plan.excluded.clone(),
    })
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
        axes: words.collect::<BTreeMap<_, _>>(),
        workload: planned.workload.name.clone(),
        workload_note: planned.workload.note.clone(),
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

fn name_of(step: &Step, id: &str) -> String {
    match step.kind {
        Kind::Timed(repetition) => format!("{id}, repetition {repetition}"),
        Kind::Recorded => format!("{id}, recorded"),
    }
}

fn unix_seconds() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0, |now| now.as_secs())
}

fn first_line(error: &LabError) -> String {
    let (message, _) = told(error);
    message.lines().next().unwrap_or_default().to_owned()
}

/// What went wrong in a line, and its log. Of a script in a guest, what it said last is what matters.
fn told(error: &LabError) -> (String, String) {
    let LabError::Guest(GuestError::Command {
        script,
        status,
        output,
    }) = error
    else {
        return chain(error);
    };
    let why = match status {
        137 => "it took too long",
        _ => output.lines().last().unwrap_or("it said nothing"),
    };
    let message = format!("a script in the guest ended with status {status}: {why}");
    (message, format!("{output}\n\n{script}"))
}

/// The error with its causes, and the end of what programs said.
fn chain(error: &dyn std::error::Error) -> (String, String) {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !message.contains(&text) {
            message = format!("{message}: {text}");
        }
        source = cause.source();
    }
    let log = last_lines(&message, 20);
    let first = message.lines().next().unwrap_or_default();
    let short: String = first.chars().take(300).collect();
    (short, log)
}

/// Programs that the plan's workloads and disks need besides the rig's own packages, as package names.
#[must_use]
pub fn missing_packages() -> Vec<String> {
    let mut packages = crate::packages::missing();
    for (program, package) in [("dd", "coreutils"), ("tar", "tar")] {
        if find_program(program).is_none() {
            packages.push(package.to_owned());
        }
    }
    packages
}
